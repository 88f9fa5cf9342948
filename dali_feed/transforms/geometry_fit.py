"""Sizes and windows of ops that fit images of any size into one, by timm's rules. Arrays as in `geometry.py`."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dali_feed.transforms.fit import CropOrPad, ResizeKeepRatio, TrimBorder
from dali_feed.transforms.geometry import Window, center_window

__all__ = ["kept_ratio", "lacking", "placed", "trimmed"]

Ints = NDArray[np.int64]


def kept_ratio(op: ResizeKeepRatio, h: Ints, w: Ints, drawn: NDArray[np.float32] | None) -> tuple[Ints, Ints]:
    """Heights and widths that come out; `drawn` (4, n): whether scaled, by how much, whether squeezed, by how much.

    None: as if neither.
    """
    ratio_h, ratio_w = h / op.size[0], w / op.size[1]
    ratio = np.maximum(ratio_h, ratio_w) * op.longest + np.minimum(ratio_h, ratio_w) * (1.0 - op.longest)
    factor_h, factor_w = np.ones(len(h)), np.ones(len(h))
    if drawn is not None:
        u = drawn.astype(np.float64)
        scale = op.scale[0] + (op.scale[1] - op.scale[0]) * u[1]
        scale = 1.0 / np.sqrt(scale) if op.area else scale
        scale = np.where(u[0] < op.scale_p, scale, 1.0)
        low, high = math.log(op.aspect[0]), math.log(op.aspect[1])
        squeeze = np.where(u[2] < op.aspect_p, np.sqrt(np.exp(low + (high - low) * u[3])), 1.0)
        factor_h, factor_w = scale / squeeze, scale * squeeze
    sizes = (np.maximum(np.rint(x * f / ratio), 1) for x, f in ((h, factor_h), (w, factor_w)))
    high_out, wide_out = (size.astype(np.int64) for size in sizes)
    return high_out, wide_out


def placed(op: CropOrPad, h: Ints, w: Ints, drawn: NDArray[np.float32] | None) -> Window:
    """Windows, which leave the image where it is smaller; `drawn` (4, n): rows 0 and 1 are y and x."""
    if not op.anywhere or drawn is None:
        return center_window(h, w, op.size)

    def first(have: Ints, want: int, u: NDArray[np.float32]) -> Ints:
        spare = have - want
        return np.sign(spare) * ((np.abs(spare) + 1) * u.astype(np.float64)).astype(np.int64)

    y, x = first(h, op.size[0], drawn[0]), first(w, op.size[1], drawn[1])
    return y, x, np.full_like(h, op.size[0]), np.full_like(w, op.size[1])


def lacking(h: Ints, w: Ints, window: Window) -> tuple[Ints, Ints, Ints, Ints]:
    """How many pixels windows reach beyond their images: left, top, right, bottom."""
    y, x, wh, ww = window
    left, top, right, bottom = (np.maximum(edge, 0) for edge in (-x, -y, x + ww - w, y + wh - h))
    return left, top, right, bottom


def trimmed(op: TrimBorder, h: Ints, w: Ints) -> Window:
    """All but the border."""
    edge = np.full_like(h, op.border)
    return edge, edge, h - 2 * op.border, w - 2 * op.border
