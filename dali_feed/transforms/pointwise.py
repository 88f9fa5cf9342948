"""Levels inverted, posterized, solarized, equalized or sharpened, by one function of torchvision's each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dali_feed.errors import TransformError
from dali_feed.transforms.op import Apply, Effect, InGraph, OpRun, Place
from dali_feed.transforms.settings import Rule, at_least_zero, probability, refuse, whole

__all__ = [
    "RandomAdjustSharpness",
    "RandomAutocontrast",
    "RandomEqualize",
    "RandomInvert",
    "RandomPosterize",
    "RandomSolarize",
]


class Pointwise(Effect):
    """One function of torchvision's, applied with probability `p`."""

    __slots__ = ()
    rules: ClassVar[Mapping[str, Rule]] = {"p": probability}
    function: ClassVar[str]  # of torchvision's
    setting: ClassVar[str] = ""  # the field that it takes beside the image

    def image(self, image: Any, row: Any, more: Any) -> Any:
        from torchvision.transforms.v2 import functional

        settings = (getattr(self, self.setting),) if self.setting else ()
        return getattr(functional, self.function)(image, *settings) if row else image


@dataclass(frozen=True, slots=True)
class RandomAutocontrast(Pointwise):
    """Each channel stretched from the darkest to the lightest value."""

    p: float = 0.5

    function: ClassVar[str] = "autocontrast_image"


@dataclass(frozen=True, slots=True)
class RandomEqualize(Pointwise):
    """Each channel's histogram made flat."""

    p: float = 0.5

    function: ClassVar[str] = "equalize_image"


@dataclass(frozen=True, slots=True)
class RandomAdjustSharpness(Pointwise):
    """Sharper by `factor`: 0 blurs, 1 leaves an image as it is."""

    factor: float
    p: float = 0.5

    function: ClassVar[str] = "adjust_sharpness_image"
    setting: ClassVar[str] = "factor"
    rules: ClassVar[Mapping[str, Rule]] = {"factor": at_least_zero, "p": probability}
    theirs: ClassVar[Mapping[str, str]] = {"factor": "sharpness_factor"}


@dataclass(frozen=True, slots=True)
class RandomPosterize(Pointwise):
    """The `bits` highest bits of each value."""

    bits: int
    p: float = 0.5

    function: ClassVar[str] = "posterize_image"
    setting: ClassVar[str] = "bits"
    rules: ClassVar[Mapping[str, Rule]] = {"bits": whole(0, 8), "p": probability}

    def graph(self, place: Place, k: int, first: int) -> InGraph:
        """All bits stay for an image that is left as it is."""
        if place.dtype != "uint8":
            self.refuse("needs uint8 pixels", place.dtype)
        mask = 256 - (256 >> self.bits)
        step = Apply(k, "bits", "UINT8", 0, lambda image, bits: image & bits)
        return step, lambda run: np.where(run.on & self.on(run, first), mask, 255).astype(np.uint8)


@dataclass(frozen=True, slots=True)
class RandomSolarize(Pointwise):
    """Values from `threshold` on inverted; `threshold` is in the units that pixels have at this point."""

    threshold: float
    p: float = 0.5

    function: ClassVar[str] = "solarize_image"
    setting: ClassVar[str] = "threshold"

    def agree(self) -> None:
        if math.isnan(self.threshold):
            refuse(self.title, "threshold must be a number", self.threshold)

    def check(self, dtype: str) -> None:
        most = 255 if dtype == "uint8" else 1
        if self.threshold > most:
            rule = f"RandomSolarize: threshold must be at most {most}, the largest of {dtype} pixels"
            msg = f"{rule}; found {self.threshold}"
            raise TransformError(msg)

    def graph(self, place: Place, k: int, first: int) -> InGraph:
        values = np.arange(256, dtype=np.float32)
        values = values if place.dtype == "uint8" else values * np.float32(1 / 255)
        return inverted_from(self, int(np.count_nonzero(values < self.threshold)), place, k, first)


@dataclass(frozen=True, slots=True)
class RandomInvert(Pointwise):
    """Each value taken from the largest."""

    p: float = 0.5

    function: ClassVar[str] = "invert_image"

    def graph(self, place: Place, k: int, first: int) -> InGraph:
        return inverted_from(self, 0, place, k, first)


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
