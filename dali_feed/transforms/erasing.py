"""RandomErasing: a rectangle of random area and aspect ratio (height / width) set to a value, as torchvision does."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dali_feed.draws.philox import uniforms
from dali_feed.errors import TransformError
from dali_feed.transforms.base import Apply, Arrays, Effect, InGraph, Ints, OnPlanes
from dali_feed.transforms.batch_draws import BatchDraws
from dali_feed.transforms.fields import fail
from dali_feed.transforms.geometry import TRIES, Window
from dali_feed.transforms.keys import Key
from dali_feed.transforms.rules import Fill, Range, as_list, check_p, check_range
from dali_feed.transforms.run import Run
from dali_feed.transforms.units import Place

__all__ = ["RandomErasing", "erased", "tried"]


@dataclass(frozen=True, slots=True)
class RandomErasing(Effect):
    """A rectangle of random area and aspect ratio (height / width) set to `value`, in the units pixels have there."""

    p: float = 0.5
    scale: Range = (0.02, 0.33)
    ratio: Range = (0.3, 3.3)
    value: Fill = 0.0

    streams: ClassVar[int] = 2  # whether to erase, and the first try; others are drawn only where needed
    normalized: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_p("RandomErasing", self.p)
        check_range("RandomErasing", "scale", self.scale, 0.0, 1.0)
        check_range("RandomErasing", "ratio", self.ratio, 1e-6, 1e6)

    @classmethod
    def of(cls, transform: Any) -> Self:
        (s0, s1), (r0, r1) = transform.scale, transform.ratio
        found = transform.value
        values = tuple(map(float, found if isinstance(found, Sequence) else (found,)))
        if len(values) not in (1, 3):
            raise fail(transform, "value must be one number, or one for each of three channels", found)
        value = values if len(values) == 3 else values[0]
        return cls(float(transform.p), (float(s0), float(s1)), (float(r0), float(r1)), value)

    def check(self, dtype: str) -> None:
        if dtype == "uint8" and not all(0 <= v < 256 for v in np.atleast_1d(self.value)):
            msg = f"RandomErasing: value must lie in 0..255 where pixels are uint8; found {self.value}"
            raise TransformError(msg)

    def erases(self) -> Fill | None:
        return self.value

    def rows(self, draws: BatchDraws, first: int, h: Ints, w: Ints) -> NDArray[np.int32]:
        """Rectangles y, x, height, width; empty where nothing is erased."""
        return np.stack(erased(self, draws, first, h, w), axis=1).astype(np.int32)

    def image(self, image: Any, row: Any) -> Any:
        """In a copy, since others may use the image's memory."""
        from torchvision.transforms.v2 import functional

        y, x, height, width = row.tolist()
        if not height or not width:
            return image
        return functional.erase_image(image, y, x, height, width, _colour(self.value))

    def on_planes(self, key: Key) -> OnPlanes:
        """In the memory of the batch, which is ours."""

        def apply(planes: Any, arrays: Arrays, slot: int) -> None:
            y, x, height, width = arrays[key][slot].tolist()
            planes[:, y : y + height, x : x + width] = _colour(self.value)

        return apply

    def graph(self, place: Place, k: int, first: int) -> InGraph:
        """The rectangle is empty for an image that is left as it is."""
        fill = list(self._levels(place))

        def build(image: Any, rect: Any) -> Any:
            from nvidia.dali import fn

            return fn.erase(image, anchor=rect[0:2], shape=rect[2:4], axis_names="HW", fill_value=fill)

        def rectangles(run: Run) -> NDArray[np.float32]:
            y, x, h, w = erased(self, run, first, run.h, run.w)
            there = run.on & (h > 0) & (w > 0)
            rows = np.stack([*run.as_shown((y, x, h, w))], axis=1)
            return np.where(there[:, None], rows, 0).astype(np.float32)

        return Apply(k, "rect", "FLOAT", 1, build), rectangles

    def _levels(self, place: Place) -> tuple[float, float, float]:
        """The value in whole levels of 0..255: at most half a level from what torchvision writes into floats."""
        value = np.broadcast_to(self.value, 3)
        levels = np.trunc(value) if place.dtype == "uint8" else np.rint((value - place.bias) / place.scale)
        if not ((levels >= 0) & (levels <= 255)).all():
            self.refuse("needs a value that a pixel of 0..255 can have", self.value)
        red, green, blue = levels.tolist()
        return red, green, blue


@functools.cache
def _colour(value: Fill) -> Any:
    """The value as a tensor that broadcasts over an image."""
    import torch

    return torch.tensor(as_list(value))[:, None, None]


def tried(
    scale: Range, ratio: Range, h: Ints, w: Ints, drawn: NDArray[np.float32], count: Ints | int = 1
) -> tuple[NDArray[np.bool_], Window]:
    """Rectangles of some tries, `drawn` (tries, 4, n) -> (tries, n) each, and which are smaller than the image.

    `count` of them share an area.
    """
    area_u, ratio_u, y_u, x_u = drawn.astype(np.float64).transpose(1, 0, 2)
    low, high = math.log(ratio[0]), math.log(ratio[1])
    area = (h * w) * (scale[0] + (scale[1] - scale[0]) * area_u) / count
    aspect = np.exp(low + (high - low) * ratio_u)
    th = np.rint(np.sqrt(area * aspect)).astype(np.int64)
    tw = np.rint(np.sqrt(area / aspect)).astype(np.int64)
    y, x = ((h - th + 1) * y_u).astype(np.int64), ((w - tw + 1) * x_u).astype(np.int64)
    return (th < h) & (tw < w), (y, x, th, tw)


def erased(op: RandomErasing, run: BatchDraws, first: int, h: Ints, w: Ints) -> Window:
    """Rectangles to erase; empty for samples that are left as they are, or where ten tries found no rectangle.

    Stream `first` says whether to erase, try t draws from stream first + 1 + t. Few rows need more than one try, so
    the nine others are drawn for those alone.
    """
    on = run.draw(first)[0] < op.p
    fits, window = tried(op.scale, op.ratio, h, w, run.draw(first + 1)[None])
    y, x, eh, ew = (np.where(on & fits[0], edge[0], 0) for edge in window)
    todo = np.flatnonzero(on & ~fits[0])
    if len(todo):
        streams = [first + 1 + t for t in range(1, TRIES)]
        drawn = uniforms(run.seed, run.epoch, run.ids[todo], streams).reshape(TRIES - 1, 4, len(todo))
        fits, window = tried(op.scale, op.ratio, h[todo], w[todo], drawn)
        best, some = fits.argmax(axis=0)[None], fits.any(axis=0)
        for edge, later in zip((y, x, eh, ew), window, strict=True):
            edge[todo] = np.where(some, np.take_along_axis(later, best, 0)[0], 0)
    return y, x, eh, ew
