"""Memory of the host engine's batches.

It goes back to a pool when the last tensor over it is deleted: new memory costs page faults, and a ring would be
written over while the user still has tensors in it.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections import deque
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["Kind", "Pinned", "Pool"]

IDLE = 4  # batches of memory kept for the next ones
ALIGNED = 64  # bytes: of a cache line, and the widest vector

_IN_NUMPY = {torch.uint8: np.uint8, torch.float32: np.float32, torch.float16: np.float16, torch.bfloat16: np.int16}

Kind = tuple[tuple[int, ...], torch.dtype]  # of a tensor


class _Owned(np.ndarray[Any, Any]):
    """A view that can be watched: numpy's own arrays take no weak references to what torch holds."""


class Pool:
    """Memory of batches. Thread-safe: a deque's ends are."""

    def __init__(self) -> None:
        self._idle: deque[NDArray[np.uint8]] = deque(maxlen=IDLE)

    def take(self, kinds: list[Kind]) -> list[torch.Tensor]:
        """Tensors whose memory is not used again until the last tensor over any of them is deleted."""
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in kinds]
        starts = [0, *itertools.accumulate(-(-size // ALIGNED) * ALIGNED for size in sizes)]
        size = starts[-1]
        try:
            raw = self._idle.pop()
        except IndexError:
            raw = np.empty(0, np.uint8)
        if len(raw) < size:
            raw = np.empty(size, np.uint8)
        view = raw.view(_Owned)
        weakref.finalize(view, self._idle.append, raw).atexit = False
        out = []
        for (shape, dtype), start, length in zip(kinds, starts, sizes, strict=False):
            # Shaped by NumPy: an operation of torch lets go of the interpreter's lock and queues for it.
            shaped = torch.from_numpy(view[start : start + length].view(_IN_NUMPY[dtype]).reshape(shape))
            out.append(shaped.view(dtype) if dtype == torch.bfloat16 else shaped)
        return out


class Pinned:
    """Memory of batches that go to a GPU: torch keeps it until the copy is done, and then for the next ones."""

    def take(self, kinds: list[Kind]) -> list[torch.Tensor]:
        """Page-locked, or a copy from it would hold up the thread that asks for it."""
        return [torch.empty(shape, dtype=dtype, pin_memory=True) for shape, dtype in kinds]
