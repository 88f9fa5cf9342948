"""Ops that fit images of any size into one: by their ratio, by cutting or padding what is too large or too small.

Names and meanings are timm's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dali_feed.transforms.rules import Fill, Range, check_p, check_range, check_size, refuse

__all__ = ["CropOrPad", "Fit", "ResizeKeepRatio", "TrimBorder"]


@dataclass(frozen=True, slots=True)
class ResizeKeepRatio:
    """The shorter edge to that of `size` (height, width), or, by `longest` 1, the longer one; else between them.

    With probability `scale_p` larger or smaller by a factor in `scale` (of areas, cut: below 1 enlarges, where `area`;
    else of edges), with `aspect_p` of another ratio by a factor in `aspect`.
    """

    size: tuple[int, int]
    longest: float = 0.0
    interpolation: Literal["nearest-exact", "bilinear", "bicubic", "random"] = "bilinear"
    scale_p: float = 0.0
    scale: Range = (0.85, 1.05)
    area: bool = False
    aspect_p: float = 0.0
    aspect: Range = (0.9, 1.11)

    def __post_init__(self) -> None:
        check_size("ResizeKeepRatio", self.size)
        check_p("ResizeKeepRatio", self.longest)
        check_p("ResizeKeepRatio", self.scale_p)
        check_p("ResizeKeepRatio", self.aspect_p)
        check_range("ResizeKeepRatio", "random_scale_range", self.scale, 1e-3, 1e3)
        check_range("ResizeKeepRatio", "random_aspect_range", self.aspect, 1e-3, 1e3)


@dataclass(frozen=True, slots=True)
class CropOrPad:
    """To `size` (height, width): the middle, or anywhere; where an image is smaller it is padded so."""

    size: tuple[int, int]
    anywhere: bool = False
    fill: Fill = 0.0
    mode: Literal["constant", "edge", "reflect", "symmetric"] = "constant"

    def __post_init__(self) -> None:
        check_size("CropOrPad", self.size)
        if self.mode not in ("constant", "edge", "reflect", "symmetric"):
            refuse("CropOrPad", "padding_mode must be constant, edge, reflect or symmetric", self.mode)


@dataclass(frozen=True, slots=True)
class TrimBorder:
    """Without `border` pixels at each edge."""

    border: int

    def __post_init__(self) -> None:
        if self.border < 0:
            refuse("TrimBorder", "border_size must be at least 0", self.border)


Fit = ResizeKeepRatio | CropOrPad | TrimBorder
