"""RandomPhotometricDistort: brightness, contrast, saturation, hue and the order of channels, each at random.

As SSD does it (Liu and others: SSD: Single Shot MultiBox Detector, ECCV 2016), in torchvision's order: contrast comes
behind brightness or behind hue.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dali_feed.transforms.base import Arrays, Effect, Ints, OnImage
from dali_feed.transforms.batch_draws import BatchDraws
from dali_feed.transforms.channel_permutation import permutations, permuted
from dali_feed.transforms.keys import Key, further
from dali_feed.transforms.rules import Range, check_p, check_range, refuse

__all__ = ["RandomPhotometricDistort"]

_FACTORS = ("brightness", "contrast", "saturation", "hue")  # in the order in which torchvision draws them
_TURNS = np.array([0, 1, 2, 3, 1])  # and in which they come, as numbers of these; contrast has two places
_FIRST, _LAST = 1, 4  # where those are


@dataclass(frozen=True, slots=True)
class RandomPhotometricDistort(Effect):
    """Each of the four factors, and the order of the channels, with probability `p`."""

    brightness: Range = (0.875, 1.125)
    contrast: Range = (0.5, 1.5)
    saturation: Range = (0.5, 1.5)
    hue: Range = (-0.05, 0.05)
    p: float = 0.5

    streams: ClassVar[int] = 3  # whether each factor comes, the factors, and what is of contrast and channels

    def __post_init__(self) -> None:
        for name in _FACTORS:
            pair = getattr(self, name)
            low, high = (-0.5, 0.5) if name == "hue" else (0.0, math.inf)
            check_range("RandomPhotometricDistort", name, pair, low, high)
            if math.isinf(pair[1]):
                refuse("RandomPhotometricDistort", f"{name} must be two finite numbers", pair)
        check_p("RandomPhotometricDistort", self.p)

    @classmethod
    def of(cls, transform: Any) -> Self:
        brightness, contrast, saturation, hue = (_pair(name, getattr(transform, name)) for name in _FACTORS)
        return cls(brightness, contrast, saturation, hue, float(transform.p))

    def rows(self, draws: BatchDraws, first: int, h: Ints, w: Ints) -> NDArray[np.float32]:
        """The four factors, whether they come or not: (n, 4)."""
        drawn = draws.draw(first + 1).astype(np.float64)  # in double precision none is beyond its range
        ranges = [getattr(self, name) for name in _FACTORS]
        factors = [low + (high - low) * drawn[k] for k, (low, high) in enumerate(ranges)]
        return np.stack(factors, axis=1).astype(np.float32)

    def more(self, draws: BatchDraws, first: int) -> dict[str, NDArray[Any]]:
        """Which factors come, (n, 5), -1 for none; and the order of the channels, (n, 3)."""
        which, (before, swaps, order, _) = draws.draw(first) < self.p, draws.draw(first + 2)
        comes = which[_TURNS]
        comes[_FIRST] &= before < 0.5
        comes[_LAST] &= before >= 0.5
        return {
            "_turns": np.where(comes.T, _TURNS, -1),
            "_channels": np.where((swaps < self.p)[:, None], permutations(order), np.arange(3)),
        }

    def on_image(self, key: Key) -> OnImage:
        turns, channels = further(key, "_turns"), further(key, "_channels")

        def apply(image: Any, arrays: Arrays, slot: int) -> Any:
            from torchvision.transforms.v2 import functional

            factors = arrays[key][slot].tolist()
            for k in arrays[turns][slot].tolist():
                if k >= 0:
                    image = getattr(functional, f"adjust_{_FACTORS[k]}_image")(image, factors[k])
            return permuted(image, arrays[channels][slot])

        return apply


def _pair(name: str, found: Any) -> Range:
    """A range as torchvision keeps it, which is whatever it was given."""
    try:
        low, high = map(float, found)
    except (TypeError, ValueError):
        refuse("RandomPhotometricDistort", f"{name} must be (low, high)", found)
    return low, high
