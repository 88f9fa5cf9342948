"""torchvision transforms, v1 and v2, lowered to a recipe; timm's with them.

Transforms are known by class name and module, so torchvision is never imported here: who has a transform
has it. What cannot be lowered is an error that names it; nothing is left out in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from dali_feed.transforms.affine import RandomAffine
from dali_feed.transforms.aug_mix import AugMix
from dali_feed.transforms.auto_augment import AutoAugment
from dali_feed.transforms.autocontrast import RandomAutocontrast
from dali_feed.transforms.base import Op
from dali_feed.transforms.center_crop import CenterCrop
from dali_feed.transforms.color_jitter import ColorJitter
from dali_feed.transforms.equalize import RandomEqualize
from dali_feed.transforms.flip import Flip
from dali_feed.transforms.gaussian_blur import GaussianBlur
from dali_feed.transforms.grayscale import Grayscale, RandomGrayscale
from dali_feed.transforms.invert import RandomInvert
from dali_feed.transforms.nest import Branches, RandomApply, RandomChoice, RandomOrder
from dali_feed.transforms.noise import GaussianNoise
from dali_feed.transforms.noisy_erasing import either
from dali_feed.transforms.normalize import Normalize
from dali_feed.transforms.pad import Pad
from dali_feed.transforms.perspective import RandomPerspective
from dali_feed.transforms.posterize import RandomPosterize
from dali_feed.transforms.rand_augment import RandAugment
from dali_feed.transforms.random_crop import RandomCrop
from dali_feed.transforms.random_resized_crop import RandomResizedCrop
from dali_feed.transforms.recipe import Recipe
from dali_feed.transforms.resize import Resize
from dali_feed.transforms.rotation import Rotation
from dali_feed.transforms.sharpness import RandomAdjustSharpness
from dali_feed.transforms.solarize import RandomSolarize
from dali_feed.transforms.timm import TIMM, is_timm
from dali_feed.transforms.to_float import ToFloat
from dali_feed.transforms.trivial_augment import TrivialAugmentWide
from dali_feed.transforms.unknown import unknown
from dali_feed.transforms.wrappers import Chain, taken_apart

__all__ = ["SUPPORTED", "Beyond", "flatten", "is_theirs", "is_torchvision", "lower"]


def _to_image(_: Any) -> Op | None:
    return None  # what a decoder gives is an image already


def _rgb(_: Any) -> Op | None:
    return None  # as images are decoded, gray ones too


def _floats(t: Any) -> tuple[Op, ...]:
    return ToFloat.to_tensor(t), Normalize.of(t)


_LOWER: dict[str, Callable[[Any], Op | None]] = {
    "AugMix": AugMix.of,
    "AutoAugment": AutoAugment.of,
    "CenterCrop": CenterCrop.of,
    "ColorJitter": ColorJitter.of,
    "ConvertImageDtype": ToFloat.converting,
    "GaussianBlur": GaussianBlur.of,
    "GaussianNoise": GaussianNoise.of,
    "Grayscale": Grayscale.of,
    "Normalize": Normalize.of,
    "PILToTensor": _to_image,
    "RGB": _rgb,
    "Pad": Pad.of,
    "RandAugment": RandAugment.of,
    "RandomAdjustSharpness": RandomAdjustSharpness.of,
    "RandomAffine": RandomAffine.of,
    "RandomAutocontrast": RandomAutocontrast.of,
    "RandomCrop": RandomCrop.of,
    "RandomEqualize": RandomEqualize.of,
    "RandomErasing": either,
    "RandomGrayscale": RandomGrayscale.of,
    "RandomHorizontalFlip": Flip.horizontal,
    "RandomInvert": RandomInvert.of,
    "RandomPerspective": RandomPerspective.of,
    "RandomPosterize": RandomPosterize.of,
    "RandomResizedCrop": RandomResizedCrop.of,
    "RandomRotation": Rotation.of,
    "RandomSolarize": RandomSolarize.of,
    "RandomVerticalFlip": Flip.vertical,
    "Resize": Resize.of,
    "ToDtype": ToFloat.of,
    "ToImage": _to_image,
    "ToPureTensor": _to_image,
    "ToTensor": ToFloat.to_tensor,
    "TrivialAugmentWide": TrivialAugmentWide.of,
}

_NESTS: dict[str, Callable[[Any, Branches], Op]] = {
    "RandomApply": RandomApply.around,
    "RandomChoice": RandomChoice.around,
    "RandomOrder": RandomOrder.around,
}
_PRESETS: dict[str, Callable[[Any], tuple[Op, ...]]] = {  # what weights.transforms() gives
    "ImageClassification": lambda t: (Resize.of_preset(t), CenterCrop.of_preset(t), *_floats(t)),
    "ObjectDetection": lambda t: (ToFloat.to_tensor(t),),
    "SemanticSegmentation": lambda t: (*(() if t.resize_size is None else (Resize.of_preset(t),)), *_floats(t)),
}

SUPPORTED = ("Compose", "Identity", *sorted([*_LOWER, *_NESTS, *_PRESETS]))

Beyond = Callable[[Any, tuple[Op, ...]], Op | None]


def is_torchvision(transform: object) -> bool:
    """Whether it is of a class of torchvision's own."""
    return f"{type(transform).__module__}.".startswith("torchvision.transforms.")


