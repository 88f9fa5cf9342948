"""RandomHorizontalFlip and RandomVerticalFlip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from dali_feed.draws.streams import STREAMS_PER_OP
from dali_feed.transforms import follow
from dali_feed.transforms.base import Arrays, OnImage, Op
from dali_feed.transforms.graph import Graph
from dali_feed.transforms.keys import numbered
from dali_feed.transforms.rules import check_p
from dali_feed.transforms.run import SizedDraws

__all__ = ["Flip"]


@dataclass(frozen=True, slots=True)
class Flip(Op):
    """Mirror left-right (`axis` "x") or upside down ("y") with probability `p`."""

    axis: Literal["x", "y"]
    p: float = 0.5

    streams: ClassVar[int] = 1
    normalized: ClassVar[bool] = True
    in_nest: ClassVar[bool] = True
    of_finish: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_p("RandomHorizontalFlip" if self.axis == "x" else "RandomVerticalFlip", self.p)

    @classmethod
    def horizontal(cls, transform: Any) -> Flip:
        """From torchvision's RandomHorizontalFlip."""
        return cls("x", float(transform.p))

    @classmethod
    def vertical(cls, transform: Any) -> Flip:
        """From torchvision's RandomVerticalFlip."""
        return cls("y", float(transform.p))

    def host_rows(self, run: SizedDraws, n: int) -> None:
        run.arrays[numbered("flip", n)] = run.draw(n * STREAMS_PER_OP)[0] < self.p

    def host_steps(self, n: int, *, window: bool = False) -> list[OnImage]:
        key, axis = numbered("flip", n), -1 if self.axis == "x" else -2

        def apply(image: Any, arrays: Arrays, slot: int) -> Any:
            return image.flip(axis) if arrays[key][slot] else image

        return [apply]

    def follow_steps(self, n: int) -> list[OnImage]:
        return [follow.flip(numbered("flip", n), self.axis)]

    def in_graph(self, graph: Graph, first: int) -> None:
        graph.flip(self.axis, lambda run: run.draw(first)[0] < self.p)
