"""timm's transforms, of `create_transform` and by themselves, lowered: known by class name and module as torchvision's.

Sizes and windows are timm's; what is resampled is resampled as torchvision does it, which is what timm asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dali_feed.transforms.base import Op
from dali_feed.transforms.crop_or_pad import CropOrPad
from dali_feed.transforms.layer_augment import LayerAugment
from dali_feed.transforms.mix_augment import MixAugment
from dali_feed.transforms.noisy_erasing import either_of_timm
from dali_feed.transforms.policy_augment import PolicyAugment
from dali_feed.transforms.random_resized_crop import RandomResizedCrop
from dali_feed.transforms.resize_keep_ratio import ResizeKeepRatio
from dali_feed.transforms.to_float import ToFloat
from dali_feed.transforms.trim_border import TrimBorder

__all__ = ["TIMM", "is_timm"]


def is_timm(transform: object) -> bool:
    """Whether it is of a class of timm's own."""
    return f"{type(transform).__module__}.".startswith("timm.data.")


TIMM: dict[str, Callable[[Any], Op | None]] = {
    "AugMixAugment": MixAugment.of,
    "AutoAugment": PolicyAugment.of,
    "CenterCropOrPad": CropOrPad.of,
    "MaybePILToTensor": lambda _: None,
    "MaybeToTensor": ToFloat.to_tensor,
    "RandAugment": LayerAugment.of,
    "RandomCropOrPad": CropOrPad.of,
    "RandomErasing": either_of_timm,
    "RandomResizedCropAndInterpolation": RandomResizedCrop.of_timm,
    "ResizeKeepRatio": ResizeKeepRatio.of,
    "ToTensor": ToFloat.whole_levels,
    "TrimBorder": TrimBorder.of,
}
