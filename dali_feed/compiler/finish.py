"""The finish step, which replaces the last ops of a recipe: flips, floats, and the rectangle that is erased last."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from dali_feed.compiler.steps import Colours, Finish
from dali_feed.transforms.base import Op
from dali_feed.transforms.rules import Fill, Layout
from dali_feed.transforms.units import Place

__all__ = ["erased_at", "finish_at", "last_erasing"]

_LARGEST = 3.4e38  # exact in float32, and so in the finish step


def erased_at(place: Place, value: Fill, behind: Place) -> Colours:
    """The value that an op writes in the units of `place`, in the units of `behind`, without rounding to a level."""
    three = np.broadcast_to(value, 3)
    three = np.trunc(three) if place.dtype == "uint8" else three
    gain = behind.scale / place.scale
    red, green, blue = (three * gain + (behind.bias - place.bias * gain)).tolist()
    return red, green, blue


def finish_at(place: Place, flips: Collection[str], layout: Layout, erase: Colours | None = None) -> Finish:
    """The step that turns levels into the units of `place`, flips along these axes and erases to `erase`."""
    r, g, b = place.scale.tolist()
    br, bg, bb = place.bias.tolist()
    return Finish(place.dtype, (r, g, b), (br, bg, bb), "x" in flips, "y" in flips, layout, erase)


def last_erasing(ops: Sequence[Op]) -> int | None:
    """The number of the op whose rectangle the finish step erases: all ops after it are done by the finish step too."""
    for n in reversed(range(len(ops))):
        value = ops[n].erases()
        if value is not None:
            return n if all(abs(one) <= _LARGEST for one in np.atleast_1d(value)) else None
        if not ops[n].of_finish:
            break
    return None
