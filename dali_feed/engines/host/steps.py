"""One image through a host program's steps, as torchvision v2 takes a tensor through its transforms.

Each op makes its own steps. The common ones (resize, mirror, to float, normalize) call torch itself in the order and
with the operands of torchvision's kernels, because a call of theirs costs ten microseconds under the interpreter's
lock; tests hold the two equal bit for bit. All else is torchvision's own functions. Where there is a C library, it does
the steps from the mirror on in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dali_feed.engines.finish import DTYPES
from dali_feed.native.pixels import PixelWriter, steps_of, writer
from dali_feed.transforms.convert import Normalize, ToFloat
from dali_feed.transforms.crops import Flip
from dali_feed.transforms.erasing import colour_of
from dali_feed.transforms.host import HostProgram
from dali_feed.transforms.op import Arrays, Key, OnImage, Op, of_op


class ImageSteps:
    """A program's steps, ready to run. Used by many threads at once."""

    def __init__(self, program: HostProgram) -> None:
        self._apply: list[OnImage] = [op.step(n) for n, op in program.steps]
        self._channels_first = program.layout == "NCHW"
        self._levels = levels_of(program)
        self._before = 0 if self._levels is None else self._levels.first  # steps that the pass is behind

    def run(self, pixels: NDArray[np.uint8], arrays: Arrays, slot: int, out: torch.Tensor) -> None:
        """`pixels` (height, width, 3), with row `slot` of the parameters, into `out`, the slot's place in the batch."""
        self.run_on(torch.from_numpy(pixels).permute(2, 0, 1), arrays, slot, out)

    def run_on(self, image: torch.Tensor, arrays: Arrays, slot: int, out: torch.Tensor) -> None:
        """The same for an image (3, height, width), on any device."""
        done = 0
        if self._levels is not None:
            for apply in self._apply[: self._before]:
                image = apply(image, arrays, slot)
            if self._levels.run(image, out, arrays, slot):
                return
            done = self._before
        for apply in self._apply[done:] if done else self._apply:
            image = apply(image, arrays, slot)
        image = image.expand(3, -1, -1)  # of one channel three that are equal: a batch has three
        out.copy_(image if self._channels_first else image.permute(1, 2, 0))


# The end of a program in one pass of C: flips, to float, Normalize, and the way into the batch.
#
# The law: its bits are those of the steps that it takes the place of. What becomes of a level is looked up in a table
# that those steps have made. Where the library is not there, or an image is not one of bytes, the steps themselves run.


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}  # NumPy has no bfloat16


class Levels:
    """Takes the steps from number `first` on, erasings at the end too. Used by many threads at once."""

    def __init__(
        self,
        first: int,
        pixels: PixelWriter,
        flips: Sequence[tuple[int, Op]],
        erasings: list[tuple[Key, torch.Tensor]],
        program: HostProgram,
    ) -> None:
        self.first = first
        self._pixels, self._dtype = pixels, DTYPES[program.dtype]
        self._mirror, self._turn = _keys(flips, "x"), _keys(flips, "y")
        self._erasings = erasings
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
        if self._erasings:
            planes = out if self._planes else out.permute(2, 0, 1)
            for key, colour in self._erasings:
                y, x, height, width = arrays[key][slot].tolist()
                planes[:, y : y + height, x : x + width] = colour
        return True


def _keys(flips: Sequence[tuple[int, Op]], axis: str) -> list[Key]:
    return [of_op("flip", n) for n, op in flips if isinstance(op, Flip) and op.axis == axis]


def levels_of(program: HostProgram) -> Levels | None:
    """The pass at the end of a program, where it can have one.

    It ends in steps that look at one value at a time, of which the first converts bytes to floats, and in erasings.
    """
    ops = [op for _, op in program.steps]
    first = end_of_ops = len(ops)
    while first and (ops[first - 1].by_level or ops[first - 1].erases() is not None):
        first -= 1
    while first < end_of_ops and not _converts(ops[first]):
        first += 1
    if first == end_of_ops:
        if program.dtype != "uint8":
            return None
        while first and ops[first - 1].erases() is not None:
            first -= 1
    end = program.steps[first:]
    taken = [(n, op) for n, op in end if op.by_level]
    erasings = [(of_op("effect", n), _colour(n, op, taken)) for n, op in end if not op.by_level]
    table = _table(taken) if taken else None
    computed = None if table is None else _computed([op for _, op in taken], table)
    pixels = writer(table, steps=computed, channels_last=program.layout == "NHWC")
    before = first
    while before and isinstance(ops[before - 1], Flip):
        before -= 1
    return None if pixels is None else Levels(before, pixels, program.steps[before:first], erasings, program)


def _colour(number: int, erasing: Op, taken: Sequence[tuple[int, Op]]) -> torch.Tensor:
    """What the rectangle has at the end: what is written into it, as the steps behind it change it."""
    dtypes = [op.dtype for n, op in taken if n < number and isinstance(op, ToFloat)]
    colour: torch.Tensor = colour_of(erasing.erases()).expand(3, 1, 1).to(DTYPES[dtypes[-1] if dtypes else "uint8"])
    for n, op in taken:
        colour = op.step(n)(colour, {}, 0) if n > number else colour
    return colour


def _converts(op: Op) -> bool:
    return isinstance(op, ToFloat) and op.dtype != "uint8"


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


def _table(steps: Sequence[tuple[int, Op]]) -> NDArray[Any]:
    """The bits (3, 256) of what steps that look at one value at a time make of each level."""
    image: Any = torch.arange(256, dtype=torch.uint8).expand(3, 1, 256)
    for n, op in steps:
        image = op.step(n)(image, {}, 0)
    bits: torch.Tensor = image.contiguous()
    return bits.view(_BITS[bits.itemsize])[:, 0].numpy()
