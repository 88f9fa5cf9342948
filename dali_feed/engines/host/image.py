"""One image through a host program's steps, as torchvision v2 takes a tensor through its transforms.

Each op makes its own steps. The common ones (resize, mirror, to float, normalize) call torch itself in the order and
with the operands of torchvision's kernels, because a call of theirs costs ten microseconds under the interpreter's
lock; tests hold the two equal bit for bit. All else is torchvision's own functions. Where there is a C library, it does
the steps from the mirror on in one pass (`levels.py`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dali_feed.compiler.host import HostProgram, HostStep
from dali_feed.engines.no_images import DTYPES
from dali_feed.native.pixels import PixelWriter, steps_of, writer
from dali_feed.records.slabs import ALIGNED, Reused
from dali_feed.transforms.convert import Normalize, ToFloat
from dali_feed.transforms.crops import Flip
from dali_feed.transforms.keys import Arrays, Key, numbered
from dali_feed.transforms.op import OnImage, OnPlanes, Op

__all__ = ["ImageSteps", "Kind", "Pinned", "Pool", "levels_of"]


# The tail: the steps at the end of nearly every recipe, run in the memory of the batch itself.
#
# To float, scaled to 0..1, then normalized, then erased: torchvision's operations in its order, so its bits, without
# a copy of the image between them.


class ImageTail:
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


def split_tail(program: HostProgram) -> tuple[list[HostStep], ImageTail | None]:
    """The steps, and the tail behind them where they end in one."""
    cut = cut_of(program.steps)
    write = None if cut is None else program.steps[cut.first].op.into_batch()
    if cut is None or write is None:
        return program.steps, None
    return program.steps[: cut.first], ImageTail(write, cut.in_place, planes=program.layout == "NCHW")


# The end of a program in one pass of C: flips, to float, Normalize, and the way into the batch.
#
# The law: its bits are those of the steps that it takes the place of. What becomes of a level is looked up in a table
# that those steps have made. Where the library is not there, or an image is not one of bytes, the steps themselves run.


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}  # NumPy has no bfloat16


class Levels:
    """Takes the steps from number `first` on. Used by many threads at once."""

    def __init__(
        self, first: int, pixels: PixelWriter, flips: list[HostStep], behind: list[OnPlanes], program: HostProgram
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


class ImageSteps:
    """A program's steps, ready to run. Used by many threads at once."""

    def __init__(self, program: HostProgram) -> None:
        steps, self._tail = split_tail(program)
        self._apply: list[OnImage] = [apply for step in steps for apply in step.on_image()]
        self._channels_first = program.layout == "NCHW"
        self._levels = levels_of(program)
        before = [] if self._levels is None else steps[: self._levels.first]
        self._before = sum(len(step.on_image()) for step in before)  # functions that the pass is behind

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
        if not self._channels_first:
            image = image.permute(1, 2, 0)
        if self._tail is None:
            out.copy_(image)
        else:
            self._tail.run(image, out, arrays, slot)


# Memory of the host engine's batches.
#
# It goes back to a pool when the last tensor over it is deleted.


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
