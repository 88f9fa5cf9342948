"""The host engine: only the part of an image that is used is decoded, and torch resizes it at once on the same core.

The law: pixels are those of torchvision v2 on tensors, bit for bit, for every op. The steps run in the
recipe's order, through torchvision's own kernels wherever a recipe uses more than the common ones.

Threads share the chunks of all batches in flight, so a slow image holds back its chunk alone.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dali_feed.compiler.host import HostProgram
from dali_feed.compiler.program import ViewsProgram, stored
from dali_feed.engines.engine import EngineWork, Result, Tail, Work
from dali_feed.engines.failures import engine_error
from dali_feed.engines.gpu.device import Uploads, use
from dali_feed.engines.host.decode import decoded, decoded_jpegs, jpegs, new_decoder, turned
from dali_feed.engines.host.image import ImageSteps, Kind, Pinned, Pool
from dali_feed.engines.no_images import DTYPES
from dali_feed.engines.ranges import DECODE
from dali_feed.engines.workers import Alone, linger
from dali_feed.errors import ClosedError, EngineError, TransformError
from dali_feed.options import Tuning
from dali_feed.screen.header import UnusableError
from dali_feed.transforms.keys import SIZE, TURN, WINDOW, Arrays, by_view

__all__ = ["HostEngine"]

_ENGINE = "host engine"  # its name in errors
# Images of a task: few enough to share a batch out evenly, enough to pay for the hand-over and to decode many together.
CHUNK, MOST = 8, 32


class _Flight:
    """A batch in flight: its chunks, ranges of slots, are taken by whatever thread is free."""

    def __init__(self, work: Work, arrays: list[Arrays], images: list[torch.Tensor], chunks: list[range]) -> None:
        self.work, self.arrays, self.images = work, arrays, images  # arrays and images by view
        self.bad: dict[int, str] = {}
        self.error: BaseException | None = None
        self.dropped = False
        self.chunks = iter(chunks)  # shared: taking the next one is atomic
        self._left = len(chunks)
        self._lock, self._done = threading.Lock(), threading.Lock()
        self._done.acquire()

    def chunk_done(self) -> None:
        """One chunk less."""
        with self._lock:
            self._left -= 1
            if not self._left:
                self._done.release()

    def wait(self) -> None:
        """Wait for the last chunk; called once."""
        self._done.acquire()


class _Worker:
    """A thread's decoder, the slots that it works on, its seconds of work and its images: any thread may look."""

    __slots__ = ("decoder", "flight", "images", "seconds", "slots")

    def __init__(self) -> None:
        self.decoder = new_decoder()
        self.flight: _Flight | None = None
        self.slots, self.images = range(0), 0
        self.seconds = 0.0


