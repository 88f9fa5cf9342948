"""The end of a program in one pass of C: flips, to float, Normalize, and the way into the batch.

The law: its bits are those of the steps that it takes the place of. What becomes of a level is looked up in a table
that those steps have made. Where the library is not there, or an image is not one of bytes, the steps themselves run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from numpy.typing import NDArray

from dali_feed.compiler.host import HostProgram, HostStep
from dali_feed.engines.dtypes import DTYPES
from dali_feed.engines.host.tail import Cut, cut_of, split_tail
from dali_feed.native.pixels import Pixels, steps_of, writer
from dali_feed.transforms.base import OnPlanes, Op
from dali_feed.transforms.flip import Flip
from dali_feed.transforms.keys import Arrays, Key, numbered
from dali_feed.transforms.normalize import Normalize
from dali_feed.transforms.to_float import ToFloat

__all__ = ["Levels", "levels_of"]

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}  # NumPy has no bfloat16


class Levels:
    """Takes the steps from number `first` on. Used by many threads at once."""

    def __init__(
        self, first: int, pixels: Pixels, flips: list[HostStep], behind: list[OnPlanes], program: HostProgram
    ) -> None:
        self.first = first
        self._pixels, self._behind, self._dtype = pixels, behind, DTYPES[program.dtype]
        self._mirror, self._turn = _keys(flips, "x"), _keys(flips, "y")
        self._planes = program.layout == "NCHW"

    def run(self, image: torch.Tensor, out: torch.Tensor, arrays: Arrays, slot: int) -> bool:
        """An image (3 or 1, height, width) into its place in the batch; False, and nothing done, where it cannot."""
        if image.dtype is not torch.uint8 or out.dtype is not self._dtype or not (image.is_cpu and out.is_cpu):
            return False
        mirrored = upside_down = False
        for key in self._mirror:
            mirrored ^= bool(arrays[key][slot])
        for key in self._turn:
            upside_down ^= bool(arrays[key][slot])
        if not self._pixels.write(image, out, mirrored=mirrored, upside_down=upside_down):
            return False
        if self._behind:
            planes = out if self._planes else out.permute(2, 0, 1)
            for apply in self._behind:
                apply(planes, arrays, slot)
        return True


def _keys(flips: list[HostStep], axis: str) -> list[Key]:
    return [numbered("flip", step.n) for step in flips if isinstance(step.op, Flip) and step.op.axis == axis]


def levels_of(program: HostProgram) -> Levels | None:
    """The pass at the end of a program, where it can have one."""
    steps = program.steps
    cut = cut_of(steps, by_level=True)
    if cut is None:
        if program.dtype != "uint8":
            return None
        cut = Cut(len(steps), len(steps), [])
    taken = steps[cut.first : cut.behind]
    table = _table(replace(program, steps=taken, layout="NCHW")) if taken else None
    computed = None if table is None else _computed([step.op for step in taken], table)
    pixels = writer(table, steps=computed, channels_last=program.layout == "NHWC")
    first = cut.first
    while first and isinstance(steps[first - 1].op, Flip):
        first -= 1
    return None if pixels is None else Levels(first, pixels, steps[first : cut.first], cut.in_place, program)


def _computed(ops: list[Op], table: NDArray[Any]) -> Any:
    """The numbers of the common steps, a conversion to float32 and at most one Normalize; None: there are others."""
    match ops:
        case [ToFloat("float32", scale)]:
            mean, std = (0.0,), (1.0,)
        case [ToFloat("float32", scale), Normalize(mean, std)]:
            pass
        case _:
            return None
    return steps_of(1 / 255 if scale else 1.0, mean, std, table)


def _table(program: HostProgram) -> NDArray[Any]:
    """The bits (3, 256) of what steps that look at one value at a time make of each level."""
    image = torch.arange(256, dtype=torch.uint8).expand(3, 1, 256)
    made = torch.empty(3, 1, 256, dtype=DTYPES[program.dtype])
    steps, tail = split_tail(program)
    for step in steps:
        for apply in step.on_image():
            image = apply(image, {}, 0)
    if tail is None:
        made.copy_(image)
    else:
        tail.run(image, made, {}, 0)
    return made.view(_BITS[made.itemsize])[:, 0].numpy()
