"""RandomResizedCrop: a window of random area and aspect ratio, resized."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dali_feed.draws.streams import STREAMS_PER_OP
from dali_feed.transforms import follow
from dali_feed.transforms.base import OnImage, Op
from dali_feed.transforms.edges import crop, rows
from dali_feed.transforms.fields import antialias_of, interpolation_of, maybe_drawn, pair
from dali_feed.transforms.geometry import TRIES, resized
from dali_feed.transforms.graph import Graph
from dali_feed.transforms.keys import numbered
from dali_feed.transforms.resize import Scale
from dali_feed.transforms.rules import Drawn, Interpolation, Range, check_range, check_size
from dali_feed.transforms.run import SizedDraws

__all__ = ["RandomResizedCrop"]


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