def is_theirs(transform: object) -> bool:
    """Whether it is of a class of torchvision's or timm's."""
    return is_torchvision(transform) or is_timm(transform)


def flatten(transform: Any) -> Iterable[Any]:
    """A Compose, torch's Sequential or an object that only holds some, and those in it, as what they are made of.

    What leaves an image as it is is left out.
    """
    name, module = type(transform).__name__, type(transform).__module__
    ours, torchs = is_torchvision(transform), module.startswith("torch.nn.")
    inner: Iterable[Any]
    if name == "Compose" and ours:
        inner = transform.transforms
    elif name == "Sequential" and torchs:
        inner = transform
    elif name == "Identity" and (ours or torchs):
        return
    elif isinstance(transform, Chain):
        inner = transform.transforms
    else:
        apart = None if ours or torchs or is_timm(transform) else taken_apart(transform)
        if not isinstance(apart, Chain):
            yield transform
            return
        inner = apart.transforms
    for each in inner:
        yield from flatten(each)


def lower(transform: Any, beyond: Beyond | None = None) -> Recipe:
    """The recipe of a torchvision transform, a Compose of them, or None (pixels as decoded); a recipe is its own.

    `beyond` is asked first of each transform, with the ops before it: it gives an op, or None to leave it to what is
    known here.

    Raises TransformError for a transform, or a setting of one, that has no lowering.
    """
    if isinstance(transform, Recipe):
        return transform
    return Recipe() if transform is None else Recipe(_ops(transform, beyond))


def _ops(transform: Any, beyond: Beyond | None, before: tuple[Op, ...] = ()) -> tuple[Op, ...]:
    ops: list[Op] = []
    for one in flatten(transform):
        so_far = (*before, *ops)
        found = None if beyond is None else beyond(one, so_far)
        ops += (found,) if found is not None else _known(one, beyond, so_far)
    return tuple(ops)


def _known(one: Any, beyond: Beyond | None, before: tuple[Op, ...]) -> tuple[Op, ...]:
    name, found = type(one).__name__, None
    if is_torchvision(one) and name in _NESTS:
        return (_NESTS[name](one, tuple(_ops(inner, beyond, before) for inner in one.transforms)),)
    if is_torchvision(one) and name in _PRESETS:
        return _PRESETS[name](one)
    table = _LOWER if is_torchvision(one) else TIMM if is_timm(one) else {}
    if name not in table:
        raise unknown(one, SUPPORTED)
    found = table[name](one)
    return () if found is None else (found,)
