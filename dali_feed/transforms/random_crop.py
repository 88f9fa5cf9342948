"""RandomCrop: a window of one size anywhere in the image, which is padded before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dali_feed.draws.streams import STREAMS_PER_OP
from dali_feed.transforms import follow
from dali_feed.transforms.base import Ints, OnImage, Op
from dali_feed.transforms.edges import crop, margin, rows, too_narrow
from dali_feed.transforms.fields import edges_of, fill_of, mask_fill_of, pair
from dali_feed.transforms.geometry import crop_windows, padded
from dali_feed.transforms.graph import Graph
from dali_feed.transforms.keys import numbered
from dali_feed.transforms.rules import Edges, Fill, PadMode, check_padding, check_size
from dali_feed.transforms.run import SizedDraws

__all__ = ["RandomCrop"]


@dataclass(frozen=True, slots=True)
class RandomCrop(Op):
    """A window of `size` (height, width) anywhere in the image, padded before as `Pad` does.

    With `pad_if_needed` an edge that is still too short gets what it lacks on both sides.
    """

    size: tuple[int, int]
    padding: Edges = (0, 0, 0, 0)
    pad_if_needed: bool = False
    fill: Fill = 0.0
    mode: PadMode = "constant"
    masks: Fill | None = None  # what fills those that follow; None: as the image

    streams: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_size("RandomCrop", self.size)
        check_padding("RandomCrop", self.padding, self.mode)

    @classmethod
    def of(cls, transform: Any) -> RandomCrop:
        t = transform
        edges = edges_of(t, swapped=type(t).__module__.startswith("torchvision.transforms.v2"))
        needed = bool(t.pad_if_needed)
        return cls(pair(t, t.size), edges, needed, fill_of(t), t.padding_mode, mask_fill_of(t))

    @property
    def pads(self) -> bool:
        """Whether a window may reach outside the image."""
        return self.pad_if_needed or any(self.padding)

    def size_behind(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return self.size

    def unfit(self, h: Ints, w: Ints) -> list[tuple[int, str]]:
        left, top, right, bottom = padded(h, w, self)
        widest = np.maximum(top, bottom), np.maximum(left, right)
        small = (h + top + bottom < self.size[0]) | (w + left + right < self.size[1])
        told = f"RandomCrop: {self.size[1]}x{self.size[0]} must fit into the image; found"
        cure = "give pad_if_needed=True"
        found = [(k, f"{told} {w[k]}x{h[k]}; {cure}") for k in np.flatnonzero(small).tolist()]
        return too_narrow("RandomCrop", self.mode, (h, w), widest) + found

    def cuts(self) -> tuple[tuple[int, int], Fill] | None:
        return (self.size, self.fill) if self.mode == "constant" else None

    def begins_with_window(self) -> bool:
        return not self.pads

    def host_rows(self, run: SizedDraws, n: int) -> None:
        left, top, right, bottom = padded(run.h, run.w, self)
        y, x, run.h, run.w = crop_windows(run.h, run.w, self, run.draw(n * STREAMS_PER_OP))
        if self.mode != "constant":
            run.arrays[numbered("margin", n)] = rows(left, top, right, bottom)
            y, x = y + top, x + left
        run.arrays[run.crop_key(n)] = rows(y, x, run.h, run.w)

    def host_steps(self, n: int, *, window: bool = False) -> list[OnImage]:
        cut = [] if window else [crop(numbered("crop", n), self.fill)]
        return cut if self.mode == "constant" else [margin(numbered("margin", n), self.fill, self.mode), *cut]

    def follow_steps(self, n: int) -> list[OnImage]:
        fill = follow.fill_behind(self.fill, self.masks)
        cut = follow.crop(numbered("crop", n), fill)
        return [cut] if self.mode == "constant" else [follow.margin(numbered("margin", n), fill, self.mode), cut]

    def in_graph(self, graph: Graph, first: int) -> None:
        if self.pads and self.mode != "constant":
            self.refuse('knows padding_mode="constant"', f'"{self.mode}"')
        fill = graph.place.levels(self.fill)
        graph.crop(
            self.size, lambda run: crop_windows(run.h, run.w, self, run.draw(first)), inside=not self.pads, fill=fill
        )
