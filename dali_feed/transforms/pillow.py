"""timm's AutoAugment, RandAugment and AugMix: operations of Pillow that each image chooses from a table.

A part's strength runs from 0 to 10, as timm's does, and means what timm means by it.
"""

from __future__ import annotations

from dataclasses import dataclass

from dali_feed.transforms.rules import check_p, refuse

__all__ = ["PARTS", "LayerAugment", "Look", "MixAugment", "Part", "Pillow", "PolicyAugment"]

PARTS = frozenset(
    (
        *("AutoContrast", "Equalize", "Invert", "Rotate", "Posterize", "PosterizeIncreasing", "PosterizeOriginal"),
        *(
            "Solarize",
            "SolarizeIncreasing",
            "SolarizeAdd",
            "Color",
            "ColorIncreasing",
            "Contrast",
            "ContrastIncreasing",
        ),
        *("Brightness", "BrightnessIncreasing", "Sharpness", "SharpnessIncreasing", "ShearX", "ShearY"),
        *(
            "TranslateX",
            "TranslateY",
            "TranslateXRel",
            "TranslateYRel",
            "Desaturate",
            "GaussianBlur",
            "GaussianBlurRand",
        ),
    )
)
DEEPEST = 4  # steps of a chain of MixAugment


@dataclass(frozen=True, slots=True)
class Part:
    """An operation with probability `p` and strength `magnitude`, cut off to 0..`most`.

    spread  of a normal distribution about it; infinite: uniform from 0 to it; 0: just it
    """

    name: str
    p: float = 1.0
    magnitude: float = 10.0
    spread: float = 0.0
    most: float = 10.0

    def __post_init__(self) -> None:
        check_p(self.name, self.p)
        if self.name not in PARTS:
            refuse("AutoAugment", "has operations of timm's", self.name)


@dataclass(frozen=True, slots=True)
class Look:
    """What the operations share: the colour outside an image, Pillow's filters (one is drawn), how far to move.

    shift: pixels, of TranslateX and Y; share: of the edge, of TranslateXRel and YRel; both at strength 10.
    """

    fill: tuple[int, int, int] = (128, 128, 128)
    filters: tuple[int, ...] = (2, 3)
    shift: float = 250.0
    share: float = 0.45


def _check(op: str, parts: tuple[Part, ...], count: int, most: int) -> None:
    if not parts:
        refuse(op, "needs at least one operation", parts)
    if not 0 <= count <= most:
        refuse(op, f"takes 0 to {most} steps", count)


@dataclass(frozen=True, slots=True)
class PolicyAugment:
    """One of `policies`, equally often, each some parts one after the other."""

    policies: tuple[tuple[Part, ...], ...]
    look: Look = Look()

    def __post_init__(self) -> None:
        _check("AutoAugment", sum(self.policies, ()), max(map(len, self.policies), default=0), 8)


@dataclass(frozen=True, slots=True)
class LayerAugment:
    """`layers` of `parts`, one after the other; with `weights` none of them twice."""

    parts: tuple[Part, ...]
    layers: int = 2
    weights: tuple[float, ...] = ()
    look: Look = Look()

    def __post_init__(self) -> None:
        _check("RandAugment", self.parts, self.layers, min(32, len(self.parts)) if self.weights else 32)
        if self.weights and len(self.weights) != len(self.parts):
            refuse("RandAugment", "needs one weight for each operation", self.weights)
        if self.weights and sum(weight > 0 for weight in self.weights) < self.layers:
            refuse("RandAugment", "needs as many weights above 0 as layers", self.weights)


@dataclass(frozen=True, slots=True)
class MixAugment:
    """The image mixed with `width` chains of `depth` parts (1 to 3 where it is not positive), weighed by Dirichlet's.

    `blended`: chain by chain into the image, each rounded; else all at once.
    """

    parts: tuple[Part, ...]
    alpha: float = 1.0
    width: int = 3
    depth: int = -1
    blended: bool = False
    look: Look = Look()

    def __post_init__(self) -> None:
        _check("AugMix", self.parts, max(self.depth, 0), DEEPEST)
        if not 1 <= self.width <= 32 or not self.alpha > 0:
            refuse("AugMix", "takes 1 to 32 chains and an alpha above 0", (self.width, self.alpha))


Pillow = PolicyAugment | LayerAugment | MixAugment
