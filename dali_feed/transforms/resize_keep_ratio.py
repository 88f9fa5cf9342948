"""timm's ResizeKeepRatio: resize the whole image to about a size, and keep its aspect ratio."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dali_feed.draws.streams import STREAMS_PER_OP
from dali_feed.transforms import follow
from dali_feed.transforms.base import Ints, OnImage, Op
from dali_feed.transforms.edges import rows
from dali_feed.transforms.fields import maybe_drawn, pair
from dali_feed.transforms.geometry import TRIES
from dali_feed.transforms.graph import Graph
from dali_feed.transforms.keys import numbered
from dali_feed.transforms.resize import Scale
from dali_feed.transforms.rules import Range, check_p, check_range, check_size
from dali_feed.transforms.run import SizedDraws

__all__ = ["ResizeKeepRatio", "kept_ratio"]


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
