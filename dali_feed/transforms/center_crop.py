"""CenterCrop: the middle of an image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dali_feed.transforms import follow
from dali_feed.transforms.base import OnImage, Op
from dali_feed.transforms.edges import crop, rows
from dali_feed.transforms.fields import pair
from dali_feed.transforms.geometry import center_window
from dali_feed.transforms.graph import Graph
from dali_feed.transforms.keys import numbered
from dali_feed.transforms.rules import check_size
from dali_feed.transforms.run import SizedDraws

__all__ = ["CenterCrop"]


@dataclass(frozen=True, slots=True)
class CenterCrop(Op):
    """The middle `size` (height, width) of an image; a smaller one is padded with black."""

    size: tuple[int, int]

    def __post_init__(self) -> None:
        check_size("CenterCrop", self.size)

    @classmethod
    def of(cls, transform: Any) -> CenterCrop:
        return cls(pair(transform, transform.size))

    @classmethod
    def of_preset(cls, transform: Any) -> CenterCrop:
        """From the preset that `weights.transforms()` gives."""
        return cls(pair(transform, transform.crop_size))

    def size_behind(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return self.size

    def host_rows(self, run: SizedDraws, n: int) -> None:
        y, x, run.h, run.w = center_window(run.h, run.w, self.size)
        run.arrays[run.crop_key(n)] = rows(y, x, run.h, run.w)

    def host_steps(self, n: int, *, window: bool = False) -> list[OnImage]:
        return [crop(numbered("crop", n))]

    def follow_steps(self, n: int) -> list[OnImage]:
        return [follow.crop(numbered("crop", n))]

    def in_graph(self, graph: Graph, first: int) -> None:
        graph.crop(self.size, lambda run: center_window(run.h, run.w, self.size), inside=graph.covers(self.size))
