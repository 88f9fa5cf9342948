"""The tail: the steps at the end of nearly every recipe, run in the memory of the batch itself.

To float, scaled to 0..1, then normalized, then erased: torchvision's operations in its order, so its bits, without
a copy of the image between them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dali_feed.compiler.host import HostProgram, HostStep
from dali_feed.transforms.base import OnPlanes
from dali_feed.transforms.keys import Arrays

__all__ = ["Tail", "split_tail"]


class Tail:
    """`write`s an image into the batch, and goes on there. Used by many threads at once."""

    def __init__(self, write: Callable[[Any, Any], None], behind: list[OnPlanes], *, planes: bool) -> None:
        self._write, self._behind, self._planes = write, behind, planes

    def run(self, image: torch.Tensor, out: torch.Tensor, arrays: Arrays, slot: int) -> None:
        """One image, in the layout of the batch, into its place there, with row `slot` of the parameters."""
        self._write(image, out)
        planes = out if self._planes else out.permute(2, 0, 1)
        for apply in self._behind:
            apply(planes, arrays, slot)


def split_tail(program: HostProgram) -> tuple[list[HostStep], Tail | None]:
    """The steps, and the tail behind them where they end in one."""
    for cut, step in enumerate(program.steps):
        write = step.op.into_batch()
        if write is None:
            continue
        behind = [each.on_planes() for each in program.steps[cut + 1 :]]
        in_place = [apply for apply in behind if apply is not None]
        if len(in_place) < len(behind):
            break
        return program.steps[:cut], Tail(write, in_place, planes=program.layout == "NCHW")
    return program.steps, None
