"""RandomErasing's rectangles of a whole batch at once, by torchvision's rules. Pure arithmetic on arrays."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dali_feed.plan.draws import uniforms
from dali_feed.transforms.batch_draws import BatchDraws
from dali_feed.transforms.effects import RandomErasing
from dali_feed.transforms.geometry import TRIES, Window
from dali_feed.transforms.nest import inner_numbers
from dali_feed.transforms.noise import NoisyErasing

__all__ = ["ERASING_STREAMS", "erased", "erased_several"]

ERASING_STREAMS = 2  # that every sample draws from: whether at all, and the first try

Ints = NDArray[np.int64]


def _tried(
    op: RandomErasing | NoisyErasing, h: Ints, w: Ints, drawn: NDArray[np.float32], count: Ints | int = 1
) -> tuple[NDArray[np.bool_], Window]:
    """Rectangles of some tries, `drawn` (tries, 4, n) -> (tries, n) each, and which are smaller than the image.

    `count` of them share an area.
    """
    area_u, ratio_u, y_u, x_u = drawn.astype(np.float64).transpose(1, 0, 2)
    low, high = math.log(op.ratio[0]), math.log(op.ratio[1])
    area = (h * w) * (op.scale[0] + (op.scale[1] - op.scale[0]) * area_u) / count
    aspect = np.exp(low + (high - low) * ratio_u)
    th = np.rint(np.sqrt(area * aspect)).astype(np.int64)
    tw = np.rint(np.sqrt(area / aspect)).astype(np.int64)
    y, x = ((h - th + 1) * y_u).astype(np.int64), ((w - tw + 1) * x_u).astype(np.int64)
    return (th < h) & (tw < w), (y, x, th, tw)


def erased(op: RandomErasing, run: BatchDraws, first: int, h: Ints, w: Ints) -> Window:
    """Rectangles to erase; empty ones for samples that are left as they are, or that ten tries found none for.

    Stream `first` says whether at all, try t draws from stream first + 1 + t. Few rows need more than one try, so
    the nine others are drawn for those alone.
    """
    on = run.draw(first)[0] < op.p
    fits, tried = _tried(op, h, w, run.draw(first + 1)[None])
    y, x, eh, ew = (np.where(on & fits[0], edge[0], 0) for edge in tried)
    todo = np.flatnonzero(on & ~fits[0])
    if len(todo):
        streams = [first + 1 + t for t in range(1, TRIES)]
        drawn = uniforms(run.seed, run.epoch, run.ids[todo], streams).reshape(TRIES - 1, 4, len(todo))
        fits, tried = _tried(op, h[todo], w[todo], drawn)
        best, some = fits.argmax(axis=0)[None], fits.any(axis=0)
        for edge, later in zip((y, x, eh, ew), tried, strict=True):
            edge[todo] = np.where(some, np.take_along_axis(later, best, 0)[0], 0)
    return y, x, eh, ew


def erased_several(op: NoisyErasing, run: BatchDraws, first: int, per_op: int, h: Ints, w: Ints) -> NDArray[np.int32]:
    """Rectangles y, x, height, width of each sample, int32 (n, most, 4); empty ones where there are fewer.

    Stream `first` says whether at all, and how many; try t of a rectangle draws from the t-th of its own streams;
    an op has `per_op` of them.
    """
    u = run.draw(first)
    on = u[0] < op.p
    count = op.least + (u[1].astype(np.float64) * (op.most - op.least + 1)).astype(np.int64)
    starts = [number * per_op for number in inner_numbers(op, first // per_op, op.most)]
    streams = [start + t for start in starts for t in range(TRIES)]
    drawn = uniforms(run.seed, run.epoch, run.ids, streams).reshape(op.most, TRIES, 4, len(run.ids))
    out = np.zeros((len(run.ids), op.most, 4), np.int32)
    for k, each in enumerate(drawn):
        fits, tried = _tried(op, h, w, each, count)
        best, some = fits.argmax(axis=0)[None], fits.any(axis=0) & on & (k < count)
        for edge, later in enumerate(tried):
            out[:, k, edge] = np.where(some, np.take_along_axis(later, best, 0)[0], 0)
    return out
