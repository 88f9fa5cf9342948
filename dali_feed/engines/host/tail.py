"""The tail: the steps at the end of nearly every recipe, run in the memory of the batch itself.

To float, scaled to 0..1, then normalized, then erased: torchvision's operations in its order, so its bits, without
a copy of the image between them. Where the batch is of float32 planes, those that look at one value at a time are a
table (`levels.py`), which mirrors the image too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dali_feed.compiler.host import HostProgram, HostStep
from dali_feed.engines.host.levels import Levels
from dali_feed.transforms.base import OnPlanes
from dali_feed.transforms.flip import Flip
from dali_feed.transforms.keys import Arrays, Key, numbered
from dali_feed.transforms.normalize import Normalize

__all__ = ["Tail", "split_tail"]


class Tail:
    """`write`s an image into the batch, and goes on there. Used by many threads at once.

    Where `levels` are there, they are `write` and the first `tabled` steps `behind` it; `mirror` says which images they
    mirror.
    """

    def __init__(
        self,
        write: Callable[[Any, Any], None],
        behind: list[OnPlanes],
        *,
        planes: bool,
        tabled: int | None = None,
        mirror: Key | None = None,
    ) -> None:
        self._write, self._behind, self._planes, self._mirror = write, behind, planes, mirror
        self._levels, self._rest = None, behind
        if tabled is not None:
            self._rest = behind[tabled:]
            self._levels = Levels(Tail(write, behind[:tabled], planes=planes).made)

    def made(self, image: torch.Tensor, out: torch.Tensor) -> None:
        """One image, by steps without parameters."""
        self.run(image, out, {}, 0)

    def run(self, image: torch.Tensor, out: torch.Tensor, arrays: Arrays, slot: int) -> None:
        """One image, in the layout of the batch, into its place there, with row `slot` of the parameters."""
        mirrored = self._mirror is not None and bool(arrays[self._mirror][slot])
        if self._levels is not None and self._levels.takes(image, out):
            self._levels.write(image, out, mirrored=mirrored)
            behind = self._rest
        else:
            self._write(image.flip(-1) if mirrored else image, out)
            behind = self._behind
        planes = out if self._planes else out.permute(2, 0, 1)
        for apply in behind:
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
        if program.layout != "NCHW" or program.dtype != "float32":
            return program.steps[:cut], Tail(write, in_place, planes=program.layout == "NCHW")
        tabled = 0
        while tabled < len(behind) and isinstance(program.steps[cut + 1 + tabled].op, Normalize):
            tabled += 1
        before = program.steps[cut - 1] if cut else None
        if before is None or not isinstance(before.op, Flip) or before.op.axis != "x":
            return program.steps[:cut], Tail(write, in_place, planes=True, tabled=tabled)
        mirror = numbered("flip", before.n)
        return program.steps[: cut - 1], Tail(write, in_place, planes=True, tabled=tabled, mirror=mirror)
    return program.steps, None
