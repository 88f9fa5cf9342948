"""Ops that draw a number for every pixel: noise, and rectangles of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dali_feed.transforms.rules import Range, check_p, check_range, refuse

__all__ = ["GaussianNoise", "Noise", "NoisyErasing"]


@dataclass(frozen=True, slots=True)
class GaussianNoise:
    """Normal noise of `mean` and `sigma`, in units of 0..1 whatever the pixels are in; `clip` keeps them there."""

    mean: float = 0.0
    sigma: float = 0.1
    clip: bool = True

    def __post_init__(self) -> None:
        if not 0.0 <= self.sigma < float("inf"):
            refuse("GaussianNoise", "sigma must be at least 0", self.sigma)


@dataclass(frozen=True, slots=True)
class NoisyErasing:
    """RandomErasing with `least` to `most` rectangles, which share the area, of float pixels.

    `fill`: "zero", "colour" (a normal number per channel) or "pixel" (one per value).
    """

    p: float = 0.5
    scale: Range = (0.02, 0.33)
    ratio: Range = (0.3, 3.3)
    fill: Literal["zero", "colour", "pixel"] = "pixel"
    least: int = 1
    most: int = 1

    def __post_init__(self) -> None:
        check_p("RandomErasing", self.p)
        check_range("RandomErasing", "scale", self.scale, 0.0, 1.0)
        check_range("RandomErasing", "ratio", self.ratio, 1e-6, 1e6)
        if self.fill not in ("zero", "colour", "pixel"):
            refuse("RandomErasing", 'fill must be "zero", "colour" or "pixel"', self.fill)
        if not 1 <= self.least <= self.most:
            refuse("RandomErasing", "needs at least one rectangle, and least <= most", (self.least, self.most))


Noise = GaussianNoise | NoisyErasing
