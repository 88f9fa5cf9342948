"""Where an op stands in a recipe: what pixels are called there, and the finish step that the last ops come to."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from dali_feed.compiler.steps import Colours, Finish
from dali_feed.transforms.effects import RandomErasing
from dali_feed.transforms.recipe import DType, Flip, Layout, Normalize, Op, ToFloat

__all__ = ["Place", "last_erasing"]

_LARGEST = 3.4e38  # that a float32 holds, and so the finish step


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

    def erased(self, op: RandomErasing, behind: Place) -> Colours:
        """What the value that the op writes here is at the place `behind`, with no rounding to a level."""
        value = np.broadcast_to(op.value, 3)
        value = np.trunc(value) if self.dtype == "uint8" else value
        gain = behind.scale / self.scale
        red, green, blue = (value * gain + (behind.bias - self.bias * gain)).tolist()
        return red, green, blue

    def finish(self, flips: Collection[str], layout: Layout, erase: Colours | None = None) -> Finish:
        """The step that brings levels here, with flips along these axes and rectangles of the value `erase`."""
        r, g, b = self.scale.tolist()
        br, bg, bb = self.bias.tolist()
        return Finish(self.dtype, (r, g, b), (br, bg, bb), "x" in flips, "y" in flips, layout, erase)


def last_erasing(ops: Sequence[Op]) -> int | None:
    """The number of the op that the finish step does beside flips and floats: the RandomErasing they alone follow."""
    for n in reversed(range(len(ops))):
        op = ops[n]
        if isinstance(op, RandomErasing):
            return n if all(abs(value) <= _LARGEST for value in np.atleast_1d(op.value)) else None
        if not isinstance(op, Flip | ToFloat | Normalize):
            break
    return None
