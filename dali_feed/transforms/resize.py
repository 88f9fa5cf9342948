"""Resize: to a size, or the shorter edge to one; and the step that all ops which resize share on the host engine."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dali_feed.transforms.crops import cut, cut_follower
from dali_feed.transforms.op import TRIES, Draws, Floats, Graph, Ints, Op, Sizes, Window, columns, rectangles, torch, v2
from dali_feed.transforms.settings import (
    DRAWN,
    READ,
    Antialias,
    Drawn,
    Interpolation,
    Probability,
    Range,
    Rule,
    Size,
    height_width,
    pair,
    refuse,
    span,
)


def resized(h: Ints, w: Ints, size: int | tuple[int, int], max_size: int | None) -> Sizes:
    """Output heights and widths of Resize: both edges, or the shorter one with the ratio kept (rounded down)."""
    if not isinstance(size, int):
        return np.full_like(h, size[0]), np.full_like(w, size[1])
    short, long = np.minimum(h, w), np.maximum(h, w)
    new_long = np.floor(size * long / short).astype(np.int64)
    new_short = np.full_like(short, size)
    if max_size is not None:
        over = new_long > max_size
        fitted = np.floor(max_size * new_short / new_long).astype(np.int64)
        new_short = np.where(over, np.maximum(fitted, 1), new_short)  # torchvision computes 0 and then fails
        new_long = np.where(over, max_size, new_long)
    return np.where(h <= w, new_short, new_long), np.where(h <= w, new_long, new_short)


def _smallest_and_largest(sizes: Iterable[Sizes]) -> tuple[Sizes, Sizes]:
    h, w = (np.stack(edges) for edges in zip(*sizes, strict=True))
    return (h.min(axis=0), w.min(axis=0)), (h.max(axis=0), w.max(axis=0))


class Resizing(Op):
    """Resizes the image, or a window of it, to a size."""

    __slots__ = ()
    names: ClassVar[tuple[str, ...]] = ("crop", "scale")
    moves: ClassVar[bool | None] = True
    interpolation: Interpolation | Drawn
    antialias: Antialias

    def sizes(self, d: Draws) -> Sizes:
        """Heights and widths of what comes out."""
        raise NotImplementedError

    def window(self, d: Draws) -> Window:
        """The part of each image that is resized, of an op that begins with a window."""
        raise NotImplementedError

    def covered(self) -> tuple[int, int] | None:
        """A size that no image behind it is below, where that is known."""
        return self.output_size(None)

    def drawn(self) -> Iterable[int]:
        first = range(self.streams)  # further tries of a window: where needed
        return (*first, TRIES) if self.interpolation == "random" else first

    def draw(self, d: Draws) -> Mapping[str, NDArray[Any]]:
        """int32 (n, ...): a window; height, width and, where that is random, which of DRAWN the interpolation is."""
        rows, which = {}, []
        if self.cuts:
            rows["crop"] = columns(*self.window(d))
        if self.interpolation == "random":
            which = [(d.u(TRIES)[0].astype(np.float64) * len(DRAWN)).astype(np.int64)]
        d.h, d.w = self.sizes(d)
        return {**rows, "scale": columns(d.h, d.w, *which)}

    def image(self, image: Any, window: Any, scale: Any) -> Any:
        """Resized, by a call of torch itself with the operands of torchvision's kernel where it is the common case.

        A call of torchvision's costs ten microseconds under the interpreter's lock; tests hold the two equal bit for
        bit.
        """
        height, width, *which = scale.tolist()
        name = DRAWN[which[0]] if which else self.interpolation
        image = cut(image, window)
        channels, h, w = image.shape
        if (height, width) == (h, w):
            return image
        smooth = name != "nearest-exact"
        if image.dtype != torch.uint8 or image.is_cuda or (smooth and not _native_uint8(name)):
            mode = v2.InterpolationMode(name)
            return v2.functional.resize_image(image, [height, width], interpolation=mode, antialias=self.antialias)
        across, down, right = image.stride()
        if (across, right) == (1, channels):  # as decoded, or a window of it: say so, or torch copies the output
            batch = image.as_strided((1, channels, h, w), (h * down, 1, down, channels))
        else:
            batch = image[None]
        return torch.nn.functional.interpolate(
            batch,
            size=[height, width],
            mode=name,
            align_corners=False if smooth else None,
            antialias=self.antialias and smooth,
        )[0]

    def follow(self, value: Any, window: Any, scale: Any) -> Any:
        return v2.functional.resize(cut_follower(value, window), scale.tolist()[:2])

    def dali(self, graph: Graph) -> None:
        graph.resize(
            self.interpolation,
            antialias=self.antialias,
            fixed=self.output_size(None),
            covered=self.covered(),
            window=self.cuts,
        )


@functools.cache
def _native_uint8(interpolation: str) -> bool:
    """Whether torchvision resizes uint8 directly on this CPU, and not by way of float32."""
    from torchvision.transforms.v2.functional import _geometry

    return bool(_geometry._do_native_uint8_resize_on_cpu(_geometry.InterpolationMode(interpolation)))


@dataclass(frozen=True, slots=True)
class Resize(Resizing):
    """To `size` (height, width), or, where it is an int, the shorter edge to it; the longer at most `max_size`."""

    size: int | tuple[int, int]
    max_size: int | None = None
    interpolation: Interpolation = "bilinear"
    antialias: Antialias = True

    def agree(self) -> None:
        height_width("Resize", "size", (self.size, self.size) if isinstance(self.size, int) else self.size)
        if self.max_size is not None and not isinstance(self.size, int):
            refuse("Resize", "max_size needs an int size", self.max_size)
        if self.max_size is not None and isinstance(self.size, int) and self.max_size <= self.size:
            refuse("Resize", "max_size must be larger than size, the shorter edge", self.max_size)

    @classmethod
    def of(cls, transform: Any) -> Resize:
        if transform.size is None:
            refuse(transform, "size must be given; max_size alone is not supported", None)
        return cls.to(transform, transform.size, transform.max_size)

    @classmethod
    def to(cls, t: Any, size: Any, max_size: int | None = None) -> Resize:
        """To that size, else as a transform or a preset of weights says."""
        if not isinstance(size, int):
            size = int(size[0]) if len(size) == 1 else pair(t, size)
        return cls(size, max_size, READ["Interpolation"](t, "interpolation"), READ["Antialias"](t, "antialias"))

    def output_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return None if isinstance(self.size, int) else self.size

    def bounds(self, least: Sizes, most: Sizes) -> tuple[Sizes, Sizes]:
        """An edge grows with itself and shrinks with the other: bounds are at the widest and at the highest image."""
        ends = (least[0], most[1]), (most[0], least[1])
        return _smallest_and_largest(resized(h, w, self.size, self.max_size) for h, w in ends)

    def sizes(self, d: Draws) -> Sizes:
        return resized(d.h, d.w, self.size, self.max_size)

    def covered(self) -> tuple[int, int] | None:
        return (self.size, self.size) if isinstance(self.size, int) and not self.max_size else self.output_size(None)


@dataclass(frozen=True, slots=True)
class RandomResizedCrop(Resizing):
    """A window of random area and aspect ratio, resized to `size` (height, width); timm's too."""

    size: Size
    scale: Range = (0.08, 1.0)
    ratio: Range = (3 / 4, 4 / 3)
    interpolation: Interpolation | Drawn = "bilinear"
    antialias: Antialias = True

    cuts: ClassVar[bool] = True
    streams: ClassVar[int] = 1
    rules: ClassVar[Mapping[str, Rule]] = {"scale": span(0.0, float("inf")), "ratio": span(1e-6, 1e6)}

    def output_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return self.size

    def sizes(self, d: Draws) -> Sizes:
        return np.full_like(d.h, self.size[0]), np.full_like(d.w, self.size[1])

    def window(self, d: Draws) -> Window:
        """Of ten tries of (area, ratio), each with a place of its own, the first that fits; else the middle."""

        def attempt(u: Floats, h: Ints, w: Ints) -> tuple[NDArray[np.bool_], Window]:
            y, x, th, tw = rectangles(u, h, w, self.scale, self.ratio, tall=False)
            return (tw > 0) & (tw <= w) & (th > 0) & (th <= h), (y, x, th, tw)

        fits, window = d.tried(0, attempt)
        if fits.all():
            y, x, h, w = window
            return y, x, h, w
        low, high = self.ratio
        shape = d.w / d.h
        # At least one pixel: torchvision's rounding gives none for a line of pixels under an extreme ratio, and fails.
        wide = np.where(shape > high, np.maximum(np.rint(d.h * high).astype(np.int64), 1), d.w)
        tall = np.where(shape < low, np.maximum(np.rint(d.w / low).astype(np.int64), 1), d.h)
        middle = (d.h - tall) // 2, (d.w - wide) // 2, tall, wide
        y, x, h, w = (np.where(fits, edge, fallen) for edge, fallen in zip(window, middle, strict=True))
        return y, x, h, w


