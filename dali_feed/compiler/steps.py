"""The steps of a program: the DALI engine's graph is built from them.

A step names its arrays, which have a row per sample, by its own number k: size{k}, roi{k}, ... Crops and flips are
folded into the steps in this file; a transform's own step builds itself (`dali_feed.transforms.graph.GraphStep`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from dali_feed.transforms.graph import BLACK, Given
from dali_feed.transforms.rules import Drawn, DType, Interpolation, Layout

__all__ = ["Colours", "DecodeStep", "Finish", "OwnStep", "Resample", "Slice", "Step"]

Colours = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """Payload to RGB. With `window`, only window (int32: y, x, height, width) of it; with `turns`, turned by turn."""

    window: bool
    turns: bool = False


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
    fill: Colours = BLACK


@dataclass(frozen=True, slots=True)
class Finish:
    """flip_x, flip_y (int32) where there are any; value * scale + bias per channel; cast; to `layout`.

    With `erase`, rectangle erase (int32: y, x, height, width) of the output gets that value. With `adjusts`, that
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


class OwnStep(Protocol):
    """A step that builds itself: a transform's, or a user's graph."""

    def on(self, image: Any, given: Given, *, gpu: bool) -> Any:
        """Its output node for the image's node; `given` makes the nodes of its arrays."""
        ...


Step = DecodeStep | Resample | Slice | Finish | OwnStep
