"""The tail: the steps at the end of nearly every recipe, run in the memory of the batch itself.

To float, scaled to 0..1, then normalized, then erased: torchvision's operations in its order, so its bits, without
a copy of the image between them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from dali_feed.compiler.host import HostProgram, HostStep
from dali_feed.transforms.base import OnPlanes
from dali_feed.transforms.keys import Arrays

__all__ = ["Cut", "Tail", "cut_of", "split_tail"]


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


class Cut(NamedTuple):
    """Step `first` converts to floats; those from `behind` on, as `in_place`, go on in the memory of the batch."""

    first: int
    behind: int
    in_place: list[OnPlanes]


def cut_of(steps: list[HostStep], *, by_level: bool = False) -> Cut | None:
    """The conversion that has nothing behind it but what can be done in the memory of the batch.

    It is the first one, whose image is of bytes as far as the steps say.

    by_level  steps that look at one value at a time belong to the conversion, and it may be a later one: for a caller
              that looks at what the image is
    """
    for first, step in enumerate(steps):
        if step.op.into_batch() is None:
            continue
        behind = first + 1
        while by_level and behind < len(steps) and steps[behind].op.by_level:
            behind += 1
        found = [each.on_planes() for each in steps[behind:]]
        in_place = [apply for apply in found if apply is not None]
        if len(in_place) == len(found):
            return Cut(first, behind, in_place)
        if not by_level:
            break
    return None


def split_tail(program: HostProgram) -> tuple[list[HostStep], Tail | None]:
    """The steps, and the tail behind them where they end in one."""
    cut = cut_of(program.steps)
    write = None if cut is None else program.steps[cut.first].op.into_batch()
    if cut is None or write is None:
        return program.steps, None
    return program.steps[: cut.first], Tail(write, cut.in_place, planes=program.layout == "NCHW")
