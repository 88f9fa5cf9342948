"""The work that everybody in a bench does to each image, and memory for its floats."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torchvision.transforms import v2

__all__ = ["CROP", "MEAN", "STD", "Memory", "cuda_index", "one_torch_thread", "to_float", "transform"]

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
SCALE = 1 / (255 * torch.tensor(STD).view(3, 1, 1))
BIAS = -torch.tensor(MEAN).view(3, 1, 1) / torch.tensor(STD).view(3, 1, 1)
CROP = 224


def transform(crop: int = CROP) -> v2.Compose:
    """What everybody does to each image: a float32 (3, crop, crop) comes out."""
    pixels = [v2.RandomResizedCrop(crop, antialias=True), v2.RandomHorizontalFlip()]
    return v2.Compose([*pixels, v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])


def cuda_index(device: torch.device) -> int | None:
    """The number that engines know a device by."""
    return None if device.type == "cpu" else device.index or 0


def to_float(pixels: torch.Tensor, out: torch.Tensor) -> None:
    """uint8 (3, height, width), normalized into `out`."""
    out.copy_(pixels)  # first: one call that multiplies too takes twice as long, as dtypes and strides differ
    out.mul_(SCALE).add_(BIAS)


class _Watched(np.ndarray[Any, Any]):
    """A view whose death can be watched."""


class Memory:
    """Batches of floats in memory that is used again once the last tensor over it has died.

    Fresh memory of this size costs a page fault every 4 KB, more than all that is done to its pixels. Whoever would
    pay that gets this one, so that the contestants differ in their own work.
    """

    def __init__(self, batch: int, crop: int = CROP) -> None:
        self._shape = (batch, 3, crop, crop)
        self._idle: deque[NDArray[np.float32]] = deque()

    def take(self) -> torch.Tensor:
        """A batch that is nobody else's; any thread may take one."""
        try:
            raw = self._idle.pop()
        except IndexError:
            raw = np.empty(self._shape, np.float32)
        view = raw.view(_Watched)
        weakref.finalize(view, self._idle.append, raw).atexit = False
        return torch.from_numpy(view)


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Torch computes with one thread, in this thread and in those that start meanwhile.

    With more, the threads of one operation wait for each other in busy loops, on the cores that others decode on.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
