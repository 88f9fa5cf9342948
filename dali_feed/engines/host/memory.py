"""Memory of the host engine's batches.

It goes back to a pool when the last tensor over it is deleted.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch

from dali_feed.records.reused import ALIGNED, Reused

__all__ = ["Kind", "Pinned", "Pool"]

_IN_NUMPY = {torch.uint8: np.uint8, torch.float32: np.float32, torch.float16: np.float16, torch.bfloat16: np.int16}

Kind = tuple[tuple[int, ...], torch.dtype]  # of a tensor


class Pool:
    """Memory of batches, see `records.reused`. Thread-safe."""

    def __init__(self) -> None:
        self._memory = Reused()

    def take(self, kinds: list[Kind]) -> list[torch.Tensor]:
        """Tensors whose memory is not used again until the last tensor over any of them is deleted."""
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in kinds]
        starts = [0, *itertools.accumulate(-(-size // ALIGNED) * ALIGNED for size in sizes)]
        whole = self._memory(starts[-1])
        out = []
        for (shape, dtype), start, length in zip(kinds, starts, sizes, strict=False):
            # Shaped by NumPy: an operation of torch lets go of the interpreter's lock and queues for it.
            shaped = torch.from_numpy(whole[start : start + length].view(_IN_NUMPY[dtype]).reshape(shape))
            out.append(shaped.view(dtype) if dtype == torch.bfloat16 else shaped)
        return out


class Pinned:
    """Memory of batches that go to a GPU: torch keeps it until the copy is done, and then for the next ones."""

    def take(self, kinds: list[Kind]) -> list[torch.Tensor]:
        """Page-locked, or a copy from it would hold up the thread that asks for it."""
        return [torch.empty(shape, dtype=dtype, pin_memory=True) for shape, dtype in kinds]
