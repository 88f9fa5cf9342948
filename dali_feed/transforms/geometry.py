"""Windows and sizes of a whole batch at once, by torchvision's rules. Pure arithmetic on arrays.

Heights and widths are int64 (n,); windows are (y, x, height, width) in pixels. Halves round to even, as
Python's round does, because torchvision's arithmetic is Python's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Window", "center_window", "crop_windows", "padded", "random_windows", "resized"]

Ints = NDArray[np.int64]
Window = tuple[Ints, Ints, Ints, Ints]
TRIES = 10


def resized(h: Ints, w: Ints, size: int | tuple[int, int], max_size: int | None) -> tuple[Ints, Ints]:
    """Output heights and widths of Resize: both edges, or the shorter one with the ratio kept (rounded down)."""
    if not isinstance(size, int):
        return np.full_like(h, size[0]), np.full_like(w, size[1])
    short, long = np.minimum(h, w), np.maximum(h, w)
    new_long = np.floor(size * long / short).astype(np.int64)
    new_short = np.full_like(short, size)
    if max_size is not None:
        over = new_long > max_size
        fitted = np.floor(max_size * new_short / new_long).astype(np.int64)
        new_short = np.where(over, np.maximum(fitted, 1), new_short)  # torchvision computes 0 and then fails
        new_long = np.where(over, max_size, new_long)
    return np.where(h <= w, new_short, new_long), np.where(h <= w, new_long, new_short)


def center_window(h: Ints, w: Ints, size: tuple[int, int]) -> Window:
    """The middle window of `size`; it begins above or left of the image (negative) where that is smaller."""

    def first(have: Ints, want: int) -> Ints:
        inside = np.rint((have - want) / 2).astype(np.int64)
        return np.where(have < want, -((want - have) // 2), inside)

    return first(h, size[0]), first(w, size[1]), np.full_like(h, size[0]), np.full_like(w, size[1])


def padded(h: Ints, w: Ints, op: Any) -> tuple[Ints, Ints, Ints, Ints]:
    """Pixels that the op puts left, above, right and below."""
    left, top, right, bottom = (np.full_like(h, edge) for edge in op.padding)
    if getattr(op, "pad_if_needed", False):
        high = np.maximum(op.size[0] - (h + top + bottom), 0)
        wide = np.maximum(op.size[1] - (w + left + right), 0)
        left, top, right, bottom = left + wide, top + high, right + wide, bottom + high
    return left, top, right, bottom


def crop_windows(h: Ints, w: Ints, op: Any, drawn: NDArray[np.float32]) -> Window:
    """RandomCrop's windows, `drawn` (4, n): rows 0 and 1 are y and x. With padding they may leave the image."""
    left, top, right, bottom = padded(h, w, op)
    y = ((h + top + bottom - op.size[0] + 1) * drawn[0]).astype(np.int64) - top
    x = ((w + left + right - op.size[1] + 1) * drawn[1]).astype(np.int64) - left
    return y, x, np.full_like(h, op.size[0]), np.full_like(w, op.size[1])


def _tried(
    h: Ints, w: Ints, scale: tuple[float, float], ratio: tuple[float, float], drawn: NDArray[np.float32]
) -> tuple[NDArray[np.bool_], Window]:
    """Windows of one or more tries, `drawn` (..., 4, n) -> (..., n) each, and which of them fit."""
    area_u, ratio_u, y_u, x_u = (drawn[..., k, :] for k in range(4))
    low, high = math.log(ratio[0]), math.log(ratio[1])
    area = (h * w) * (scale[0] + (scale[1] - scale[0]) * area_u.astype(np.float64))
    aspect = np.exp(low + (high - low) * ratio_u.astype(np.float64))
    tw = np.rint(np.sqrt(area * aspect)).astype(np.int64)
    th = np.rint(np.sqrt(area / aspect)).astype(np.int64)
    fits = (tw > 0) & (tw <= w) & (th > 0) & (th <= h)
    y, x = ((h - th + 1) * y_u).astype(np.int64), ((w - tw + 1) * x_u).astype(np.int64)
    return fits, (y, x, th, tw)


def random_windows(
    h: Ints,
    w: Ints,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    draw: Callable[[range, Ints], NDArray[np.float32]],
) -> Window:
    """RandomResizedCrop's windows: up to ten tries of (area, ratio), each with a place of its own, then the middle.

    `draw(tries, rows)` gives the four uniforms of those tries for those rows, float32 (tries, 4, rows). Few
    rows need more than one try, so the nine others are drawn for those alone.
    """
    fits, (y, x, ch, cw) = _tried(h, w, scale, ratio, draw(range(1), np.arange(len(h)))[0])
    if fits.all():
        return y, x, ch, cw
    todo = np.flatnonzero(~fits)
    hh, ww = h[todo], w[todo]
    fits, tried = _tried(hh, ww, scale, ratio, draw(range(1, TRIES), todo))
    first = fits.argmax(axis=0)[None]
    later = (np.take_along_axis(edge, first, 0)[0] for edge in tried)
    shape = ww / hh
    # At least one pixel: torchvision's rounding gives none for a line of pixels under an extreme ratio, and then fails.
    fw = np.where(shape > ratio[1], np.maximum(np.rint(hh * ratio[1]).astype(np.int64), 1), ww)
    fh = np.where(shape < ratio[0], np.maximum(np.rint(ww / ratio[0]).astype(np.int64), 1), hh)
    middle = ((hh - fh) // 2, (ww - fw) // 2, fh, fw)
    some = fits.any(axis=0)
    for edge, found, fallen in zip((y, x, ch, cw), later, middle, strict=True):
        edge[todo] = np.where(some, found, fallen)
    return y, x, ch, cw
