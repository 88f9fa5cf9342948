"""Resize: to a size, or the shorter edge to one; and the step that all ops which resize share on the host engine."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dali_feed.draws import STREAMS_PER_OP
from dali_feed.transforms.crops import crop, crop_follower, rows
from dali_feed.transforms.keys import Key, numbered
from dali_feed.transforms.op import (
    DRAWN,
    TRIES,
    Arrays,
    Graph,
    Ints,
    OnImage,
    Op,
    OpRun,
    SizedDraws,
    Window,
    resized,
)
from dali_feed.transforms.settings import (
    READ,
    Antialias,
    Drawn,
    Interpolation,
    Range,
    Rule,
    fail,
    height_width,
    pair,
    probability,
    refuse,
    span,
)

__all__ = ["RandomResizedCrop", "Resize", "ResizeKeepRatio", "kept_ratio"]


class Resizing(Op):
    """Resizes the image, or a window of it, to a size."""

    __slots__ = ()
    interpolation: Interpolation | Drawn
    antialias: Antialias

    def sizes(self, run: SizedDraws, first: int, h: Ints, w: Ints) -> tuple[Ints, Ints]:
        """Heights and widths of what comes out, of images of h x w; random numbers begin at stream `first`."""
        raise NotImplementedError

    def window(self, run: SizedDraws, first: int) -> Window:
        """The part of each image that is resized, of an op that begins with a window."""
        raise NotImplementedError

    def least(self) -> tuple[int, int] | None:
        """A size that no image behind it is below, where that is known."""
        return self.size_behind(None)

    def drawn(self) -> Iterable[int]:
        first = range(self.streams)  # further tries of a window: where needed
        return (*first, TRIES) if self.interpolation == "random" else first

    def host_rows(self, run: SizedDraws, n: int) -> None:
        first = n * STREAMS_PER_OP
        if self.begins_with_window():
            y, x, run.h, run.w = self.window(run, first)
            run.arrays[run.crop_key(n)] = rows(y, x, run.h, run.w)
        run.h, run.w = self.sizes(run, first, run.h, run.w)
        run.arrays[numbered("scale", n)] = rows(run.h, run.w, *run.interpolations(self, first))

    def host_steps(self, n: int, *, window: bool = False) -> list[OnImage]:
        scale = Scale(numbered("scale", n), self.interpolation, self.antialias)
        return [crop(numbered("crop", n)), scale] if self.begins_with_window() and not window else [scale]

    def follow_steps(self, n: int) -> list[OnImage]:
        key = numbered("scale", n)

        def scale(given: Any, arrays: Arrays, slot: int) -> Any:
            from torchvision.transforms.v2 import functional

            return functional.resize(given, arrays[key][slot].tolist()[:2])

        return [crop_follower(numbered("crop", n)), scale] if self.begins_with_window() else [scale]

    def in_graph(self, graph: Graph, first: int) -> None:
        def modes(run: OpRun) -> NDArray[np.int32]:
            return run.interpolations(self, first)[0].astype(np.int32)

        graph.resample(
            lambda run, h, w: self.sizes(run, first, h, w),
            self.interpolation,
            antialias=self.antialias,
            fixed=self.size_behind(None),
            least=self.least(),
            choose=(lambda run: self.window(run, first)) if self.begins_with_window() else None,
            modes=modes if self.interpolation == "random" else None,
        )


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
            raise fail(transform, "size must be given; max_size alone is not supported", None)
        return cls._to(transform, transform.size, transform.max_size)

    @classmethod
    def of_preset(cls, transform: Any) -> Resize:
        """From the preset that `weights.transforms()` gives."""
        return cls._to(transform, transform.resize_size, None)

    @classmethod
    def _to(cls, t: Any, size: Any, max_size: int | None) -> Resize:
        if not isinstance(size, int):
            size = int(size[0]) if len(size) == 1 else pair(t, size)
        return cls(size, max_size, READ["Interpolation"](t, "interpolation"), READ["Antialias"](t, "antialias"))

    def size_behind(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return None if isinstance(self.size, int) else self.size

    def sizes_behind(self, h: Ints, w: Ints) -> tuple[Ints, Ints]:
        return resized(h, w, self.size, self.max_size)

    def sizes(self, run: SizedDraws, first: int, h: Ints, w: Ints) -> tuple[Ints, Ints]:
        return self.sizes_behind(h, w)

    def least(self) -> tuple[int, int] | None:
        return (self.size, self.size) if isinstance(self.size, int) and not self.max_size else self.size_behind(None)


@dataclass(frozen=True, slots=True)
class Scale:
    """To the height and width (int32) of row `key`; where the interpolation is random, the third number says which.

    The common case calls torch itself with the operands of torchvision's kernel, because a call of torchvision's
    costs ten microseconds under the interpreter's lock; tests hold the two equal bit for bit.
    """

    key: Key
    interpolation: Interpolation | Drawn
    antialias: bool

    def target(self, arrays: Arrays, slot: int) -> tuple[int, int, str]:
        """Height, width and interpolation of the image in that slot."""
        height, width, *which = arrays[self.key][slot].tolist()
        return height, width, DRAWN[which[0]] if which else self.interpolation

    def __call__(self, image: Any, arrays: Arrays, slot: int) -> Any:
        """One image."""
        import torch

        height, width, name = self.target(arrays, slot)
        channels, h, w = image.shape
        if (height, width) == (h, w):
            return image
        smooth = name != "nearest-exact"
        if image.dtype != torch.uint8 or image.is_cuda or (smooth and not _native_uint8(name)):
            from torchvision.transforms.v2 import InterpolationMode, functional

            mode = InterpolationMode(name)
            return functional.resize_image(image, [height, width], interpolation=mode, antialias=self.antialias)
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


@functools.cache
def _native_uint8(interpolation: str) -> bool:
    """Whether torchvision resizes uint8 directly on this CPU, and not by way of float32."""
    from torchvision.transforms.v2.functional import _geometry

    return bool(_geometry._do_native_uint8_resize_on_cpu(_geometry.InterpolationMode(interpolation)))


# RandomResizedCrop, timm's too: a window of random area and aspect ratio, resized.


@dataclass(frozen=True, slots=True)
class RandomResizedCrop(Resizing):
    """A window of random area and aspect ratio, resized to `size` (height, width)."""

    size: tuple[int, int]
    scale: Range = (0.08, 1.0)
    ratio: Range = (3 / 4, 4 / 3)
    interpolation: Interpolation | Drawn = "bilinear"
    antialias: Antialias = True

    streams: ClassVar[int] = 1
    rules: ClassVar[Mapping[str, Rule]] = {
        "size": height_width,
        "scale": span(0.0, float("inf")),
        "ratio": span(1e-6, 1e6),
    }

    def size_behind(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return self.size

    def begins_with_window(self) -> bool:
        return True

    def window(self, run: SizedDraws, first: int) -> Window:
        return run.windows(self, first)

    def sizes(self, run: SizedDraws, first: int, h: Ints, w: Ints) -> tuple[Ints, Ints]:
        return self.sizes_behind(h, w)


# timm's ResizeKeepRatio: resize the whole image to about a size, and keep its aspect ratio.


@dataclass(frozen=True, slots=True)
class ResizeKeepRatio(Resizing):
    """The shorter edge to that of `size` (height, width), or, by `longest` 1, the longer one; else between them.

    With probability `scale_p` larger or smaller by a factor in `scale` (with `area` a factor of the area that is kept,
    so below 1 enlarges; else a factor of the edges), with `aspect_p` of another ratio by a factor in `aspect`.
    """

    size: tuple[int, int]
    longest: float = 0.0
    interpolation: Interpolation | Drawn = "bilinear"
    scale_p: float = 0.0
    scale: Range = (0.85, 1.05)
    area: bool = False
    aspect_p: float = 0.0
    aspect: Range = (0.9, 1.11)
    antialias: Antialias = True

    streams: ClassVar[int] = 1
    rules: ClassVar[Mapping[str, Rule]] = {
        "size": height_width,
        **dict.fromkeys(("longest", "scale_p", "aspect_p"), probability),
        **dict.fromkeys(("scale", "aspect"), span(1e-3, 1e3)),
    }
    theirs: ClassVar[Mapping[str, str]] = {
        "scale_p": "random_scale_prob",
        "scale": "random_scale_range",
        "area": "random_scale_area",
        "aspect_p": "random_aspect_prob",
        "aspect": "random_aspect_range",
    }

    def size_behind(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return None

    def sizes_behind(self, h: Ints, w: Ints) -> tuple[Ints, Ints]:
        return kept_ratio(self, h, w, None)

    def sizes(self, run: SizedDraws, first: int, h: Ints, w: Ints) -> tuple[Ints, Ints]:
        return kept_ratio(self, h, w, run.draw(first))


def kept_ratio(op: ResizeKeepRatio, h: Ints, w: Ints, drawn: NDArray[np.float32] | None) -> tuple[Ints, Ints]:
    """New heights and widths; `drawn` (4, n): whether to scale, by how much, whether to change the ratio, by how much.

    None: neither is done.
    """
    ratio_h, ratio_w = h / op.size[0], w / op.size[1]
    ratio = np.maximum(ratio_h, ratio_w) * op.longest + np.minimum(ratio_h, ratio_w) * (1.0 - op.longest)
    factor_h, factor_w = np.ones(len(h)), np.ones(len(h))
    if drawn is not None:
        u = drawn.astype(np.float64)
        scale = op.scale[0] + (op.scale[1] - op.scale[0]) * u[1]
        scale = 1.0 / np.sqrt(scale) if op.area else scale
        scale = np.where(u[0] < op.scale_p, scale, 1.0)
        low, high = math.log(op.aspect[0]), math.log(op.aspect[1])
        squeeze = np.where(u[2] < op.aspect_p, np.sqrt(np.exp(low + (high - low) * u[3])), 1.0)
        factor_h, factor_w = scale / squeeze, scale * squeeze
    sizes = (np.maximum(np.rint(x * f / ratio), 1) for x, f in ((h, factor_h), (w, factor_w)))
    high_out, wide_out = (size.astype(np.int64) for size in sizes)
    return high_out, wide_out
