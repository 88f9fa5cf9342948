"""What becomes of each of 256 levels: steps that look at one value at a time, as a table per plane.

The law: the table is made by the steps themselves, so its floats are theirs, bit for bit. One pass that looks up takes
the place of four over a plane, and of one before them that mirrors it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

__all__ = ["Levels"]


class Levels:
    """Of float32 planes (3, height, width) in the memory of the CPU. `steps` write such planes of uint8 ones."""

    def __init__(self, steps: Callable[[torch.Tensor, torch.Tensor], None]) -> None:
        ramp = torch.arange(256, dtype=torch.uint8).expand(3, 1, 256).contiguous()
        made = torch.empty(3, 1, 256)
        steps(ramp, made)
        self._rows = list(made.numpy()[:, 0])

    @staticmethod
    def takes(image: torch.Tensor, out: torch.Tensor) -> bool:
        """Whether these are for it."""
        return image.dtype == torch.uint8 and out.dtype == torch.float32 and out.device.type == "cpu"

    def write(self, image: torch.Tensor, out: torch.Tensor, *, mirrored: bool) -> None:
        """`image` (3, height, width) into `out`, left to right or `mirrored`."""
        planes, into = image.numpy(), out.numpy()
        if mirrored:
            planes = planes[:, :, ::-1]
        for row, plane, place in zip(self._rows, planes, into, strict=True):
            np.take(row, plane, out=place, mode="wrap")  # "raise" would go by a copy
