"""The CUDA device of a thread: libraries use it wherever they do not name a device."""

from __future__ import annotations

import torch

__all__ = ["use"]


def use(device: int | None) -> None:
    """Make `device`, if not None, this thread's CUDA device; each thread begins with the first GPU."""
    if device is not None:
        torch.cuda.set_device(device)
