"""Whether torch's own pixels are those of the kernel `augment` on this processor."""

from __future__ import annotations

import functools

import numpy as np
import torch

from dali_feed.kernels.jitter import fma


@functools.cache
def fused_here() -> bool:
    """Whether torch fuses products with sums here, and MKL the second product alone, as the kernel does."""
    one, other = (torch.from_numpy(np.random.default_rng(n).random((60, 3), np.float32)) for n in (1, 2))
    one[:, 2], other = 1, other[:3]
    other[2] = 0
    x, y, a, b = (each.numpy() for each in (one[:, :1], one[:, 1:2], other[:1], other[1:2]))
    same = np.array_equal(torch.mm(one, other).numpy(), fma(*np.broadcast_arrays(y, b, x * a)))
    return same and torch.backends.cpu.get_cpu_capability() != "DEFAULT"
