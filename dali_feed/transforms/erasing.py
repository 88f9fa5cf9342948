"""RandomErasing: a rectangle of random area and aspect ratio (height / width) set to a value, as torchvision does."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dali_feed.errors import TransformError
from dali_feed.transforms.filters import generator_of, normal, seeds_of
from dali_feed.transforms.op import (
    TRIES,
    Draws,
    Effect,
    Floats,
    Graph,
    Ints,
    Place,
    Window,
    columns,
    fn,
    rectangles,
    torch,
    v2,
)
from dali_feed.transforms.settings import Fill, Probability, Range, Rule, as_list, refuse, span, span_of

_RULES: dict[str, Rule] = {"scale": span(0.0, 1.0), "ratio": span(1e-6, 1e6)}


@dataclass(frozen=True, slots=True)
class RandomErasing(Effect):
    """A rectangle of random area and aspect ratio (height / width) set to `value`, in the units pixels have there."""

    p: Probability = 0.5
    scale: Range = (0.02, 0.33)
    ratio: Range = (0.3, 3.3)
    value: Fill = 0.0

    streams: ClassVar[int] = 2  # whether to erase, and the first try; others are drawn only where needed
    normalized: ClassVar[bool] = True

    rules: ClassVar[Mapping[str, Rule]] = _RULES

    def check(self, dtype: str) -> None:
        if dtype == "uint8" and not all(0 <= v < 256 for v in np.atleast_1d(self.value)):
            refuse("RandomErasing", "value must lie in 0..255 where pixels are uint8", self.value)

    def erases(self) -> Fill | None:
        return self.value

    def draw(self, d: Draws) -> Mapping[str, NDArray[Any]]:
        """Rectangles y, x, height, width; empty where nothing is erased, or ten tries found none."""
        on = d.u()[0] < self.p
        fits, window = d.tried(1, functools.partial(smaller, self.scale, self.ratio), on)
        return {"effect": columns(*(np.where(on & fits, edge, 0) for edge in window))}

    def image(self, image: Any, row: Any) -> Any:
        """In a copy, since others may use the image's memory."""
        y, x, height, width = row.tolist()
        if not height or not width:
            return image
        return v2.functional.erase_image(image, y, x, height, width, colour_of(self.value))

    def dali(self, graph: Graph) -> None:
        """The rectangle is empty for an image that is left as it is."""
        fill = list(self._levels(graph.place))

        def build(image: Any, rect: Any) -> Any:
            return fn.erase(image, anchor=rect[0:2], shape=rect[2:4], axis_names="HW", fill_value=fill)

        def rects(fold: Any, windows: NDArray[np.int32]) -> NDArray[np.float32]:
            there = fold.on & (windows[:, 2:] > 0).all(axis=1)
            return np.where(there[:, None], columns(*fold.as_shown(windows)), 0).astype(np.float32)

        graph.step("rect", "FLOAT", 1, build, rects)

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
    return torch.tensor(as_list(value or 0.0))[:, None, None]


def smaller(
    scale: Range, ratio: Range, u: Floats, h: Ints, w: Ints, count: Ints | int = 1
) -> tuple[NDArray[np.bool_], Window]:
    """Rectangles of some tries, and which are smaller than the image; `count` of them share an area."""
    y, x, th, tw = rectangles(u, h, w, scale, ratio, tall=True, count=count)
    return (th < h) & (tw < w), (y, x, th, tw)


# NoisyErasing: timm's RandomErasing, and torchvision's where the value is random: rectangles of random numbers.


@dataclass(frozen=True, slots=True)
class NoisyErasing(Effect):
    """RandomErasing with `least` to `most` rectangles, which share the area, of float pixels.

    `fill`: "zero", "colour" (a normal number per channel) or "pixel" (one per value).
    """

    p: Probability = 0.5
    scale: Range = (0.02, 0.33)
    ratio: Range = (0.3, 3.3)
    fill: Literal["zero", "colour", "pixel"] = "pixel"
    least: int = 1
    most: int = 1

    called: ClassVar[str] = "RandomErasing"
    names: ClassVar[tuple[str, ...]] = ("effect", "effect_seed")
    normalized: ClassVar[bool] = True

    rules: ClassVar[Mapping[str, Rule]] = _RULES

    def agree(self) -> None:
        if not 1 <= self.least <= self.most:
            refuse("RandomErasing", "needs at least one rectangle, and least <= most", (self.least, self.most))

    def inner(self) -> int:
        return self.most

    def check(self, dtype: str) -> None:
        if dtype == "uint8":
            rule = "RandomErasing: needs float pixels where its value is random"
            raise TransformError(f"{rule}; found uint8. Put it after ToTensor or ToDtype")

    def draw(self, d: Draws) -> Mapping[str, NDArray[Any]]:
        """Rectangles y, x, height, width of each sample, int32 (n, most, 4); empty ones where there are fewer.

        Stream 0 says whether to erase, and how many; try t of a rectangle draws from the t-th of its own streams.
        """
        u = d.u()
        on = u[0] < self.p
        count = self.least + (u[1].astype(np.float64) * (self.most - self.least + 1)).astype(np.int64)
        out = np.zeros((len(d.ids), self.most, 4), np.int32)
        for k, first in enumerate(d.parts(self)):
            drawn = d.later(range(first, first + TRIES)).astype(np.float64)
            fits, window = smaller(self.scale, self.ratio, drawn, d.h, d.w, count)
            best, some = fits.argmax(axis=0)[None], fits.any(axis=0) & on & (k < count)
            for edge, later in enumerate(window):
                out[:, k, edge] = np.where(some, np.take_along_axis(later, best, 0)[0], 0)
        return {"effect": out, "effect_seed": seeds_of(d)}

    def image(self, image: Any, row: Any, seed: Any) -> Any:
        """Fill the rectangles of the row, by a generator of that seed (int64)."""
        erased = [each for each in row.tolist() if each[2] and each[3]]
        if not erased:
            return image
        generator, image = generator_of(seed), image.clone()
        for y, x, height, width in erased:
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
