"""RandomErasing: a rectangle of random area and aspect ratio (height / width) set to a value, as torchvision does."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dali_feed.draws import STREAMS_PER_OP, uniforms
from dali_feed.errors import TransformError
from dali_feed.transforms.filters import generator_of, normal, seeds_of
from dali_feed.transforms.op import (
    TRIES,
    Apply,
    Effect,
    InGraph,
    Ints,
    OpRun,
    Place,
    SizedDraws,
    Window,
    inner_numbers,
)
from dali_feed.transforms.settings import Fill, Range, Rule, as_list, one_of, probability, refuse, span, span_of

__all__ = ["NoisyErasing", "RandomErasing", "colour_of", "erased", "tried"]


_RULES: dict[str, Rule] = {"p": probability, "scale": span(0.0, 1.0), "ratio": span(1e-6, 1e6)}


@dataclass(frozen=True, slots=True)
class RandomErasing(Effect):
    """A rectangle of random area and aspect ratio (height / width) set to `value`, in the units pixels have there."""

    p: float = 0.5
    scale: Range = (0.02, 0.33)
    ratio: Range = (0.3, 3.3)
    value: Fill = 0.0

    streams: ClassVar[int] = 2  # whether to erase, and the first try; others are drawn only where needed
    normalized: ClassVar[bool] = True

    rules: ClassVar[Mapping[str, Rule]] = _RULES

    def check(self, dtype: str) -> None:
        if dtype == "uint8" and not all(0 <= v < 256 for v in np.atleast_1d(self.value)):
            msg = f"RandomErasing: value must lie in 0..255 where pixels are uint8; found {self.value}"
            raise TransformError(msg)

    def erases(self) -> Fill | None:
        return self.value

    def rows(self, draws: SizedDraws, first: int) -> NDArray[np.int32]:
        """Rectangles y, x, height, width; empty where nothing is erased."""
        return np.stack(erased(self, draws, first), axis=1).astype(np.int32)

    def image(self, image: Any, row: Any, more: Any) -> Any:
        """In a copy, since others may use the image's memory."""
        from torchvision.transforms.v2 import functional

        y, x, height, width = row.tolist()
        if not height or not width:
            return image
        return functional.erase_image(image, y, x, height, width, colour_of(self.value))

    def graph(self, place: Place, k: int, first: int) -> InGraph:
        """The rectangle is empty for an image that is left as it is."""
        fill = list(self._levels(place))

        def build(image: Any, rect: Any) -> Any:
            from nvidia.dali import fn

            return fn.erase(image, anchor=rect[0:2], shape=rect[2:4], axis_names="HW", fill_value=fill)

        def rectangles(run: OpRun) -> NDArray[np.float32]:
            y, x, h, w = erased(self, run, first)
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
def colour_of(value: Fill | None) -> Any:
    """The value as a tensor that broadcasts over an image; None is 0."""
    import torch

    return torch.tensor(as_list(value or 0.0))[:, None, None]


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


def erased(op: RandomErasing, run: SizedDraws, first: int) -> Window:
    """Rectangles to erase; empty for samples that are left as they are, or where ten tries found no rectangle.

    Stream `first` says whether to erase, try t draws from stream first + 1 + t. Few rows need more than one try, so
    the nine others are drawn for those alone.
    """
    (h, w), on = (run.h, run.w), run.draw(first)[0] < op.p
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


# NoisyErasing: timm's RandomErasing, and torchvision's where the value is random: rectangles of random numbers.


