"""The random numbers of a batch's samples, for the compilers of a recipe: by stream, and as crop windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.draws.philox import uniforms
from dali_feed.transforms.geometry import TRIES, Window, random_windows
from dali_feed.transforms.rules import Interpolation

__all__ = ["DRAWN", "BatchDraws"]

DRAWN: tuple[Interpolation, ...] = ("bilinear", "bicubic")  # the interpolations that a random one is chosen from

Ints = NDArray[np.int64]


class BatchDraws:
    """Random numbers of samples `ids` in `streams`, drawn at once; those that few samples need are drawn when used."""

    def __init__(self, ids: Ints, seed: int, epoch: int, streams: Sequence[int]) -> None:
        self.ids, self.seed, self.epoch = ids, seed, epoch
        self._rows = {stream: 4 * n for n, stream in enumerate(streams)}
        self._drawn = uniforms(seed, epoch, ids, streams)

    def draw(self, stream: int) -> NDArray[np.float32]:
        """A stream's four uniforms, float32 (4, n)."""
        at = self._rows[stream]
        return self._drawn[at : at + 4]

    def interpolations(self, op: Any, first: int) -> tuple[Ints, ...]:
        """Which of DRAWN each sample is resized by, where that is random: by the stream after those of ten tries."""
        if op.interpolation != "random":
            return ()
        return ((self.draw(first + TRIES)[0].astype(np.float64) * len(DRAWN)).astype(np.int64),)

    def windows(self, op: Any, first: int, h: Ints, w: Ints) -> Window:
        """Crop windows in images of those sizes; try t draws from stream first + t."""

        def draw(tries: range, rows: Ints) -> NDArray[np.float32]:
            if tries == range(1):
                return self.draw(first)[None]
            streams = [first + t for t in tries]
            return uniforms(self.seed, self.epoch, self.ids[rows], streams).reshape(len(tries), 4, len(rows))

        return random_windows(h, w, op.scale, op.ratio, draw)
