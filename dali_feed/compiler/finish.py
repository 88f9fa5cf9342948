"""The finish step that the last ops of a recipe come to, and what an op makes of the place where it stands."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from dali_feed.compiler.steps import Colours, Finish
from dali_feed.transforms.erasing import RandomErasing
from dali_feed.transforms.recipe import Flip, Normalize, Op, ToFloat
from dali_feed.transforms.rules import Layout
from dali_feed.transforms.units import Place

__all__ = ["erased_at", "finish_at", "last_erasing", "place_behind"]

_LARGEST = 3.4e38  # that a float32 holds, and so the finish step


def place_behind(place: Place, op: ToFloat | Normalize) -> Place:
    """The place behind one more op; only the first conversion from whole levels scales."""
    if isinstance(op, Normalize):
        mean, std = np.broadcast_to(op.mean, 3), np.broadcast_to(op.std, 3)
        return replace(place, scale=place.scale / std, bias=(place.bias - mean) / std)
    scales = place.dtype == "uint8" and op.dtype != "uint8" and op.scale
    return replace(place, dtype=op.dtype, scale=place.scale / 255 if scales else place.scale)


def erased_at(place: Place, op: RandomErasing, behind: Place) -> Colours:
    """What the value that the op writes at `place` is at the place `behind`, with no rounding to a level."""
    value = np.broadcast_to(op.value, 3)
    value = np.trunc(value) if place.dtype == "uint8" else value
    gain = behind.scale / place.scale
    red, green, blue = (value * gain + (behind.bias - place.bias * gain)).tolist()
    return red, green, blue


def finish_at(place: Place, flips: Collection[str], layout: Layout, erase: Colours | None = None) -> Finish:
    """The step that brings levels to `place`, with flips along these axes and rectangles of the value `erase`."""
    r, g, b = place.scale.tolist()
    br, bg, bb = place.bias.tolist()
    return Finish(place.dtype, (r, g, b), (br, bg, bb), "x" in flips, "y" in flips, layout, erase)


def last_erasing(ops: Sequence[Op]) -> int | None:
    """The number of the op that the finish step does beside flips and floats: the RandomErasing they alone follow."""
    for n in reversed(range(len(ops))):
        op = ops[n]
        if isinstance(op, RandomErasing):
            return n if all(abs(value) <= _LARGEST for value in np.atleast_1d(op.value)) else None
        if not isinstance(op, Flip | ToFloat | Normalize):
            break
    return None