@dataclass(frozen=True, slots=True)
class NoisyErasing(Effect):
    """RandomErasing with `least` to `most` rectangles, which share the area, of float pixels.

    `fill`: "zero", "colour" (a normal number per channel) or "pixel" (one per value).
    """

    p: float = 0.5
    scale: Range = (0.02, 0.33)
    ratio: Range = (0.3, 3.3)
    fill: Literal["zero", "colour", "pixel"] = "pixel"
    least: int = 1
    most: int = 1

    called: ClassVar[str] = "RandomErasing"
    extras: ClassVar[tuple[str, ...]] = ("_seed",)
    normalized: ClassVar[bool] = True
    inner_words: ClassVar[tuple[str, str]] = ("rectangles", "transforms that hold others")

    rules: ClassVar[Mapping[str, Rule]] = _RULES | {
        "fill": one_of("zero", "colour", "pixel", shown='"zero", "colour" or "pixel"')
    }

    def agree(self) -> None:
        if not 1 <= self.least <= self.most:
            refuse("RandomErasing", "needs at least one rectangle, and least <= most", (self.least, self.most))

    def inner(self) -> int:
        return self.most

    def check(self, dtype: str) -> None:
        if dtype == "uint8":
            rule = "RandomErasing: needs float pixels where its value is random"
            msg = f"{rule}; found uint8. Put it after ToTensor or ToDtype"
            raise TransformError(msg)

    def rows(self, draws: SizedDraws, first: int) -> NDArray[np.int32]:
        """Rectangles y, x, height, width of each sample, int32 (n, most, 4); empty ones where there are fewer.

        Stream `first` says whether to erase, and how many; try t of a rectangle draws from the t-th of its own streams.
        """
        u = draws.draw(first)
        on = u[0] < self.p
        count = self.least + (u[1].astype(np.float64) * (self.most - self.least + 1)).astype(np.int64)
        numbers = inner_numbers(self, first // STREAMS_PER_OP, self.most)
        streams = [number * STREAMS_PER_OP + t for number in numbers for t in range(TRIES)]
        drawn = uniforms(draws.seed, draws.epoch, draws.ids, streams).reshape(self.most, TRIES, 4, len(draws.ids))
        out = np.zeros((len(draws.ids), self.most, 4), np.int32)
        for k, each in enumerate(drawn):
            fits, window = tried(self.scale, self.ratio, draws.h, draws.w, each, count)
            best, some = fits.argmax(axis=0)[None], fits.any(axis=0) & on & (k < count)
            for edge, later in enumerate(window):
                out[:, k, edge] = np.where(some, np.take_along_axis(later, best, 0)[0], 0)
        return out

    def more(self, draws: SizedDraws, first: int) -> dict[str, NDArray[Any]]:
        return {"_seed": seeds_of(draws, first)}

    def image(self, image: Any, row: Any, more: Any) -> Any:
        """Fill the rectangles of the row, by a generator whose seed (int64) is the only one of `more`."""
        import torch

        rectangles = [each for each in row.tolist() if each[2] and each[3]]
        if not rectangles:
            return image
        generator, image = generator_of(*more), image.clone()
        for y, x, height, width in rectangles:
            shape = (len(image), height, width) if self.fill == "pixel" else (len(image), 1, 1)
            value = torch.zeros(shape) if self.fill == "zero" else normal(shape, generator, image)
            image[:, y : y + height, x : x + width] = value.to(image)
        return image


def either(transform: Any) -> RandomErasing | NoisyErasing:
    """Torchvision's RandomErasing: v1 says "random", v2 None, where the value is drawn."""
    t = transform
    if t.value is None or (isinstance(t.value, str) and t.value == "random"):
        return NoisyErasing(float(t.p), span_of(t, "scale"), span_of(t, "ratio"))
    return RandomErasing.of(t)


def either_of_timm(transform: Any) -> RandomErasing | NoisyErasing:
    """Timm's RandomErasing."""
    t = transform
    low, high = map(math.exp, t.log_aspect_ratio)
    scale, ratio = (float(t.min_area), float(t.max_area)), (low, high)
    if t.max_count == 1 and not t.rand_color and not t.per_pixel:
        return RandomErasing(float(t.probability), scale, ratio)
    fill: Literal["zero", "colour", "pixel"] = "colour" if t.rand_color else "pixel" if t.per_pixel else "zero"
    return NoisyErasing(float(t.probability), scale, ratio, fill, int(t.min_count), int(t.max_count))
