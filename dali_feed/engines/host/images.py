"""Images made on the CPU: only the part of an image that is used is decoded, and torch resizes it on the same core.

The law: pixels are those of torchvision v2 on tensors, bit for bit, for every op. The steps run in the
recipe's order, through torchvision's own kernels wherever a recipe uses more than the common ones.

Workers share the chunks of all batches in flight, so a slow image holds back its chunk alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from dali_feed.engines.device.cuda import Device
from dali_feed.engines.device.ranges import DECODE
from dali_feed.engines.engine import ImageMaker, Part, Pixels
from dali_feed.engines.failures import engine_error
from dali_feed.engines.finish import DTYPES
from dali_feed.engines.host.decode import decoded, decoded_jpegs, jpegs, new_decoder, turned
from dali_feed.engines.workers import Job, Workers, WorkerThread
from dali_feed.errors import EngineError, TransformError
from dali_feed.native.library import PixelWriter, steps_of, writer
from dali_feed.options import Tuning
from dali_feed.records.slabs import ALIGNED, Reused
from dali_feed.screen.header import UnusableError
from dali_feed.transforms.convert import Normalize, ToFloat
from dali_feed.transforms.crops import Flip
from dali_feed.transforms.erasing import colour_of
from dali_feed.transforms.op import SIZE, TURN, WINDOW, Arrays, Key, OnImage, Op, of_op
from dali_feed.transforms.program import HostProgram, Output, Tail, stored

_ENGINE = "host engine"  # its name in errors
# Images of a task: few enough to share a batch out evenly, enough to pay for the hand-over and to decode many together.
CHUNK, MOST = 8, 32


Kind = tuple[tuple[int, ...], torch.dtype]  # of a tensor


class HostImages(ImageMaker):
    """Runs host programs, one for each output, on the engine's workers; memory of batches goes with them."""

    by_workers = True

    def __init__(
        self, outputs: Sequence[Output], workers: Workers, *, batch_size: int, device: Device | None, tuning: Tuning
    ) -> None:
        del batch_size, tuning  # any will do
        self._workers, self._gpu = workers, device
        self.programs = [cast("HostProgram", output.program) for output in outputs]
        self.steps = [ImageSteps(program) for program in self.programs]
        self._pool = Reused()

    def start(self, part: Part) -> None:
        """Begin: the workers take its chunks in turn."""
        n = len(part.payloads)
        size = max(CHUNK, min(MOST, n // (2 * self._workers.count)))
        chunks = [range(first, min(first + size, n)) for first in range(0, n, size)]
        part.ticket = _Decoding(self, part, self._memory(part), chunks)
        self._workers.add(part.ticket)

    def finish(self, part: Part) -> None:
        job: _Decoding = part.ticket
        try:
            self._workers.wait(job)
        except BaseException as error:
            if error is not job.error or isinstance(error, TransformError):  # of a user's function, which it names
                raise
            msg = f"{_ENGINE}: a step failed on an image that can be decoded; {type(error).__name__}: {error}"
            raise EngineError(msg) from error
        if job.bad:
            part.bad = dict(sorted(job.bad.items()))
            return
        try:
            sent = job.images if self._gpu is None else list(map(self._gpu.send, job.images))
        except RuntimeError as error:
            what = "a batch cannot be sent to the GPU"
            raise self._failed(what, error) from error
        tails = [Tail.of(program.finish, own) for program, own in zip(self.programs, part.rows, strict=True)]
        part.images = [Pixels(images, tail, device=self._gpu) for images, tail in zip(sent, tails, strict=True)]

    def drop(self, part: Part) -> None:
        """Begin no image of it any more, and wait for chunks that have begun."""
        if part.ticket is not None:
            self._workers.drop(part.ticket)

    def again(self, part: Part, before: Part | None, slots: Sequence[int]) -> None:
        """Run it, or only the `slots` of one that failed, before the batches in flight."""
        whole = len(slots) == len(part.payloads)  # then of another size, perhaps
        images = None if whole else self._kept(before)
        every = range(len(part.payloads)) if images is None else slots
        chunks = [range(slot, slot + 1) for slot in every]
        part.ticket = _Decoding(self, part, self._memory(part) if images is None else images, chunks)
        self._workers.add(part.ticket, first=True)
        try:
            self.finish(part)
        except BaseException:
            self._workers.drop(part.ticket)
            raise

    def at_work(self, part: Part) -> Sequence[int]:
        return () if part.ticket is None else self._workers.at(part.ticket)

    def _kept(self, before: Part | None) -> Any:
        """The memory of a batch that was run before, by output; None where its images have left for a GPU."""
        if before is None or not (before.bad or self._gpu is None):
            return None
        return before.ticket.images

    def _memory(self, part: Part) -> list[torch.Tensor]:
        n, kinds = len(part.payloads), list[Kind]()
        for program, own in zip(self.programs, part.rows, strict=True):
            height, width = program.size or own[SIZE][0].tolist()
            shape = (n, 3, height, width) if program.layout == "NCHW" else (n, height, width, 3)
            kinds.append((shape, DTYPES[program.dtype]))
        try:
            return memory_of(self._pool, kinds) if self._gpu is None else [self._gpu.pinned(*kind) for kind in kinds]
        except RuntimeError as error:  # no page-locked memory left, or a GPU that has failed
            what = "memory for a batch cannot be allocated"
            raise self._failed(what, error) from error

    def _failed(self, what: str, error: Exception) -> EngineError:
        return engine_error(_ENGINE, what, error, None if self._gpu is None else self._gpu.number)


class _Decoding(Job):
    """The images of a part, decoded and transformed into their places in the batch."""

    halted = f"{_ENGINE}: the iteration was ended while its batch was run"

    def __init__(
        self, maker: HostImages, part: Part, images: list[torch.Tensor], chunks: Sequence[Sequence[int]]
    ) -> None:
        super().__init__(chunks, part.stop)
        self._payloads, self._rows, self.images = part.payloads, part.rows, images  # rows and images by output
        self._programs, self._steps = maker.programs, maker.steps
        self._alone = len(maker.programs) == 1
        self.bad: dict[int, str] = {}

    def run(self, worker: WorkerThread, slots: Sequence[int]) -> None:
        """Decode and transform some slots."""
        rows, first, stop = self._rows[0], slots[0], slots[-1] + 1
        windows = rows[WINDOW][first:stop] if self._alone and self._programs[0].window else None
        ways = rows[TURN][first:stop] if TURN in rows else None
        if windows is not None:
            windows = (windows if ways is None else stored(windows, ways)).tolist()
        turns = None if ways is None else ways[:, :3].tolist()
        with DECODE:
            decoder, at = worker.own(new_decoder), first
            while at < stop and not self.dropped:
                worker.slots = range(at, at + 1)
                window = None if windows is None else windows[at - first :]
                for pixels in self._decoded(worker, decoder, at, self._payloads[at:stop], window):
                    if self.dropped:
                        return
                    worker.slots = range(at, at + 1)
                    if isinstance(pixels, str):
                        self.bad[at] = pixels
                    else:
                        self._image(pixels if turns is None else turned(pixels, turns[at - first]), at)
                    at += 1
        worker.images += at - first

    @staticmethod
    def _decoded(
        worker: WorkerThread, decoder: Any, first: int, payloads: list[memoryview], windows: list[list[int]] | None
    ) -> list[NDArray[np.uint8] | str]:
        """The image in slot `first` and those behind it that one call decodes; or why one cannot be decoded."""
        if streams := jpegs(payloads, windows):
            worker.slots = range(first, first + len(streams))
            return decoded_jpegs(decoder, streams)
        try:
            return [decoded(decoder, payloads[0], None if windows is None else windows[0])]
        except UnusableError as error:
            return [str(error)]

    def _image(self, pixels: NDArray[np.uint8], slot: int) -> None:
        if self._alone:
            self._steps[0].run(pixels, self._rows[0], slot, self.images[0][slot])
            return
        for program, steps, own, images in zip(self._programs, self._steps, self._rows, self.images, strict=True):
            y, x, height, width = own[WINDOW][slot].tolist() if program.window else (0, 0, *pixels.shape[:2])
            steps.run(pixels[y : y + height, x : x + width], own, slot, images[slot])


# Memory of batches, which goes back to a pool when the last tensor over it is deleted.


_IN_NUMPY = {torch.uint8: np.uint8, torch.float32: np.float32, torch.float16: np.float16, torch.bfloat16: np.int16}


def memory_of(pool: Reused, kinds: Sequence[Kind]) -> list[torch.Tensor]:
    """Tensors whose memory is not used again until the last tensor over any of them is deleted. For any thread."""
    sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in kinds]
    starts = [0, *itertools.accumulate(-(-size // ALIGNED) * ALIGNED for size in sizes)]
    whole, out = pool(starts[-1]), []
    for (shape, dtype), start, length in zip(kinds, starts, sizes, strict=False):
        # Shaped by NumPy: an operation of torch lets go of the interpreter's lock and queues for it.
        shaped = torch.from_numpy(whole[start : start + length].view(_IN_NUMPY[dtype]).reshape(shape))
        out.append(shaped.view(dtype) if dtype == torch.bfloat16 else shaped)
    return out


# One image through a host program's steps, as torchvision v2 takes a tensor through its transforms.
#
# Each op makes its own steps. The common ones (resize, mirror, to float, normalize) call torch itself in the order and
# with the operands of torchvision's kernels, because a call of theirs costs ten microseconds under the interpreter's
# lock; tests hold the two equal bit for bit. All else is torchvision's own functions. Where there is a C library, it
# does the steps from the mirror on in one pass.


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
    while first < end_of_ops and not (isinstance(op := ops[first], ToFloat) and op.dtype != "uint8"):
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
