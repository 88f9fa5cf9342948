"""Resize: to a size, or the shorter edge to one; and the step that all ops which resize share on the host engine."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from dali_feed.transforms import follow
from dali_feed.transforms.base import Arrays, Ints, OnImage, Op
from dali_feed.transforms.batch_draws import DRAWN
from dali_feed.transforms.edges import rows
from dali_feed.transforms.fields import antialias_of, fail, interpolation_of, pair
from dali_feed.transforms.geometry import resized
from dali_feed.transforms.graph import Graph
from dali_feed.transforms.keys import Key, numbered
from dali_feed.transforms.rules import Drawn, Interpolation, check_size, refuse
from dali_feed.transforms.run import SizedDraws

__all__ = ["Resize", "Scale"]


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
