"""RandomPerspective's corners of a whole batch at once, by torchvision's rules. Pure arithmetic on arrays."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from dali_feed.transforms.effects import RandomPerspective

__all__ = ["PERSPECTIVE_STREAMS", "corners"]

PERSPECTIVE_STREAMS = 3  # one that says whether at all, two for eight coordinates

Ints = NDArray[np.int64]


def corners(op: RandomPerspective, drawn: NDArray[np.float32], h: Ints, w: Ints) -> Ints:
    """Where the corners go, clockwise from the upper left: int64 (n, 8), x and y in turn; all -1 for images left alone.

    `drawn` is uniforms, float32 (12, n). Left alone are also those for which there is no perspective, since three
    corners lie in a line: images of one pixel's height or width, and some of few pixels. torchvision fails on them.
    """
    u = drawn[4:].astype(np.float64)
    bounds = [(op.distortion * (edge // 2)).astype(np.int64) + 1 for edge in (w, h)]
    far = ((0, 0), (1, 0), (1, 1), (0, 1))  # at which end of x and of y a corner is drawn
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
