"""RandomInvert: each value taken from the largest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dali_feed.errors import TransformError
from dali_feed.transforms.op import Apply, Effect, InGraph, OpRun, Place
from dali_feed.transforms.settings import check_p, refuse

__all__ = [
    "RandomAdjustSharpness",
    "RandomAutocontrast",
    "RandomEqualize",
    "RandomInvert",
    "RandomPosterize",
    "RandomSolarize",
]


# RandomAutocontrast: each channel stretched from the darkest to the lightest value.


@dataclass(frozen=True, slots=True)
class RandomAutocontrast(Effect):
    """Each channel stretched from the darkest to the lightest value."""

    p: float = 0.5

    def __post_init__(self) -> None:
        check_p("RandomAutocontrast", self.p)

    @classmethod
    def of(cls, transform: Any) -> Self:
        return cls(float(transform.p))

    def image(self, image: Any, row: Any) -> Any:
        from torchvision.transforms.v2 import functional

        return functional.autocontrast_image(image) if row else image


# RandomEqualize: each channel's histogram made flat.


@dataclass(frozen=True, slots=True)
class RandomEqualize(Effect):
    """Each channel's histogram made flat."""

    p: float = 0.5

    def __post_init__(self) -> None:
        check_p("RandomEqualize", self.p)

    @classmethod
    def of(cls, transform: Any) -> Self:
        return cls(float(transform.p))

    def image(self, image: Any, row: Any) -> Any:
        from torchvision.transforms.v2 import functional

        return functional.equalize_image(image) if row else image


# RandomPosterize: the `bits` highest bits of each value.


@dataclass(frozen=True, slots=True)
class RandomPosterize(Effect):
    """The `bits` highest bits of each value."""

    bits: int
    p: float = 0.5

    def __post_init__(self) -> None:
        if not isinstance(self.bits, int) or not 0 <= self.bits <= 8:
            refuse("RandomPosterize", "bits must be an int in 0..8", self.bits)
        check_p("RandomPosterize", self.p)

    @classmethod
    def of(cls, transform: Any) -> Self:
        return cls(transform.bits, float(transform.p))

    def image(self, image: Any, row: Any) -> Any:
        from torchvision.transforms.v2 import functional

        return functional.posterize_image(image, self.bits) if row else image

    def graph(self, place: Place, k: int, first: int) -> InGraph:
        """All bits stay for an image that is left as it is."""
        if place.dtype != "uint8":
            self.refuse("needs uint8 pixels", place.dtype)
        mask = 256 - (256 >> self.bits)
        step = Apply(k, "bits", "UINT8", 0, lambda image, bits: image & bits)
        return step, lambda run: np.where(run.on & self.on(run, first), mask, 255).astype(np.uint8)


# RandomAdjustSharpness: sharper, or blurred, by a factor.


@dataclass(frozen=True, slots=True)
class RandomAdjustSharpness(Effect):
    """Sharper by `factor`: 0 blurs, 1 leaves an image as it is."""

    factor: float
    p: float = 0.5

    def __post_init__(self) -> None:
        if not 0.0 <= self.factor < float("inf"):
            refuse("RandomAdjustSharpness", "sharpness_factor must be at least 0", self.factor)
        check_p("RandomAdjustSharpness", self.p)

    @classmethod
    def of(cls, transform: Any) -> Self:
        return cls(float(transform.sharpness_factor), float(transform.p))

    def image(self, image: Any, row: Any) -> Any:
        from torchvision.transforms.v2 import functional

        return functional.adjust_sharpness_image(image, self.factor) if row else image


# RandomSolarize: values from `threshold` on inverted; and the inversion itself, as DALI computes it.


@dataclass(frozen=True, slots=True)
class RandomSolarize(Effect):
    """Values from `threshold` on inverted; `threshold` is in the units that pixels have at this point."""

    threshold: float
    p: float = 0.5

    def __post_init__(self) -> None:
        if math.isnan(self.threshold):
            refuse("RandomSolarize", "threshold must be a number", self.threshold)
        check_p("RandomSolarize", self.p)

    @classmethod
    def of(cls, transform: Any) -> Self:
        return cls(float(transform.threshold), float(transform.p))

    def check(self, dtype: str) -> None:
        most = 255 if dtype == "uint8" else 1
        if self.threshold > most:
            rule = f"RandomSolarize: threshold must be at most {most}, the largest of {dtype} pixels"
            msg = f"{rule}; found {self.threshold}"
            raise TransformError(msg)

    def image(self, image: Any, row: Any) -> Any:
        from torchvision.transforms.v2 import functional

        return functional.solarize_image(image, self.threshold) if row else image

    def graph(self, place: Place, k: int, first: int) -> InGraph:
        values = np.arange(256, dtype=np.float32)
        values = values if place.dtype == "uint8" else values * np.float32(1 / 255)
        return inverted_from(self, int(np.count_nonzero(values < self.threshold)), place, k, first)


def inverted_from(op: Effect, level: int, place: Place, k: int, first: int) -> InGraph:
    """Levels from `level` on inverted, as step number k of a DALI graph; from 256 on for an image left as it is."""
    if not place.is_unit:
        op.refuse("needs uint8 pixels or floats in 0..1", "floats in 0..255")

    def build(image: Any, start: Any) -> Any:
        from nvidia.dali import fn, types

        light = fn.cast(image >= start, dtype=types.UINT8)
        return image ^ (light * types.Constant(255, types.UINT8))

    def levels(run: OpRun) -> NDArray[np.int32]:
        return np.where(run.on & op.on(run, first), level, 256).astype(np.int32)

    return Apply(k, "level", "INT32", 0, build), levels


@dataclass(frozen=True, slots=True)
class RandomInvert(Effect):
    """Each value taken from the largest."""

    p: float = 0.5

    def __post_init__(self) -> None:
        check_p("RandomInvert", self.p)

    @classmethod
    def of(cls, transform: Any) -> Self:
        return cls(float(transform.p))

    def image(self, image: Any, row: Any) -> Any:
        from torchvision.transforms.v2 import functional

        return functional.invert_image(image) if row else image

    def graph(self, place: Place, k: int, first: int) -> InGraph:
        return inverted_from(self, 0, place, k, first)
