"""NoisyErasing: timm's RandomErasing, and torchvision's where the value is random: rectangles of random numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from dali_feed.draws.philox import uniforms
from dali_feed.draws.streams import STREAMS_PER_OP
from dali_feed.errors import TransformError
from dali_feed.transforms.base import Arrays, Effect, Ints, OnImage
from dali_feed.transforms.batch_draws import BatchDraws
from dali_feed.transforms.erasing import RandomErasing, tried
from dali_feed.transforms.geometry import TRIES
from dali_feed.transforms.keys import Key, further
from dali_feed.transforms.noise import generator_of, normal, seeds_of
from dali_feed.transforms.numbering import inner_numbers
from dali_feed.transforms.rules import Range, check_p, check_range, refuse

__all__ = ["NoisyErasing", "either", "either_of_timm"]


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

    normalized: ClassVar[bool] = True
    inner_words: ClassVar[tuple[str, str]] = ("rectangles", "transforms that hold others")

    def __post_init__(self) -> None:
        check_p("RandomErasing", self.p)
        check_range("RandomErasing", "scale", self.scale, 0.0, 1.0)
        check_range("RandomErasing", "ratio", self.ratio, 1e-6, 1e6)
        if self.fill not in ("zero", "colour", "pixel"):
            refuse("RandomErasing", 'fill must be "zero", "colour" or "pixel"', self.fill)
        if not 1 <= self.least <= self.most:
            refuse("RandomErasing", "needs at least one rectangle, and least <= most", (self.least, self.most))

    @classmethod
    def of(cls, transform: Any) -> Self:
        (s0, s1), (r0, r1) = transform.scale, transform.ratio
        return cls(float(transform.p), (float(s0), float(s1)), (float(r0), float(r1)), "pixel")

    def inner(self) -> int:
        return self.most

    def check(self, dtype: str) -> None:
        if dtype == "uint8":
            rule = "RandomErasing: needs float pixels where its value is random"
            msg = f"{rule}; found uint8. Put it after ToTensor or ToDtype"
            raise TransformError(msg)

    def rows(self, draws: BatchDraws, first: int, h: Ints, w: Ints) -> NDArray[np.int32]:
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
            fits, window = tried(self.scale, self.ratio, h, w, each, count)
            best, some = fits.argmax(axis=0)[None], fits.any(axis=0) & on & (k < count)
            for edge, later in enumerate(window):
                out[:, k, edge] = np.where(some, np.take_along_axis(later, best, 0)[0], 0)
        return out

    def more(self, draws: BatchDraws, first: int) -> dict[str, NDArray[Any]]:
        return {"_seed": seeds_of(draws, first)}

    def on_image(self, key: Key) -> OnImage:
        """Fill the rectangles of row `key`, by a generator whose seed is row `key` + "_seed" (int64)."""
        seeds = further(key, "_seed")

        def apply(image: Any, arrays: Arrays, slot: int) -> Any:
            rectangles = [row for row in arrays[key][slot].tolist() if row[2] and row[3]]
            return self._erased(image, rectangles, generator_of(arrays[seeds][slot])) if rectangles else image

        return apply

    def _erased(self, image: Any, rectangles: list[list[int]], generator: Any) -> Any:
        import torch

        image, channels = image.clone(), image.shape[0]
        for y, x, height, width in rectangles:
            shape = (channels, height, width) if self.fill == "pixel" else (channels, 1, 1)
            value = torch.zeros(shape) if self.fill == "zero" else normal(shape, generator, image)
            image[:, y : y + height, x : x + width] = value.to(image)
        return image


def either(transform: Any) -> RandomErasing | NoisyErasing:
    """Torchvision's RandomErasing: v1 says "random", v2 None, where the value is drawn."""
    random = transform.value is None or (isinstance(transform.value, str) and transform.value == "random")
    return NoisyErasing.of(transform) if random else RandomErasing.of(transform)


def either_of_timm(transform: Any) -> RandomErasing | NoisyErasing:
    """Timm's RandomErasing."""
    t = transform
    low, high = map(math.exp, t.log_aspect_ratio)
    scale, ratio = (float(t.min_area), float(t.max_area)), (low, high)
    if t.max_count == 1 and not t.rand_color and not t.per_pixel:
        return RandomErasing(float(t.probability), scale, ratio)
    fill: Literal["zero", "colour", "pixel"] = "colour" if t.rand_color else "pixel" if t.per_pixel else "zero"
    return NoisyErasing(float(t.probability), scale, ratio, fill, int(t.min_count), int(t.max_count))
