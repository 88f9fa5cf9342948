"""The steps of a program: what the DALI engine's graph is built of.

A step names the arrays it takes, a row per sample, by its own number k: size{k}, roi{k}, ...
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from dali_feed.transforms.base import Apply
from dali_feed.transforms.rules import Drawn, DType, Interpolation, Layout

__all__ = [
    "Colour",
    "Colours",
    "CustomStep",
    "Decode",
    "Finish",
    "Resample",
    "Rotate",
    "Slice",
    "Step",
    "Warp",
]

Colours = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Decode:
    """Payload to RGB. With `window`, only window (int32: y, x, height, width) of it."""

    window: bool


@dataclass(frozen=True, slots=True)
class Resample:
    """To `size`, or per-sample size{k} (float32: height, width); `roi`: from roi{k} (float32: y0, x0, y1, x1) only.

    Interpolation "random": by number mode{k} (int32) of dali_feed.transforms.batch_draws.DRAWN.
    """

    k: int
    size: tuple[int, int] | None
    roi: bool
    interpolation: Interpolation | Drawn
    antialias: bool


@dataclass(frozen=True, slots=True)
class Slice:
    """`size` pixels, or shape{k} (int32: height, width), from anchor{k} (int32: y, x) on; `fill` outside the image."""

    k: int
    size: tuple[int, int] | None
    fill: Colours = (0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Rotate:
    """By angle{k} (float32, degrees, counter-clockwise) about the centre."""

    k: int
    interpolation: str
    fill: float


@dataclass(frozen=True, slots=True)
class Warp:
    """Pixel (x, y) is taken from matrix{k} (float32: 2, 3) @ (x, y, 1); halves are pixel centres."""

    k: int
    interpolation: str
    fill: float


@dataclass(frozen=True, slots=True)
class Colour:
    """`steps` colour steps, colour{k} (float32: steps, 14), with or without a mean and a hue; see colours.py."""

    k: int
    steps: int
    contrast: bool
    hue: bool


@dataclass(frozen=True, slots=True)
class Finish:
    """flip_x, flip_y (int32) where there are any; value * scale + bias per channel; cast; to `layout`.

    With `erase`, rectangle erase (int32: y, x, height, width) of what comes out is that value. With `adjusts`, that
    many colour steps come before all this: adjust (float32: adjusts, 2), a kind and a factor each, of colours.py.
    """

    dtype: DType
    scale: Colours
    bias: Colours
    flip_x: bool
    flip_y: bool
    layout: Layout = "NCHW"
    erase: Colours | None = None
    adjusts: int = 0


class CustomStep(Protocol):
    """A step that an engine knows by its own type."""

    def call(self, image: Any, make_input: Callable[[str], Any]) -> Any:
        """Build it on an engine's image."""
        ...


Step = Decode | Resample | Slice | Rotate | Warp | Colour | Apply | Finish | CustomStep
