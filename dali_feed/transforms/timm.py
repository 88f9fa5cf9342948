"""timm's transforms, of `create_transform` and by themselves, lowered: known by class name and module as torchvision's.

Sizes and windows are timm's; what is resampled is resampled as torchvision does it, which is what timm asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dali_feed.transforms.fields import fail, fill_of, interpolation_of, pair
from dali_feed.transforms.fit import CropOrPad, ResizeKeepRatio, TrimBorder
from dali_feed.transforms.layer_augment import LayerAugment
from dali_feed.transforms.mix_augment import MixAugment
from dali_feed.transforms.noisy_erasing import either_of_timm
from dali_feed.transforms.policy_augment import PolicyAugment
from dali_feed.transforms.recipe import Op, RandomResizedCrop, ToFloat
from dali_feed.transforms.rules import Drawn, Interpolation

__all__ = ["TIMM", "is_timm"]


def is_timm(transform: object) -> bool:
    """Whether it is of a class of timm's own."""
    return f"{type(transform).__module__}.".startswith("timm.data.")


def _maybe_drawn(t: Any) -> Interpolation | Drawn:
    """One, or one of two that is drawn."""
    if not isinstance(t.interpolation, tuple | list):
        return interpolation_of(t)
    names = sorted(str(getattr(mode, "value", mode)) for mode in t.interpolation)
    if names != ["bicubic", "bilinear"]:
        raise fail(t, "interpolation must be one, or random", t.interpolation)
    return "random"


def _random_resized_crop(t: Any) -> Op:
    (s0, s1), (r0, r1) = t.scale, t.ratio
    return RandomResizedCrop(pair(t, t.size), (float(s0), float(s1)), (float(r0), float(r1)), _maybe_drawn(t))


def _keep_ratio(t: Any) -> Op:
    (s0, s1), (a0, a1) = t.random_scale_range, t.random_aspect_range
    return ResizeKeepRatio(
        pair(t, t.size),
        float(t.longest),
        _maybe_drawn(t),
        float(t.random_scale_prob),
        (float(s0), float(s1)),
        bool(t.random_scale_area),
        float(t.random_aspect_prob),
        (float(a0), float(a1)),
    )


def _crop_or_pad(t: Any) -> Op:
    anywhere = type(t).__name__ == "RandomCropOrPad"
    return CropOrPad(pair(t, t.size), anywhere, fill_of(t), t.padding_mode)


def _whole_levels(t: Any) -> Op:
    """Timm's own ToTensor leaves 0..255 as they are."""
    name = str(t.dtype).removeprefix("torch.")
    if name not in ("uint8", "float32", "float16", "bfloat16"):
        raise fail(t, "dtype must be uint8, float32, float16 or bfloat16", t.dtype)
    return ToFloat(name, scale=False)  # type: ignore[arg-type]


TIMM: dict[str, Callable[[Any], Op | None]] = {
    "AugMixAugment": MixAugment.of,
    "AutoAugment": PolicyAugment.of,
    "CenterCropOrPad": _crop_or_pad,
    "MaybePILToTensor": lambda _: None,
    "MaybeToTensor": lambda _: ToFloat("float32", scale=True),
    "RandAugment": LayerAugment.of,
    "RandomCropOrPad": _crop_or_pad,
    "RandomErasing": either_of_timm,
    "RandomResizedCropAndInterpolation": _random_resized_crop,
    "ResizeKeepRatio": _keep_ratio,
    "ToTensor": _whole_levels,
    "TrimBorder": lambda t: TrimBorder(int(t.border_size)),
}
