"""timm's transforms, of `create_transform` and by themselves, lowered: known by class name and module as torchvision's.

Sizes and windows are timm's; what is resampled is resampled as torchvision does it, which is what timm asks for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

from dali_feed.recipe import Drawn, Interpolation, Op, RandomResizedCrop, ToFloat
from dali_feed.recipe_effects import RandomErasing
from dali_feed.recipe_noise import NoisyErasing
from dali_feed.transform_fields import fail, interpolation_of, pair

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


def _erasing(t: Any) -> Op:
    low, high = map(math.exp, t.log_aspect_ratio)
    scale, ratio = (float(t.min_area), float(t.max_area)), (low, high)
    if t.max_count == 1 and not t.rand_color and not t.per_pixel:
        return RandomErasing(float(t.probability), scale, ratio)
    fill: Literal["zero", "colour", "pixel"] = "colour" if t.rand_color else "pixel" if t.per_pixel else "zero"
    return NoisyErasing(float(t.probability), scale, ratio, fill, int(t.min_count), int(t.max_count))


def _whole_levels(t: Any) -> Op:
    """Timm's own ToTensor leaves 0..255 as they are."""
    name = str(t.dtype).removeprefix("torch.")
    if name not in ("uint8", "float32", "float16", "bfloat16"):
        raise fail(t, "dtype must be uint8, float32, float16 or bfloat16", t.dtype)
    return ToFloat(name, scale=False)  # type: ignore[arg-type]


TIMM: dict[str, Callable[[Any], Op | None]] = {
    "MaybePILToTensor": lambda _: None,
    "MaybeToTensor": lambda _: ToFloat("float32", scale=True),
    "RandomErasing": _erasing,
    "RandomResizedCropAndInterpolation": _random_resized_crop,
    "ToTensor": _whole_levels,
}
