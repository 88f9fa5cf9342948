"""TrivialAugmentWide: one operation, of any strength."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dali_feed.transforms.auto_operations import LEVELS, SIGNED, Auto, Space, Turning, check_bins
from dali_feed.transforms.base import Ints
from dali_feed.transforms.batch_draws import BatchDraws
from dali_feed.transforms.fields import background, turning
from dali_feed.transforms.rules import Fill

__all__ = ["TrivialAugmentWide"]

_SPACE = Space(("Identity", *SIGNED, *LEVELS), lambda _: 32.0, 0.99, 135.0, 0.99, (8, 6))


@dataclass(frozen=True, slots=True)
class TrivialAugmentWide(Auto):
    """One operation, of any of `bins` strengths."""

    bins: int = 31
    interpolation: Turning = "nearest"
    fill: Fill | None = None

    def __post_init__(self) -> None:
        check_bins("TrivialAugmentWide", self.bins)

    @classmethod
    def of(cls, transform: Any) -> Self:
        return cls(transform.num_magnitude_bins, turning(transform), background(transform))

    @property
    def space(self) -> Space:
        return _SPACE

    @property
    def grades(self) -> int:
        return self.bins

    def rows(self, draws: BatchDraws, first: int, h: Ints, w: Ints) -> NDArray[np.int32]:
        return self.chosen(draws.draw(first), None)[:, None, None].astype(np.int32)
