"""Ops that leave an image's size, dtype and units as they are: gray, blur, inversion, ..., erasing, perspective.

Names and meanings are torchvision's. `Random...` ones are applied with probability `p`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from dali_feed.transforms import base
from dali_feed.transforms.auto import Auto
from dali_feed.transforms.noise import Noise
from dali_feed.transforms.own import Own
from dali_feed.transforms.pillow import Pillow
from dali_feed.transforms.rules import Fill, Range, check_p, check_range, refuse

__all__ = [
    "Effect",
    "GaussianBlur",
    "Grayscale",
    "RandomAdjustSharpness",
    "RandomAutocontrast",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomInvert",
    "RandomPerspective",
    "RandomPosterize",
    "RandomSolarize",
]


@dataclass(frozen=True, slots=True)
class Grayscale:
    """Gray, in three channels of the same or in one."""

    channels: Literal[1, 3] = 3


@dataclass(frozen=True, slots=True)
class RandomGrayscale:
    """Gray, as Grayscale."""

    p: float = 0.1

    def __post_init__(self) -> None:
        check_p("RandomGrayscale", self.p)


@dataclass(frozen=True, slots=True)
class GaussianBlur:
    """Blurred by `kernel` (width, height) pixels with a random `sigma`; the border is mirrored."""

    kernel: tuple[int, int]
    sigma: Range = (0.1, 2.0)

    def __post_init__(self) -> None:
        if len(self.kernel) != 2 or not all(isinstance(n, int) and n > 0 and n % 2 for n in self.kernel):
            refuse("GaussianBlur", "kernel_size must be two odd positive ints (width, height)", self.kernel)
        check_range("GaussianBlur", "sigma", self.sigma, 1e-6, float("inf"))


@dataclass(frozen=True, slots=True)
class RandomInvert:
    """Each value taken from the largest."""

    p: float = 0.5

    def __post_init__(self) -> None:
        check_p("RandomInvert", self.p)


@dataclass(frozen=True, slots=True)
class RandomPosterize:
    """The `bits` highest bits of each value."""

    bits: int
    p: float = 0.5

    def __post_init__(self) -> None:
        if not isinstance(self.bits, int) or not 0 <= self.bits <= 8:
            refuse("RandomPosterize", "bits must be an int in 0..8", self.bits)
        check_p("RandomPosterize", self.p)


@dataclass(frozen=True, slots=True)
class RandomSolarize:
    """Values from `threshold` on inverted; it is in the units that pixels have there."""

    threshold: float
    p: float = 0.5

    def __post_init__(self) -> None:
        if math.isnan(self.threshold):
            refuse("RandomSolarize", "threshold must be a number", self.threshold)
        check_p("RandomSolarize", self.p)


@dataclass(frozen=True, slots=True)
class RandomAdjustSharpness:
    """Sharper by `factor`: 0 blurs, 1 leaves an image as it is."""

    factor: float
    p: float = 0.5

    def __post_init__(self) -> None:
        if not 0.0 <= self.factor < float("inf"):
            refuse("RandomAdjustSharpness", "sharpness_factor must be at least 0", self.factor)
        check_p("RandomAdjustSharpness", self.p)


@dataclass(frozen=True, slots=True)
class RandomAutocontrast:
    """Each channel stretched from the darkest to the lightest value."""

    p: float = 0.5

    def __post_init__(self) -> None:
        check_p("RandomAutocontrast", self.p)


@dataclass(frozen=True, slots=True)
class RandomEqualize:
    """Each channel's histogram made flat."""

    p: float = 0.5

    def __post_init__(self) -> None:
        check_p("RandomEqualize", self.p)


@dataclass(frozen=True, slots=True)
class RandomErasing:
    """A rectangle of random area and aspect ratio (height / width) set to `value`, in the units pixels have there."""

    p: float = 0.5
    scale: Range = (0.02, 0.33)
    ratio: Range = (0.3, 3.3)
    value: Fill = 0.0

    def __post_init__(self) -> None:
        check_p("RandomErasing", self.p)
        check_range("RandomErasing", "scale", self.scale, 0.0, 1.0)
        check_range("RandomErasing", "ratio", self.ratio, 1e-6, 1e6)


@dataclass(frozen=True, slots=True)
class RandomPerspective:
    """Seen from elsewhere: each corner moves inwards, by up to `distortion` of half the edge."""

    distortion: float = 0.5
    p: float = 0.5
    interpolation: Literal["nearest", "bilinear"] = "bilinear"
    fill: Fill = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.distortion <= 1.0:
            refuse("RandomPerspective", "distortion_scale must lie in 0..1", self.distortion)
        check_p("RandomPerspective", self.p)


Effect = (
    base.Effect
    | Grayscale
    | RandomGrayscale
    | GaussianBlur
    | RandomInvert
    | RandomPosterize
    | RandomSolarize
    | RandomAdjustSharpness
    | RandomAutocontrast
    | RandomEqualize
    | RandomErasing
    | RandomPerspective
    | Auto
    | Noise
    | Own
    | Pillow
)
