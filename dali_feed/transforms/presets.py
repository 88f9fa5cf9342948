"""The presets of torchvision's weights: what `weights.transforms()` gives, as the ops that it is made of."""

from __future__ import annotations

from typing import Any

from dali_feed.transforms.base import Op
from dali_feed.transforms.center_crop import CenterCrop
from dali_feed.transforms.normalize import Normalize
from dali_feed.transforms.resize import Resize
from dali_feed.transforms.to_float import ToFloat

__all__ = ["classification", "segmentation"]


def classification(transform: Any) -> tuple[Op, ...]:
    """The ops of ImageClassification."""
    return Resize.of_preset(transform), CenterCrop.of_preset(transform), *_floats(transform)


def segmentation(transform: Any) -> tuple[Op, ...]:
    """The ops of SemanticSegmentation, which may keep the image's size."""
    resized = () if transform.resize_size is None else (Resize.of_preset(transform),)
    return *resized, *_floats(transform)


def _floats(transform: Any) -> tuple[Op, ...]:
    return ToFloat.to_tensor(transform), Normalize.of(transform)
