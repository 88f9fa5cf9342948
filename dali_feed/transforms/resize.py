"""Resize: to a size, or the shorter edge to one; and the step that all ops which resize share on the host engine."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dali_feed.draws import STREAMS_PER_OP
from dali_feed.transforms import follow
from dali_feed.transforms.crops import crop, rows
from dali_feed.transforms.keys import Key, numbered
from dali_feed.transforms.op import DRAWN, TRIES, Arrays, Graph, Ints, OnImage, Op, SizedDraws, resized
from dali_feed.transforms.settings import (
    Drawn,
    Interpolation,
    Range,
    antialias_of,
    check_p,
    check_range,
    check_size,
    fail,
    interpolation_of,
    maybe_drawn,
    pair,
    refuse,
)

__all__ = ["RandomResizedCrop", "Resize", "ResizeKeepRatio", "kept_ratio"]


@dataclass(frozen=True, slots=True)
class Resize(Op):
    """To `size` (height, width), or, where it is an int, the shorter edge to it; the longer at most `max_size`."""

    size: int | tuple[int, int]
    max_size: int | None = None
    interpolation: Interpolation = "bilinear"
    antialias: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.size, int):
            check_size("Resize", (self.size, self.size))
            if self.max_size is not None and self.max_size <= self.size:
                refuse("Resize", "max_size must be larger than size, the shorter edge", self.max_size)
        else:
            check_size("Resize", self.size)
            if self.max_size is not None:
                refuse("Resize", "max_size needs an int size", self.max_size)

    @classmethod
    def of(cls, transform: Any) -> Resize:
        t, size = transform, transform.size
        if size is None:
            raise fail(t, "size must be given; max_size alone is not supported", size)
        if not isinstance(size, int):
            size = int(size[0]) if len(size) == 1 else pair(t, size)
        return cls(size, t.max_size, interpolation_of(t), antialias_of(t))

    @classmethod
    def of_preset(cls, transform: Any) -> Resize:
        """From the preset that `weights.transforms()` gives."""
        t = transform
        size = int(t.resize_size[0]) if len(t.resize_size) == 1 else pair(t, t.resize_size)
        return cls(size, None, interpolation_of(t), antialias_of(t))

    def size_behind(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return None if isinstance(self.size, int) else self.size

    def sizes_behind(self, h: Ints, w: Ints) -> tuple[Ints, Ints]:
        return resized(h, w, self.size, self.max_size)

    def host_rows(self, run: SizedDraws, n: int) -> None:
        run.h, run.w = resized(run.h, run.w, self.size, self.max_size)
        run.arrays[numbered("scale", n)] = rows(run.h, run.w)

    def host_steps(self, n: int, *, window: bool = False) -> list[OnImage]:
        return [Scale(numbered("scale", n), self.interpolation, self.antialias)]

    def follow_steps(self, n: int) -> list[OnImage]:
        return [follow.scale(numbered("scale", n))]

    def in_graph(self, graph: Graph, first: int) -> None:
        size = self.size
        fixed = None if isinstance(size, int) else size
        least = fixed or (None if self.max_size or not isinstance(size, int) else (size, size))
        graph.resample(
            lambda _, h, w: resized(h, w, size, self.max_size),
            self.interpolation,
            antialias=self.antialias,
            fixed=fixed,
            least=least,
        )


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
        if (across, right) == (
            1,
            channels,
        ):  # as decoded, or a window of it: say so, or torch copies the output
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


# RandomResizedCrop: a window of random area and aspect ratio, resized.


@dataclass(frozen=True, slots=True)
class RandomResizedCrop(Op):
    """A window of random area and aspect ratio, resized to `size` (height, width)."""

    size: tuple[int, int]
    scale: Range = (0.08, 1.0)
    ratio: Range = (3 / 4, 4 / 3)
    interpolation: Interpolation | Drawn = "bilinear"
    antialias: bool = True

    def __post_init__(self) -> None:
        check_size("RandomResizedCrop", self.size)
        check_range("RandomResizedCrop", "scale", self.scale, 0.0, float("inf"))
        check_range("RandomResizedCrop", "ratio", self.ratio, 1e-6, 1e6)

    @classmethod
    def of(cls, transform: Any) -> RandomResizedCrop:
        t = transform
        (s0, s1), (r0, r1) = t.scale, t.ratio
        scale, ratio = (float(s0), float(s1)), (float(r0), float(r1))
        return cls(pair(t, t.size), scale, ratio, interpolation_of(t), antialias_of(t))

    @classmethod
    def of_timm(cls, transform: Any) -> RandomResizedCrop:
        """From timm's RandomResizedCropAndInterpolation."""
        t = transform
        (s0, s1), (r0, r1) = t.scale, t.ratio
        return cls(pair(t, t.size), (float(s0), float(s1)), (float(r0), float(r1)), maybe_drawn(t))

    def drawn(self) -> Iterable[int]:
        return (0, TRIES) if self.interpolation == "random" else range(1)  # further tries: where needed

    def size_behind(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return self.size

    def begins_with_window(self) -> bool:
        return True

    def host_rows(self, run: SizedDraws, n: int) -> None:
        first = n * STREAMS_PER_OP
        run.arrays[run.crop_key(n)] = rows(*run.windows(self, first, run.h, run.w))
        run.h, run.w = self.sizes_behind(run.h, run.w)
        run.arrays[numbered("scale", n)] = rows(run.h, run.w, *run.interpolations(self, first))

    def host_steps(self, n: int, *, window: bool = False) -> list[OnImage]:
        scale = Scale(numbered("scale", n), self.interpolation, self.antialias)
        return [scale] if window else [crop(numbered("crop", n)), scale]

    def follow_steps(self, n: int) -> list[OnImage]:
        return [follow.crop(numbered("crop", n)), follow.scale(numbered("scale", n))]

    def in_graph(self, graph: Graph, first: int) -> None:
        drawn = self.interpolation == "random"
        graph.resample(
            lambda _, h, w: resized(h, w, self.size, None),
            self.interpolation,
            antialias=self.antialias,
            fixed=self.size,
            least=self.size,
            choose=lambda run: run.windows(self, first, run.h, run.w),
            modes=(lambda run: run.interpolations(self, first)[0].astype(np.int32)) if drawn else None,
        )


# timm's ResizeKeepRatio: resize the whole image to about a size, and keep its aspect ratio.


@dataclass(frozen=True, slots=True)
class ResizeKeepRatio(Op):
    """The shorter edge to that of `size` (height, width), or, by `longest` 1, the longer one; else between them.

    With probability `scale_p` larger or smaller by a factor in `scale` (with `area` a factor of the area that is kept,
    so below 1 enlarges; else a factor of the edges), with `aspect_p` of another ratio by a factor in `aspect`.
    """

    size: tuple[int, int]
    longest: float = 0.0
    interpolation: Literal["nearest-exact", "bilinear", "bicubic", "random"] = "bilinear"
    scale_p: float = 0.0
    scale: Range = (0.85, 1.05)
    area: bool = False
    aspect_p: float = 0.0
    aspect: Range = (0.9, 1.11)

    def __post_init__(self) -> None:
        check_size("ResizeKeepRatio", self.size)
        check_p("ResizeKeepRatio", self.longest)
        check_p("ResizeKeepRatio", self.scale_p)
        check_p("ResizeKeepRatio", self.aspect_p)
        check_range("ResizeKeepRatio", "random_scale_range", self.scale, 1e-3, 1e3)
        check_range("ResizeKeepRatio", "random_aspect_range", self.aspect, 1e-3, 1e3)

    @classmethod
    def of(cls, transform: Any) -> ResizeKeepRatio:
        t = transform
        (s0, s1), (a0, a1) = t.random_scale_range, t.random_aspect_range
        return cls(
            pair(t, t.size),
            float(t.longest),
            maybe_drawn(t),
            float(t.random_scale_prob),
            (float(s0), float(s1)),
            bool(t.random_scale_area),
            float(t.random_aspect_prob),
            (float(a0), float(a1)),
        )

    def drawn(self) -> Iterable[int]:
        return (0, TRIES) if self.interpolation == "random" else range(1)

    def size_behind(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return None

    def sizes_behind(self, h: Ints, w: Ints) -> tuple[Ints, Ints]:
        return kept_ratio(self, h, w, None)

    def host_rows(self, run: SizedDraws, n: int) -> None:
        first = n * STREAMS_PER_OP
        run.h, run.w = kept_ratio(self, run.h, run.w, run.draw(first))
        run.arrays[numbered("scale", n)] = rows(run.h, run.w, *run.interpolations(self, first))

    def host_steps(self, n: int, *, window: bool = False) -> list[OnImage]:
        return [Scale(numbered("scale", n), self.interpolation, antialias=True)]

    def follow_steps(self, n: int) -> list[OnImage]:
        return [follow.scale(numbered("scale", n))]

    def in_graph(self, graph: Graph, first: int) -> None:
        drawn = self.interpolation == "random"
        graph.resample(
            lambda run, h, w: kept_ratio(self, h, w, run.draw(first)),
            self.interpolation,
            modes=(lambda run: run.interpolations(self, first)[0].astype(np.int32)) if drawn else None,
        )


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