class HostEngine:
    """Runs a host program on CPU threads."""

    name = "host"

    def __init__(
        self, program: HostProgram | ViewsProgram[HostProgram], *, batch_size: int, device: int | None, tuning: Tuning
    ) -> None:
        del batch_size  # any will do
        self.depth, self._device = tuning.prefetch, device
        self._views = program.views
        self._steps = [ImageSteps(view) for view in self._views]
        self._alone = self._views[0] if len(self._views) == 1 else None  # the program, where there is one view
        self._flying: deque[_Flight] = deque()
        self._pool: Pool | Pinned = Pool() if device is None else Pinned()
        self._upload = None if device is None else Uploads(device)
        self._tasks: queue.SimpleQueue[_Flight | None] = queue.SimpleQueue()  # each flight once per thread
        self._urgent: _Flight | None = None  # goes before the chunks of those in flight
        self._awaited: _Flight | None = None
        self._halted = False
        self._workers: list[_Worker] = []
        self._count = tuning.cpu_threads
        self._threads: list[threading.Thread] = []  # begun with the first batch: whoever closes this is known by then

    def enter(self) -> None:
        """Make the engine's GPU the current one of this thread, or page-locked memory would be made for the first."""
        use(self._device)

    def prepare(self, payloads: list[memoryview]) -> list[Any]:
        """The payloads as they are: the threads that decode them make the decoder's inputs."""
        return payloads

    def _flight(self, work: Work, chunks: list[range], images: list[torch.Tensor] | None = None) -> _Flight:
        """A batch to begin, in the memory of another run of it or in its own."""
        arrays = by_view(work.arrays, len(self._views))
        if images is None:
            n = len(work.payloads)
            kinds: list[Kind] = []
            for view, own in zip(self._views, arrays, strict=True):
                height, width = view.size or own[SIZE][0].tolist()
                shape = (n, 3, height, width) if view.layout == "NCHW" else (n, height, width, 3)
                kinds.append((shape, DTYPES[view.dtype]))
            try:
                images = self._pool.take(kinds)
            except RuntimeError as error:  # no page-locked memory left, or a GPU that has failed
                raise engine_error(_ENGINE, "memory for a batch cannot be allocated", error, self._device) from error
        return _Flight(work, arrays, images, chunks)

    def _staffed(self) -> None:
        """Begin the threads; where Ctrl-C or the system does not let all of them, those that have begun end."""
        alone = Alone(self._count)
        threads = [
            threading.Thread(target=alone.around(self._run), name=f"dali_feed-host-{n}", daemon=True)
            for n in range(self._count)
        ]
        with alone.starting():
            for thread in threads:
                thread.start()
        self._threads = threads

    def _begin(self, flight: _Flight, chunks: int) -> _Flight:
        if not self._threads:
            self._staffed()
        for _ in range(min(len(self._threads), chunks)):
            self._tasks.put(flight)
        return flight

    def submit(self, work: Work) -> None:
        """Start a batch."""
        n = len(work.payloads)
        size = max(CHUNK, min(MOST, n // (2 * self._count)))
        chunks = [range(first, min(first + size, n)) for first in range(0, n, size)]
        self._flying.append(self._begin(self._flight(work, chunks), len(chunks)))

    def take(self) -> Result:
        """The oldest batch; where images failed, its bad slots."""
        return self._result(self._flying.popleft())

    def discard(self) -> None:
        """Drop the oldest batch; chunks that have begun are waited for."""
        flight = self._flying.popleft()
        flight.dropped = True
        flight.wait()

    def redo(self, work: Work, failed: Result | None = None, slots: Sequence[int] = ()) -> Result:
        """Run `work`, or only the `slots` of a batch that failed, before the batches in flight."""
        images = None if failed is None else self._kept(failed)
        chunks = [range(slot, slot + 1) for slot in (range(len(work.payloads)) if images is None else slots)]
        self._urgent = self._begin(self._flight(work, chunks, images), len(chunks))
        try:
            return self._result(self._urgent)
        finally:
            self._urgent = None

    def _kept(self, failed: Result) -> Any:
        """The memory of a batch that was run before, by view; None where its images have left for a GPU."""
        if failed.bad:
            return failed.images
        return None if self._upload is not None else [failed.images, *(images for images, _ in failed.more)]

    def halt(self) -> None:
        """Begin no image any more: each thread finishes its current one."""
        self._halted = True

    def resume(self) -> None:
        """Be ready for batches again."""
        self._halted = False

    def at_work(self) -> Sequence[int]:
        """The slots that threads work on."""
        awaited = self._awaited
        return [slot for each in self._workers if awaited is not None and each.flight is awaited for slot in each.slots]

    def worked(self) -> EngineWork:
        """See `engines.clock`."""
        workers = list(self._workers)
        return EngineWork(len(workers), sum(each.seconds for each in workers), sum(each.images for each in workers))

    def _result(self, flight: _Flight) -> Result:
        self._awaited = flight
        flight.wait()
        self._awaited = None
        if self._halted:
            msg = f"{_ENGINE}: the iteration was ended while its batch was run"
            raise ClosedError(msg)
        if flight.error is not None:
            error = flight.error
            if isinstance(error, TransformError):  # an error of a user's function, which it names
                raise error
            msg = f"{_ENGINE}: a step failed on an image that can be decoded; {type(error).__name__}: {error}"
            raise EngineError(msg) from error
        if flight.bad:
            return Result(flight.images, dict(sorted(flight.bad.items())))
        try:
            made: list[Any] = list(flight.images if self._upload is None else map(self._upload, flight.images))
        except RuntimeError as error:
            raise engine_error(_ENGINE, "a batch cannot be sent to the GPU", error, self._device) from error
        tails = [Tail.of(view.finish, own) for view, own in zip(self._views, flight.arrays, strict=True)]
        return Result(made[0], tail=tails[0], more=tuple(zip(made, tails, strict=True))[1:])

    def _run(self) -> None:
        worker = _Worker()
        self._workers.append(worker)
        while (flight := self._tasks.get()) is not None:
            for slots in flight.chunks:
                if (urgent := self._urgent) is not None:
                    for first in urgent.chunks:
                        self._try(worker, urgent, first)
                    del urgent
                self._try(worker, flight, slots)
            del flight  # else a waiting thread holds a batch's memory

    def _try(self, worker: _Worker, flight: _Flight, slots: range) -> None:
        worker.flight = flight
        try:
            if not flight.dropped:
                begun = time.perf_counter()  # twice per chunk
                with DECODE:
                    self._chunk(worker, flight, slots)
                worker.seconds += time.perf_counter() - begun
                worker.images += len(slots)
        except BaseException as error:  # noqa: BLE001  whatever it is, the feed thread must hear of it
            flight.error = error
        worker.flight = None
        flight.chunk_done()

    def _chunk(self, worker: _Worker, flight: _Flight, slots: range) -> None:
        """Decode and transform some slots."""
        work, alone, first = flight.work, self._alone, slots.start
        windows = work.arrays[WINDOW][first : slots.stop] if alone is not None and alone.window else None
        ways = work.arrays[TURN][first : slots.stop] if TURN in work.arrays else None
        if windows is not None:
            windows = (windows if ways is None else stored(windows, ways)).tolist()
        turns = None if ways is None else ways[:, :3].tolist()
        at = first
        while at < slots.stop:
            worker.slots = range(at, at + 1)
            if self._halted or flight.dropped:
                return
            window = None if windows is None else windows[at - first :]
            for pixels in self._decoded(worker, at, work.payloads[at : slots.stop], window):
                if self._halted or flight.dropped:
                    return
                worker.slots = range(at, at + 1)
                if isinstance(pixels, str):
                    flight.bad[at] = pixels
                else:
                    self._image(pixels if turns is None else turned(pixels, turns[at - first]), flight, at)
                at += 1

    @staticmethod
    def _decoded(
        worker: _Worker, first: int, payloads: list[memoryview], windows: list[list[int]] | None
    ) -> list[NDArray[np.uint8] | str]:
        """The image in slot `first` and those behind it that one call decodes; or why one cannot be decoded."""
        if streams := jpegs(payloads, windows):
            worker.slots = range(first, first + len(streams))
            return decoded_jpegs(worker.decoder, streams)
        try:
            return [decoded(worker.decoder, payloads[0], None if windows is None else windows[0])]
        except UnusableError as error:
            return [str(error)]

    def _image(self, pixels: NDArray[np.uint8], flight: _Flight, slot: int) -> None:
        """All that is made of one image."""
        if self._alone is not None:
            self._steps[0].run(pixels, flight.work.arrays, slot, flight.images[0][slot])
            return
        for view, steps, own, images in zip(self._views, self._steps, flight.arrays, flight.images, strict=True):
            y, x, height, width = own[WINDOW][slot].tolist() if view.window else (0, 0, *pixels.shape[:2])
            steps.run(pixels[y : y + height, x : x + width], own, slot, images[slot])

    def close(self) -> None:
        """Drop what is in flight and end the threads; one that a decoder keeps ends when that is done."""
        self._halted = True
        while self._flying:
            self._flying.popleft().dropped = True
        threads, self._threads = self._threads, []
        for _ in threads:
            self._tasks.put(None)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(2)
                if thread.is_alive():
                    linger(thread)
