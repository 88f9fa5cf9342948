"""The table of lowerings: which op a transform of torchvision's or timm's is translated to, by the name of its class.

A line says "file:attribute": the file in this folder, and what in it makes the op. It is text, so lowering loads only
the files that a recipe uses.
"""

from __future__ import annotations

import functools
import importlib
import operator
from collections.abc import Callable
from typing import Any

__all__ = ["NESTS", "NOTHING", "TIMM", "TORCHVISION", "maker"]

NOTHING = ""  # decoders give an image of three channels already

TORCHVISION = {  # v1 and v2
    "AugMix": "aug_mix:AugMix.of",
    "AutoAugment": "auto_augment:AutoAugment.of",
    "CenterCrop": "center_crop:CenterCrop.of",
    "ColorJitter": "color_jitter:ColorJitter.of",
    "ConvertImageDtype": "to_float:ToFloat.converting",
    "GaussianBlur": "gaussian_blur:GaussianBlur.of",
    "GaussianNoise": "noise:GaussianNoise.of",
    "Grayscale": "grayscale:Grayscale.of",
    "ImageClassification": "presets:classification",
    "Normalize": "normalize:Normalize.of",
    "ObjectDetection": "to_float:ToFloat.to_tensor",
    "PILToTensor": NOTHING,
    "Pad": "pad:Pad.of",
    "RGB": NOTHING,
    "RandAugment": "rand_augment:RandAugment.of",
    "RandomAdjustSharpness": "sharpness:RandomAdjustSharpness.of",
    "RandomAffine": "affine:RandomAffine.of",
    "RandomAutocontrast": "autocontrast:RandomAutocontrast.of",
    "RandomChannelPermutation": "channel_permutation:RandomChannelPermutation.of",
    "RandomCrop": "random_crop:RandomCrop.of",
    "RandomEqualize": "equalize:RandomEqualize.of",
    "RandomErasing": "noisy_erasing:either",
    "RandomGrayscale": "grayscale:RandomGrayscale.of",
    "RandomHorizontalFlip": "flip:Flip.horizontal",
    "RandomInvert": "invert:RandomInvert.of",
    "RandomPerspective": "perspective:RandomPerspective.of",
    "RandomPhotometricDistort": "photometric_distort:RandomPhotometricDistort.of",
    "RandomPosterize": "posterize:RandomPosterize.of",
    "RandomResizedCrop": "random_resized_crop:RandomResizedCrop.of",
    "RandomRotation": "rotation:Rotation.of",
    "RandomSolarize": "solarize:RandomSolarize.of",
    "RandomVerticalFlip": "flip:Flip.vertical",
    "Resize": "resize:Resize.of",
    "SemanticSegmentation": "presets:segmentation",
    "ToDtype": "to_float:ToFloat.of",
    "ToImage": NOTHING,
    "ToPureTensor": NOTHING,
    "ToTensor": "to_float:ToFloat.to_tensor",
    "TrivialAugmentWide": "trivial_augment:TrivialAugmentWide.of",
}

NESTS = {  # of torchvision's: made from the transform, and from the ops of the transforms inside it
    "RandomApply": "nest:RandomApply.around",
    "RandomChoice": "nest:RandomChoice.around",
    "RandomOrder": "nest:RandomOrder.around",
}

TIMM = {
    "AugMixAugment": "mix_augment:MixAugment.of",
    "AutoAugment": "policy_augment:PolicyAugment.of",
    "CenterCropOrPad": "crop_or_pad:CropOrPad.of",
    "MaybePILToTensor": NOTHING,
    "MaybeToTensor": "to_float:ToFloat.to_tensor",
    "RandAugment": "layer_augment:LayerAugment.of",
    "RandomCropOrPad": "crop_or_pad:CropOrPad.of",
    "RandomErasing": "noisy_erasing:either_of_timm",
    "RandomResizedCropAndInterpolation": "random_resized_crop:RandomResizedCrop.of_timm",
    "ResizeKeepRatio": "resize_keep_ratio:ResizeKeepRatio.of",
    "ToTensor": "to_float:ToFloat.whole_levels",
    "TrimBorder": "trim_border:TrimBorder.of",
}


@functools.cache
def maker(line: str) -> Callable[..., Any]:
    """The function that a line names: it gives an op, or a tuple of ops; for NOTHING an empty one."""
    if line == NOTHING:
        return lambda _: ()
    file, _, attribute = line.partition(":")
    made: Callable[..., Any] = operator.attrgetter(attribute)(importlib.import_module(f"dali_feed.transforms.{file}"))
    return made