@dataclass(frozen=True, slots=True)
class ResizeKeepRatio(Resizing):
    """timm's: the shorter edge to that of `size` (height, width), by `longest` 1 the longer one, else between them.

    With probability `scale_p` larger or smaller by a factor in `scale` (with `area` a factor of the area that is kept,
    so below 1 enlarges; else a factor of the edges), with `aspect_p` of another ratio by a factor in `aspect`.
    """

    size: Size
    longest: Probability = 0.0
    interpolation: Interpolation | Drawn = "bilinear"
    scale_p: Probability = 0.0
    scale: Range = (0.85, 1.05)
    area: bool = False
    aspect_p: Probability = 0.0
    aspect: Range = (0.9, 1.11)
    antialias: Antialias = True

    streams: ClassVar[int] = 1
    rules: ClassVar[Mapping[str, Rule]] = dict.fromkeys(("scale", "aspect"), span(1e-3, 1e3))
    theirs: ClassVar[Mapping[str, str]] = {
        "scale_p": "random_scale_prob",
        "scale": "random_scale_range",
        "area": "random_scale_area",
        "aspect_p": "random_aspect_prob",
        "aspect": "random_aspect_range",
    }

    def output_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return None

    def kept(self, h: Ints, w: Ints, drawn: Any) -> Sizes:
        """New sizes; `drawn` (4, ...): whether to scale, how much, whether to change the ratio, how much."""
        ratio_h, ratio_w = h / self.size[0], w / self.size[1]
        ratio = np.maximum(ratio_h, ratio_w) * self.longest + np.minimum(ratio_h, ratio_w) * (1.0 - self.longest)
        u = np.asarray(drawn, np.float64)
        scale = self.scale[0] + (self.scale[1] - self.scale[0]) * u[1]
        scale = 1.0 / np.sqrt(scale) if self.area else scale
        scale = np.where(u[0] < self.scale_p, scale, 1.0)
        low, high = math.log(self.aspect[0]), math.log(self.aspect[1])
        squeeze = np.where(u[2] < self.aspect_p, np.sqrt(np.exp(low + (high - low) * u[3])), 1.0)
        factors = scale / squeeze, scale * squeeze
        high_out, wide_out = (
            np.maximum(np.rint(x * f / ratio), 1).astype(np.int64) for x, f in zip((h, w), factors, strict=True)
        )
        return high_out, wide_out

    def bounds(self, least: Sizes, most: Sizes) -> tuple[Sizes, Sizes]:
        """An edge grows with itself and shrinks with the other; factors are extreme at the ends of their ranges."""
        ends = (least[0], most[1]), (most[0], least[1])
        corners = list(itertools.product((0.0, 1 - 2.0**-24), repeat=4))  # the least and the largest that is drawn
        return _smallest_and_largest(self.kept(h, w, corner) for h, w in ends for corner in corners)

    def sizes(self, d: Draws) -> Sizes:
        return self.kept(d.h, d.w, d.u())
