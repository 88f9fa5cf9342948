"""timm's CenterCropOrPad and RandomCropOrPad: cut an image where it is larger than a size, pad it where smaller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dali_feed.draws.streams import STREAMS_PER_OP
from dali_feed.transforms import follow
from dali_feed.transforms.base import Ints, OnImage, Op
from dali_feed.transforms.edges import crop, margin, rows, too_narrow
from dali_feed.transforms.fields import fill_of, mask_fill_of, pair
from dali_feed.transforms.geometry import Window, center_window
from dali_feed.transforms.graph import Graph
from dali_feed.transforms.keys import numbered
from dali_feed.transforms.rules import Fill, check_size, refuse
from dali_feed.transforms.run import SizedDraws

__all__ = ["CropOrPad", "placed"]


@dataclass(frozen=True, slots=True)
class CropOrPad(Op):
    """To `size` (height, width): the middle, or a random place; a smaller image is padded in the same way."""

    size: tuple[int, int]
    anywhere: bool = False
    fill: Fill = 0.0
    mode: Literal["constant", "edge", "reflect", "symmetric"] = "constant"
    masks: Fill | None = None  # what fills those that follow; None: as the image

    streams: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_size("CropOrPad", self.size)
        if self.mode not in ("constant", "edge", "reflect", "symmetric"):
            refuse("CropOrPad", "padding_mode must be constant, edge, reflect or symmetric", self.mode)

    @classmethod
    def of(cls, transform: Any) -> CropOrPad:
        t = transform
        return cls(pair(t, t.size), type(t).__name__ == "RandomCropOrPad", fill_of(t), t.padding_mode, mask_fill_of(t))

    def size_behind(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return self.size

    def unfit(self, h: Ints, w: Ints) -> list[tuple[int, str]]:
        high, wide = np.maximum(self.size[0] - h, 0), np.maximum(self.size[1] - w, 0)
        if not self.anywhere:  # half of it at each edge
            high, wide = (high + 1) // 2, (wide + 1) // 2
        return too_narrow("CropOrPad", self.mode, (h, w), (high, wide))

    def host_rows(self, run: SizedDraws, n: int) -> None:
        y, x, h, w = placed(self, run.h, run.w, run.draw(n * STREAMS_PER_OP))
        if self.mode != "constant":
            left, top, right, bottom = (np.maximum(edge, 0) for edge in (-x, -y, x + w - run.w, y + h - run.h))
            run.arrays[numbered("margin", n)] = rows(left, top, right, bottom)
            y, x = y + top, x + left
        run.arrays[numbered("crop", n)] = rows(y, x, h, w)
        run.h, run.w = h, w

    def host_steps(self, n: int, *, window: bool = False) -> list[OnImage]:
        cut = crop(numbered("crop", n), self.fill)
        return [cut] if self.mode == "constant" else [margin(numbered("margin", n), self.fill, self.mode), cut]

    def follow_steps(self, n: int) -> list[OnImage]:
        fill = follow.fill_behind(self.fill, self.masks)
        cut = follow.crop(numbered("crop", n), fill)
        return [cut] if self.mode == "constant" else [follow.margin(numbered("margin", n), fill, self.mode), cut]

    def in_graph(self, graph: Graph, first: int) -> None:
        if self.mode != "constant":
            self.refuse('knows padding_mode="constant"', f'"{self.mode}"')
        fill = graph.place.levels(self.fill)
        graph.crop(self.size, lambda run: placed(self, run.h, run.w, run.draw(first)), inside=False, fill=fill)


def placed(op: CropOrPad, h: Ints, w: Ints, drawn: NDArray[np.float32] | None) -> Window:
    """Windows, which leave the image where it is smaller; `drawn` (4, n): rows 0 and 1 are y and x."""
    if not op.anywhere or drawn is None:
        return center_window(h, w, op.size)

    def first(have: Ints, want: int, u: NDArray[np.float32]) -> Ints:
        spare = have - want
        return np.sign(spare) * ((np.abs(spare) + 1) * u.astype(np.float64)).astype(np.int64)

    y, x = first(h, op.size[0], drawn[0]), first(w, op.size[1], drawn[1])
    return y, x, np.full_like(h, op.size[0]), np.full_like(w, op.size[1])
