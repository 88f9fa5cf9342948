"""Resize: to a size, an edge, or a random one of either; and the step that all these share on the host engine."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dali_feed.transforms.op import (
    TRIES,
    Draws,
    Floats,
    Graph,
    Ints,
    Op,
    Sizes,
    Window,
    columns,
    cut,
    cut_follower,
    rectangles,
    torch,
    v2,
)
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


def shorter_edge(h: Ints, w: Ints, size: int | tuple[int, int], max_size: int | None) -> Sizes:
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


class Resizing(Op):
    """Resizes the image, or a window of it, to a size."""

    __slots__ = ()
    names: ClassVar[tuple[str, ...]] = ("crop", "scale")
    moves: ClassVar[bool | None] = True
    interpolation: Interpolation | Drawn
    antialias: Antialias

    def resized(self, h: Ints, w: Ints, u: Any) -> Sizes:
        """Heights and widths of what comes out, by the op's first four random numbers (4, ...)."""
        raise NotImplementedError

    def corners(self) -> Iterable[Any]:
        """Random numbers of which one set gives the smallest image, and one the largest: the ends of what is drawn."""
        return itertools.product((0.0, 1 - 2.0**-24), repeat=4) if self.streams else [()]

    def bounds(self, least: Sizes, most: Sizes) -> tuple[Sizes, Sizes]:
        """An edge grows with itself and shrinks with the other: at the widest and at the highest image."""
        if self.output_size(None) is not None:
            return Op.bounds(self, least, most)
        ends = (least[0], most[1]), (most[0], least[1])
        sizes = [self.resized(h, w, np.array(corner, np.float32)) for h, w in ends for corner in self.corners()]
        high, wide = (np.stack(edges) for edges in zip(*sizes, strict=True))
        return (high.min(axis=0), wide.min(axis=0)), (high.max(axis=0), wide.max(axis=0))

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
        d.h, d.w = self.resized(d.h, d.w, d.u() if self.streams else ())
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
        smooth = not name.startswith("nearest")
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
        if self.interpolation == "nearest":
            self.refuse("knows NEAREST_EXACT", "NEAREST")
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

    def resized(self, h: Ints, w: Ints, u: Any) -> Sizes:
        del u
        return shorter_edge(h, w, self.size, self.max_size)

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

    def resized(self, h: Ints, w: Ints, u: Any) -> Sizes:
        del u
        return np.full_like(h, self.size[0]), np.full_like(w, self.size[1])

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

    def resized(self, h: Ints, w: Ints, u: Any) -> Sizes:
        """By whether to scale, how much, whether to change the ratio, how much."""
        ratio_h, ratio_w = h / self.size[0], w / self.size[1]
        ratio = np.maximum(ratio_h, ratio_w) * self.longest + np.minimum(ratio_h, ratio_w) * (1.0 - self.longest)
        u = u.astype(np.float64)
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


class _RoundedDown(Resizing):
    """Resizes to both edges times a ratio, rounded down; torchvision fails where that gives no pixel."""

    __slots__ = ()

    def output_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return None

    def bounds(self, least: Sizes, most: Sizes) -> tuple[Sizes, Sizes]:
        """One pixel wider where an image's size is not known: h * (480 / h) is 479 for some h between two ends."""
        varied = (least[0] < most[0]) | (least[1] < most[1])
        (low_h, low_w), (high_h, high_w) = Resizing.bounds(self, least, most)
        low_h, low_w = (np.maximum(edge - varied, 1) for edge in (low_h, low_w))
        return (low_h, low_w), (high_h + varied, high_w + varied)


def _by(ratio: NDArray[Any], h: Ints, w: Ints) -> Sizes:
    high, wide = (np.maximum((edge.astype(ratio.dtype) * ratio).astype(np.int64), 1) for edge in (h, w))
    return high, wide


@dataclass(frozen=True, slots=True)
class ScaleJitter(_RoundedDown):
    """As large as fits into `target`, by a random factor in `scale` larger or smaller; the ratio is kept."""

    target: Size
    scale: Range = (0.1, 2.0)
    interpolation: Interpolation = "bilinear"
    antialias: Antialias = True

    streams: ClassVar[int] = 1
    rules: ClassVar[Mapping[str, Rule]] = {"scale": span(0.0, 1e6)}
    theirs: ClassVar[Mapping[str, str]] = {"target": "target_size", "scale": "scale_range"}

    def resized(self, h: Ints, w: Ints, u: Any) -> Sizes:
        """In single precision, as torchvision's; it takes the second number of the target for the height."""
        low, high = self.scale
        factor = np.float32(low) + u[0] * np.float32(high - low)
        return _by(np.minimum(self.target[1] / h, self.target[0] / w).astype(np.float32) * factor, h, w)


@dataclass(frozen=True, slots=True)
class RandomShortestSize(_RoundedDown):
    """The shorter edge to one of `shortest`, equally often; the longer at most `max_size`."""

    shortest: tuple[int, ...]
    max_size: int | None = None
    interpolation: Interpolation = "bilinear"
    antialias: Antialias = True

    streams: ClassVar[int] = 1

    def agree(self) -> None:
        for size in (*self.shortest, *(() if self.max_size is None else (self.max_size,))):
            height_width(self.title, "min_size and max_size", (size, size))
        if not self.shortest:
            refuse(self.title, "min_size must hold a size", self.shortest)

    @classmethod
    def of(cls, transform: Any) -> RandomShortestSize:
        t = transform
        how = READ["Interpolation"](t, "interpolation"), READ["Antialias"](t, "antialias")
        return cls(tuple(map(int, t.min_size)), t.max_size, *how)

    def corners(self) -> Iterable[Any]:
        return [((k + 0.5) / len(self.shortest),) for k in range(len(self.shortest))]

    def resized(self, h: Ints, w: Ints, u: Any) -> Sizes:
        sizes = np.array(self.shortest)[(u[0].astype(np.float64) * len(self.shortest)).astype(np.int64)]
        ratio = sizes / np.minimum(h, w)
        return _by(ratio if self.max_size is None else np.minimum(ratio, self.max_size / np.maximum(h, w)), h, w)
