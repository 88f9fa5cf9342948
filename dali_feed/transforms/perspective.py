"""RandomPerspective: the image as seen from another place, by torchvision's rules."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from dali_feed.transforms import follow
from dali_feed.transforms.base import Arrays, Effect, Ints, OnImage, effect_key
from dali_feed.transforms.batch_draws import BatchDraws
from dali_feed.transforms.fields import fill_of, mask_fill_of, turning
from dali_feed.transforms.rules import Fill, as_list, check_p, refuse

__all__ = ["RandomPerspective", "corners"]


@dataclass(frozen=True, slots=True)
class RandomPerspective(Effect):
    """The image as seen from another place: each corner moves inwards, by up to `distortion` of half the edge."""

    distortion: float = 0.5
    p: float = 0.5
    interpolation: Literal["nearest", "bilinear"] = "bilinear"
    fill: Fill = 0.0
    masks: Fill | None = None  # what fills those that follow; None: as the image

    streams: ClassVar[int] = 3  # one for whether to do it, two for eight coordinates

    def __post_init__(self) -> None:
        if not 0.0 <= self.distortion <= 1.0:
            refuse("RandomPerspective", "distortion_scale must lie in 0..1", self.distortion)
        check_p("RandomPerspective", self.p)

    @classmethod
    def of(cls, transform: Any) -> Self:
        t = transform
        return cls(float(t.distortion_scale), float(t.p), turning(t), fill_of(t), mask_fill_of(t))

    def rows(self, draws: BatchDraws, first: int, h: Ints, w: Ints) -> NDArray[np.int32]:
        """Corners: x and y, clockwise from the upper left; -1 leaves an image as it is."""
        drawn = np.concatenate([draws.draw(first + k) for k in range(self.streams)])
        return corners(self, drawn, h, w).astype(np.int32)

    def image(self, image: Any, row: Any) -> Any:
        """Move the corners of the image to their new places."""
        from torchvision.transforms.v2 import InterpolationMode, functional

        start, end = _ends(row, image.shape[-2:])
        if not end:
            return image
        mode, fill = InterpolationMode(self.interpolation), as_list(self.fill)
        return functional.perspective_image(image, start, end, interpolation=mode, fill=fill)

    def follow_steps(self, n: int) -> list[OnImage]:
        key, fill = effect_key(n), follow.fill_behind(self.fill, self.masks)

        def apply(given: Any, arrays: Arrays, slot: int) -> Any:
            from torchvision.transforms.v2 import functional

            start, end = _ends(arrays[key][slot], functional.get_size(given))
            return functional.perspective(given, start, end, fill=fill) if end else given

        return [apply]


def _ends(row: Any, size: tuple[int, int]) -> tuple[list[list[int]], list[list[int]]]:
    """The corners of an image of that size, and where they go; nowhere where it is left as it is."""
    ends, (height, width) = row.tolist(), size
    start = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
    return start, [] if ends[0] < 0 else [ends[k : k + 2] for k in range(0, 8, 2)]


def corners(op: RandomPerspective, drawn: NDArray[np.float32], h: Ints, w: Ints) -> Ints:
    """New corners, clockwise from the upper left: int64 (n, 8), x and y in turn; all -1 for images left as they are.

    `drawn` is uniforms, float32 (12, n). Left as they are, too, are images for which there is no perspective, as three
    corners would lie in a line: those one pixel high or wide, and some of few pixels. torchvision fails on them.
    """
    u = drawn[4:].astype(np.float64)
    bounds = [(op.distortion * (edge // 2)).astype(np.int64) + 1 for edge in (w, h)]
    far = ((0, 0), (1, 0), (1, 1), (0, 1))  # which end of x and of y each corner is at
    columns = []
    for k in range(8):
        edge, bound = (w, h)[k % 2], bounds[k % 2]
        columns.append(far[k // 2][k % 2] * (edge - bound) + (u[k] * bound).astype(np.int64))
    ends = np.stack(columns, axis=1)
    points = ends.reshape(-1, 4, 2)
    flat = (h == 1) | (w == 1)
    for a, b, c in combinations(range(4), 3):
        p, q = points[:, b] - points[:, a], points[:, c] - points[:, a]
        flat |= p[:, 0] * q[:, 1] == p[:, 1] * q[:, 0]
    return np.where(((drawn[0] < op.p) & ~flat)[:, None], ends, -1)
