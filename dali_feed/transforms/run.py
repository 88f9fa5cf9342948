"""What is known about a batch while the parameters of a program are computed, op by op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.transforms.batch_draws import BatchDraws
from dali_feed.transforms.geometry import Window
from dali_feed.transforms.keys import WINDOW, Key, numbered

__all__ = ["Run", "SizedDraws"]

Ints = NDArray[np.int64]


class SizedDraws(BatchDraws):
    """Random numbers, the sizes of the images on their way through the ops, and the arrays computed so far.

    windowed: the decoder decodes only the window that the first op cuts out.
    """

    def __init__(
        self,
        streams: Sequence[int],
        sizes: NDArray[Any],
        ids: Ints,
        seed: int,
        epoch: int,
        *,
        windowed: bool = False,
    ) -> None:
        super().__init__(ids, seed, epoch, streams)
        self.h, self.w = sizes[:, 0].astype(np.int64), sizes[:, 1].astype(np.int64)
        self.arrays: dict[Key, NDArray[Any]] = {}
        self.windowed = windowed

    def crop_key(self, n: int) -> Key:
        """The name of the array of windows of op number n."""
        return WINDOW if self.windowed and n == 0 else numbered("crop", n)


class Run(SizedDraws):
    """The same for a DALI graph: crops and flips folded into existing steps, and which samples an op applies to."""

    def __init__(self, streams: Sequence[int], sizes: NDArray[Any], ids: Ints, seed: int, epoch: int) -> None:
        super().__init__(streams, sizes, ids, seed, epoch)
        zero = np.zeros_like(self.h)
        self.window: Window = (zero, zero, self.h, self.w)
        self.roi: tuple[NDArray[np.float64], ...] = ()
        self.mirror = {"x": np.zeros(len(ids), bool), "y": np.zeros(len(ids), bool)}
        self.picked: list[NDArray[np.bool_]] = []  # by each nest around the op

    @property
    def on(self) -> NDArray[np.bool_]:
        """Which samples the op applies to: those that every nest around it picked."""
        every: NDArray[np.bool_] = np.logical_and.reduce([np.ones(len(self.ids), bool), *self.picked])
        return every

    def as_shown(self, window: Window) -> Window:
        """A window that was chosen in the mirrored image, in coordinates of the image as it is stored so far."""
        y, x, h, w = window
        x = np.where(self.mirror["x"], self.w - x - w, x)
        y = np.where(self.mirror["y"], self.h - y - h, y)
        return y, x, h, w

    def narrow_roi(self, window: Window) -> None:
        """Let the last resize read that window alone."""
        y0, x0, y1, x1 = self.roi
        y, x, h, w = window
        sy, sx = (y1 - y0) / self.h, (x1 - x0) / self.w
        y0, x0 = y0 + y * sy, x0 + x * sx
        self.roi = (y0, x0, y0 + h * sy, x0 + w * sx)
        self.h, self.w = h, w
