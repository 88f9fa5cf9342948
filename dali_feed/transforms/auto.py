"""Ops that choose operations for each image from a table: AutoAugment, RandAugment, TrivialAugmentWide, AugMix.

Names and meanings are torchvision's; so is the `fill` None: what comes from outside the image is black, and mixed
into its edge once, where a number is mixed into it twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dali_feed.transforms.rules import Fill, check_p, refuse

__all__ = [
    "MOST_STEPS",
    "OPERATIONS",
    "PLAIN",
    "SIGNED",
    "AugMix",
    "Auto",
    "AutoAugment",
    "Policy",
    "RandAugment",
    "TrivialAugmentWide",
]

SIGNED = (
    *("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"),
    *("Brightness", "Color", "Contrast", "Sharpness"),
)
PLAIN = ("AutoContrast", "Equalize", "Invert", "Identity")  # of one strength
OPERATIONS = (*SIGNED, "Posterize", "Solarize", *PLAIN)
MOST_STEPS = 8  # of a chain of AugMix

POLICY_BINS = 10  # strengths that a policy's parts are numbered by
SEVERITIES = 10  # strengths that AugMix has, of which it takes the `severity` weakest

Turning = Literal["nearest", "bilinear"]
Part = tuple[str, float, int | None]  # operation, how likely it is, strength 0..9 where it has one
Policy = tuple[Part, Part]


def _check_bins(op: str, bins: int) -> None:
    if not isinstance(bins, int) or bins < 2:
        refuse(op, "num_magnitude_bins must be an int of at least 2", bins)


@dataclass(frozen=True, slots=True)
class AutoAugment:
    """One of `policies`, equally often: two operations, each with its own probability and strength."""

    policies: tuple[Policy, ...]
    interpolation: Turning = "nearest"
    fill: Fill | None = None

    def __post_init__(self) -> None:
        if not self.policies:
            refuse("AutoAugment", "needs at least one policy", self.policies)
        for part in (part for policy in self.policies for part in policy):
            name, p, strength = part
            check_p("AutoAugment", p)
            if (
                name not in OPERATIONS
                or (name in PLAIN) != (strength is None)
                or not 0 <= (strength or 0) < POLICY_BINS
            ):
                refuse("AutoAugment", f"a policy names operations and strengths 0..{POLICY_BINS - 1}", part)


@dataclass(frozen=True, slots=True)
class RandAugment:
    """`num_ops` operations one after the other, all of strength `magnitude` of `bins`."""

    num_ops: int = 2
    magnitude: int = 9
    bins: int = 31
    interpolation: Turning = "nearest"
    fill: Fill | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.num_ops, int) or not 0 <= self.num_ops <= 16:
            refuse("RandAugment", "num_ops must be an int in 0..16", self.num_ops)
        _check_bins("RandAugment", self.bins)
        if not isinstance(self.magnitude, int) or not 0 <= self.magnitude < self.bins:
            refuse("RandAugment", f"magnitude must be an int in 0..{self.bins - 1}", self.magnitude)


@dataclass(frozen=True, slots=True)
class TrivialAugmentWide:
    """One operation, of any of `bins` strengths."""

    bins: int = 31
    interpolation: Turning = "nearest"
    fill: Fill | None = None

    def __post_init__(self) -> None:
        _check_bins("TrivialAugmentWide", self.bins)


@dataclass(frozen=True, slots=True)
class AugMix:
    """The image mixed with `width` chains of `depth` operations (1 to 3 where it is not positive).

    Weights are drawn by Dirichlet's distribution of `alpha`; without `all_ops` none changes colours.
    """

    severity: int = 3
    width: int = 3
    depth: int = -1
    alpha: float = 1.0
    all_ops: bool = True
    interpolation: Turning = "bilinear"
    fill: Fill | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.severity, int) or not 1 <= self.severity <= SEVERITIES:
            refuse("AugMix", f"severity must be an int in 1..{SEVERITIES}", self.severity)
        if not isinstance(self.width, int) or self.width < 1:
            refuse("AugMix", "mixture_width must be an int of at least 1", self.width)
        if not isinstance(self.depth, int) or self.depth > MOST_STEPS:
            refuse("AugMix", f"chain_depth must be an int of at most {MOST_STEPS}", self.depth)
        if not 0 < self.alpha < float("inf"):
            refuse("AugMix", "alpha must be a number above 0", self.alpha)


Auto = AutoAugment | RandAugment | TrivialAugmentWide | AugMix
