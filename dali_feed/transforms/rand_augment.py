"""RandAugment: some operations one after the other, all of one strength."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dali_feed.transforms.auto_operations import LEVELS, SIGNED, Auto, Space, Turning, check_bins
from dali_feed.transforms.base import Ints
from dali_feed.transforms.batch_draws import BatchDraws
from dali_feed.transforms.fields import background, turning
from dali_feed.transforms.rules import Fill, refuse

__all__ = ["RandAugment"]

_SPACE = Space(("Identity", *SIGNED, *LEVELS), lambda edge: 150.0 / 331.0 * edge)


@dataclass(frozen=True, slots=True)
class RandAugment(Auto):
    """`num_ops` operations one after the other, all of strength `magnitude` of `bins`."""

    num_ops: int = 2
    magnitude: int = 9
    bins: int = 31
    interpolation: Turning = "nearest"
    fill: Fill | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.num_ops, int) or not 0 <= self.num_ops <= 16:
            refuse("RandAugment", "num_ops must be an int in 0..16", self.num_ops)
        check_bins("RandAugment", self.bins)
        if not isinstance(self.magnitude, int) or not 0 <= self.magnitude < self.bins:
            refuse("RandAugment", f"magnitude must be an int in 0..{self.bins - 1}", self.magnitude)

    @classmethod
    def of(cls, transform: Any) -> Self:
        t = transform
        return cls(t.num_ops, t.magnitude, t.num_magnitude_bins, turning(t), background(t))

    def drawn(self) -> range:
        return range(self.num_ops)

    @property
    def space(self) -> Space:
        return _SPACE

    @property
    def grades(self) -> int:
        return self.bins

    def rows(self, draws: BatchDraws, first: int, h: Ints, w: Ints) -> NDArray[np.int32]:
        every = [self.chosen(draws.draw(first + k), self.magnitude) for k in range(self.num_ops)]
        steps = np.stack(every, axis=1) if every else np.empty((len(draws.ids), 0, 3), np.int64)
        return steps[:, None].astype(np.int32)
