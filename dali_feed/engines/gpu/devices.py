"""The CUDA device of a thread: what a library makes without naming a device, it makes on that one."""

from __future__ import annotations

import torch

__all__ = ["use"]


def use(device: int | None) -> None:
    """Let this thread's CUDA device be `device`, where it is one; each thread begins with the first GPU."""
    if device is not None:
        torch.cuda.set_device(device)
