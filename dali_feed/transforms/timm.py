"""timm's transforms, of `create_transform` and by themselves, lowered: known by class name and module as torchvision's.

Sizes and windows are timm's; what is resampled is resampled as torchvision does it, which is what timm asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dali_feed.transforms.base import Op
from dali_feed.transforms.crop_or_pad import CropOrPad
from dali_feed.transforms.noisy_erasing import either_of_timm
from dali_feed.transforms.pillow import LayerAugment, Look, MixAugment, Part, PolicyAugment
from dali_feed.transforms.random_resized_crop import RandomResizedCrop
from dali_feed.transforms.resize_keep_ratio import ResizeKeepRatio
from dali_feed.transforms.to_float import ToFloat
from dali_feed.transforms.trim_border import TrimBorder

__all__ = ["TIMM", "is_timm"]


def is_timm(transform: object) -> bool:
    """Whether it is of a class of timm's own."""
    return f"{type(transform).__module__}.".startswith("timm.data.")


def _part(one: Any) -> Part:
    most = float(one.magnitude_max or 10.0)
    return Part(str(one.name), float(one.prob), float(one.magnitude), max(float(one.magnitude_std), 0.0), most)


def _look(parts: list[Any]) -> Look:
    """Of the first, whose settings are all others'."""
    if not parts:
        return Look()
    found, known = parts[0].kwargs, parts[0].hparams
    fill, filters = tuple(int(level) for level in found["fillcolor"]), found["resample"]
    several = tuple(map(int, filters)) if isinstance(filters, tuple | list) else (int(filters),)
    shift, share = float(known.get("translate_const", 250)), float(known.get("translate_pct", 0.45))
    return Look((fill[0], fill[1], fill[2]), several, shift, share)


def _policies(t: Any) -> Op:
    parts = [part for policy in t.policy for part in policy]
    return PolicyAugment(tuple(tuple(map(_part, policy)) for policy in t.policy), _look(parts))


def _layers(t: Any) -> Op:
    weights = () if t.choice_weights is None else tuple(map(float, t.choice_weights))
    return LayerAugment(tuple(map(_part, t.ops)), int(t.num_layers), weights, _look(t.ops))


def _mix(t: Any) -> Op:
    parts = tuple(map(_part, t.ops))
    return MixAugment(parts, float(t.alpha), int(t.width), int(t.depth), bool(t.blended), _look(t.ops))


TIMM: dict[str, Callable[[Any], Op | None]] = {
    "AugMixAugment": _mix,
    "AutoAugment": _policies,
    "CenterCropOrPad": CropOrPad.of,
    "MaybePILToTensor": lambda _: None,
    "MaybeToTensor": ToFloat.to_tensor,
    "RandAugment": _layers,
    "RandomCropOrPad": CropOrPad.of,
    "RandomErasing": either_of_timm,
    "RandomResizedCropAndInterpolation": RandomResizedCrop.of_timm,
    "ResizeKeepRatio": ResizeKeepRatio.of,
    "ToTensor": ToFloat.whole_levels,
    "TrimBorder": TrimBorder.of,
}
