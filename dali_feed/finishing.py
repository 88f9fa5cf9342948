"""Where an op stands in a recipe: what pixels are called there, and the finish step that the ops so far come to."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from dali_feed.recipe import DType, Layout, Normalize, ToFloat
from dali_feed.steps import Finish

__all__ = ["Place"]


@dataclass(frozen=True, slots=True)
class Place:
    """Pixels are of `dtype`; one of level 0..255 has the value level * scale + bias, per channel."""

    dtype: DType = "uint8"
    scale: NDArray[np.float64] = field(default_factory=lambda: np.ones(3))
    bias: NDArray[np.float64] = field(default_factory=lambda: np.zeros(3))

    @property
    def is_unit(self) -> bool:
        """Whether inversion is 255 - level: uint8, or floats in 0..1."""
        return self.dtype == "uint8" or bool((self.scale < 1).all())

    def behind(self, op: ToFloat | Normalize) -> Place:
        """The place behind one more op; only the first conversion from whole levels scales."""
        if isinstance(op, Normalize):
            mean, std = np.broadcast_to(op.mean, 3), np.broadcast_to(op.std, 3)
            return replace(self, scale=self.scale / std, bias=(self.bias - mean) / std)
        scales = self.dtype == "uint8" and op.dtype != "uint8" and op.scale
        return replace(self, dtype=op.dtype, scale=self.scale / 255 if scales else self.scale)

    def finish(self, flips: Collection[str], layout: Layout) -> Finish:
        """The step that brings levels here, with flips along these axes."""
        r, g, b = self.scale.tolist()
        br, bg, bb = self.bias.tolist()
        return Finish(self.dtype, (r, g, b), (br, bg, bb), "x" in flips, "y" in flips, layout)
