"""Pad: pixels around the image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dali_feed.transforms import follow
from dali_feed.transforms.base import Ints, OnImage, Op
from dali_feed.transforms.edges import margin, rows, too_narrow
from dali_feed.transforms.fields import edges_of, fill_of, mask_fill_of
from dali_feed.transforms.geometry import Window, padded
from dali_feed.transforms.graph import Graph
from dali_feed.transforms.keys import numbered
from dali_feed.transforms.rules import Edges, Fill, PadMode, check_padding
from dali_feed.transforms.run import Run, SizedDraws

__all__ = ["Pad"]


@dataclass(frozen=True, slots=True)
class Pad(Op):
    """Pixels around the image: `padding` is left, top, right, bottom. `fill` is for mode "constant"."""

    padding: Edges
    fill: Fill = 0.0
    mode: PadMode = "constant"
    masks: Fill | None = None  # what fills those that follow; None: as the image

    def __post_init__(self) -> None:
        check_padding("Pad", self.padding, self.mode)

    @classmethod
    def of(cls, transform: Any) -> Pad:
        return cls(
            edges_of(transform, swapped=False), fill_of(transform), transform.padding_mode, mask_fill_of(transform)
        )

    def size_behind(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        left, top, right, bottom = self.padding
        return size and (size[0] + top + bottom, size[1] + left + right)

    def sizes_behind(self, h: Ints, w: Ints) -> tuple[Ints, Ints]:
        left, top, right, bottom = padded(h, w, self)
        return h + top + bottom, w + left + right

    def unfit(self, h: Ints, w: Ints) -> list[tuple[int, str]]:
        left, top, right, bottom = padded(h, w, self)
        return too_narrow("Pad", self.mode, (h, w), (np.maximum(top, bottom), np.maximum(left, right)))

    def host_rows(self, run: SizedDraws, n: int) -> None:
        run.arrays[numbered("margin", n)] = rows(*padded(run.h, run.w, self))
        run.h, run.w = self.sizes_behind(run.h, run.w)

    def host_steps(self, n: int, *, window: bool = False) -> list[OnImage]:
        return [margin(numbered("margin", n), self.fill, self.mode)]

    def follow_steps(self, n: int) -> list[OnImage]:
        fill = follow.fill_behind(self.fill, self.masks)
        return [follow.margin(numbered("margin", n), fill, self.mode)]

    def in_graph(self, graph: Graph, first: int) -> None:
        if self.mode != "constant":
            self.refuse('knows padding_mode="constant"', f'"{self.mode}"')

        def choose(run: Run) -> Window:
            left, top, _, _ = padded(run.h, run.w, self)
            return -top, -left, *self.sizes_behind(run.h, run.w)

        graph.cut(choose, graph.place.levels(self.fill))
