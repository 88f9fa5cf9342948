"""RandomSolarize: values from `threshold` on inverted; and the inversion itself, as DALI computes it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dali_feed.errors import TransformError
from dali_feed.transforms.base import Apply, Effect, InGraph
from dali_feed.transforms.rules import check_p, refuse
from dali_feed.transforms.run import Run
from dali_feed.transforms.units import Place

__all__ = ["RandomSolarize", "inverted_from"]


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

    def levels(run: Run) -> NDArray[np.int32]:
        return np.where(run.on & op.on(run, first), level, 256).astype(np.int32)

    return Apply(k, "level", "INT32", 0, build), levels
