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
from dali_feed.engines.host.steps import ImageSteps
from dali_feed.engines.workers import Job, Workers, WorkerThread
from dali_feed.errors import EngineError, TransformError
from dali_feed.options import Tuning
from dali_feed.records.slabs import ALIGNED, Reused
from dali_feed.screen.header import UnusableError
from dali_feed.transforms.host import HostProgram
from dali_feed.transforms.op import SIZE, TURN, WINDOW
from dali_feed.transforms.program import Output, Tail, stored

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
        images = self._kept(before)
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
