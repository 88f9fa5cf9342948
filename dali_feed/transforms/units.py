"""The units of pixels at an op's place: their dtype, and the value that a level of 0..255 has there."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dali_feed.transforms.rules import DType, Fill

__all__ = ["Place"]


@dataclass(frozen=True, slots=True)
class Place:
    """Pixels of `dtype`; a level of 0..255 has the value level * scale + bias, per channel."""

    dtype: DType = "uint8"
    scale: NDArray[np.float64] = field(default_factory=lambda: np.ones(3))
    bias: NDArray[np.float64] = field(default_factory=lambda: np.zeros(3))

    @property
    def is_unit(self) -> bool:
        """Whether inversion is 255 - level: uint8, or floats in 0..1."""
        return self.dtype == "uint8" or bool((self.scale < 1).all())

    def levels(self, fill: Fill) -> tuple[float, float, float]:
        """A value given in these units, as a level of 0..255."""
        red, green, blue = np.broadcast_to(fill, 3) / self.scale
        return float(red), float(green), float(blue)
