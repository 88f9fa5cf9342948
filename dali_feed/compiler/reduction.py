"""Reduction: by how much a JPEG may be decoded smaller, for recipes that allow it. Pure arithmetic on arrays.

A JPEG decodes at 1/2, 1/4 or 1/8 with fewer frequencies per block. That is only done where the window that is
resized is at least as many times larger than what it becomes, and where it pays: entropy coding, the larger
part, must then be undone for the whole image, where the exact way stops after its window.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dali_feed.transforms.geometry import Window

__all__ = ["reductions"]

Ints = NDArray[np.int64]
# Time to decode an image, in milliseconds per megapixel on one core (bench/bench_reduction.py).
ENTROPY, PIXELS = 1.1, 1.3
REDUCED = {2: 0.45, 4: 0.2, 8: 0.1}


def reductions(h: Ints, w: Ints, window: Window, out_h: Ints, out_w: Ints) -> NDArray[np.int32]:
    """1, 2, 4 or 8 for images (h, w) whose `window` is resized to (out_h, out_w)."""
    y, _, wh, ww = window
    exact = ENTROPY * (y + wh) / h + PIXELS * (wh * ww) / (h * w)
    best = np.ones(len(h), np.int32)
    for k, cost in REDUCED.items():
        fits = (wh >= k * out_h) & (ww >= k * out_w)
        best[fits & (ENTROPY + cost < exact)] = k
    return best
