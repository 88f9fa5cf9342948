"""Outline: what is known of a recipe before any sample is seen: sizes, dtype and random streams of its ops.

The law: an order of ops that has no meaning is refused here, for every engine, and an image that
an op cannot take is known by its header's size, so that it is a bad record and never a failure of an engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.draws.streams import STREAMS_PER_OP
from dali_feed.errors import TransformError
from dali_feed.transforms.base import Op
from dali_feed.transforms.numbering import walk
from dali_feed.transforms.recipe import Recipe
from dali_feed.transforms.rules import DType
from dali_feed.transforms.units import Place

__all__ = ["Outline", "outline", "unfit"]


@dataclass(frozen=True, slots=True)
class Outline:
    """size: (height, width) of every image, or None where it depends on the input's; dtype; streams of every sample."""

    size: tuple[int, int] | None
    dtype: DType
    streams: list[int]


def outline(recipe: Recipe) -> Outline:
    """The outline. Raises TransformError where ops stand in an order that has no meaning (Normalize of uint8, ...)."""
    size: tuple[int, int] | None = None
    place = Place()
    streams: list[int] = []
    normalized, channels = False, 3
    for n, op in walk(recipe.ops):
        channels = op.channels_behind() or channels
        _check_channels(op, channels)
        if normalized and not op.normalized:
            msg = (
                f"{op.title}: must stand before Normalize, as it resamples or recolours pixels; found it after. Move it"
            )
            raise TransformError(msg)
        streams += [n * STREAMS_PER_OP + k for k in op.drawn()]
        size = op.size_behind(size)
        op.check(place.dtype)
        place = op.place_behind(place)
        normalized |= op.normalizes
    return Outline(size, place.dtype, streams)


def _check_channels(op: Op, channels: int) -> None:
    """Raise TransformError for three values where images have one channel."""
    fields = ("fill", "value", "mean", "std")
    values = (getattr(op, name, None) for name in fields)
    three = next((value for value in values if isinstance(value, tuple) and len(value) == 3), None)
    if channels == 1 and three is not None:
        msg = f"{op.title}: must have one number, as images have one channel after Grayscale(1); found {three}"
        raise TransformError(msg)


def unfit(recipe: Recipe, sizes: NDArray[Any]) -> dict[int, str]:
    """Rows of `sizes` (n, 2: height, width) whose images an op cannot take, with the reason; size 0 means no image."""
    every = [op for _, op in walk(recipe.ops)]
    if all(type(op).unfit is Op.unfit for op in every):  # its ops take every size
        return {}
    reasons: dict[int, str] = {}
    rows = np.flatnonzero(sizes[:, 0] > 0)
    h, w = sizes[rows, 0].astype(np.int64), sizes[rows, 1].astype(np.int64)
    for op in every:  # ops in a nest keep sizes as they are
        for row, reason in op.unfit(h, w):
            reasons.setdefault(int(rows[row]), reason)
        h, w = op.sizes_behind(h, w)
    return reasons
