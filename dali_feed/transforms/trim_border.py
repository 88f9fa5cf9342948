"""timm's TrimBorder: an image without pixels at each edge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dali_feed.transforms import follow
from dali_feed.transforms.base import Ints, OnImage, Op
from dali_feed.transforms.edges import crop, rows
from dali_feed.transforms.geometry import Window
from dali_feed.transforms.graph import Graph
from dali_feed.transforms.keys import numbered
from dali_feed.transforms.rules import refuse
from dali_feed.transforms.run import SizedDraws

__all__ = ["TrimBorder"]


@dataclass(frozen=True, slots=True)
class TrimBorder(Op):
    """Without `border` pixels at each edge."""

    border: int

    def __post_init__(self) -> None:
        if self.border < 0:
            refuse("TrimBorder", "border_size must be at least 0", self.border)

    @classmethod
    def of(cls, transform: Any) -> TrimBorder:
        return cls(int(transform.border_size))

    def size_behind(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return None

    def sizes_behind(self, h: Ints, w: Ints) -> tuple[Ints, Ints]:
        return np.maximum(h - 2 * self.border, 1), np.maximum(w - 2 * self.border, 1)

    def unfit(self, h: Ints, w: Ints) -> list[tuple[int, str]]:
        gone = np.minimum(h, w) <= 2 * self.border
        told = f"TrimBorder: nothing is left without {self.border} pixels at each edge"
        return [(k, f"{told}; found {w[k]}x{h[k]}") for k in np.flatnonzero(gone).tolist()]

    def window(self, h: Ints, w: Ints) -> Window:
        """All but the border."""
        edge = np.full_like(h, self.border)
        return edge, edge, h - 2 * self.border, w - 2 * self.border

    def host_rows(self, run: SizedDraws, n: int) -> None:
        y, x, run.h, run.w = self.window(run.h, run.w)
        run.arrays[numbered("crop", n)] = rows(y, x, run.h, run.w)

    def host_steps(self, n: int, *, window: bool = False) -> list[OnImage]:
        return [crop(numbered("crop", n))]

    def follow_steps(self, n: int) -> list[OnImage]:
        return [follow.crop(numbered("crop", n))]

    def in_graph(self, graph: Graph, first: int) -> None:
        graph.cut(lambda run: self.window(run.h, run.w))
