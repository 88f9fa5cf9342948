"""The engine: runs a program on batches of payloads. Makers of images, one for each image column, do the pixels.

The law: every batch that goes in comes out, whole. A sample that cannot be decoded comes back as a mark with its
reason, never as an exception of the batch; an exception is never the fault of a record. Whatever is raised, nothing
reads the batch's memory any more then, but functions of the user's, which have copies.

An engine is driven by one thread. `submit` never waits for a batch to be done; up to `depth` batches may be in flight,
each known by its `Work`, and whoever takes or drops one names it. What runs beside the makers, the columns that follow
images and late columns, are jobs of the same workers as the host's decoding.
"""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dali_feed import sync
from dali_feed.columns.column import Bytes
from dali_feed.columns.follow import Follower
from dali_feed.engines.workers import Job, Workers, WorkerThread
from dali_feed.errors import DaliFeedError
from dali_feed.transforms.op import CANVAS, Arrays
from dali_feed.transforms.program import Followed, Program, RowKey, Tail

if TYPE_CHECKING:
    from dali_feed.engines.device.cuda import Device


# A forked child (torch's workers) leaves alone what it inherits. A pipeline of DALI's that is garbage there would be
# collected by a destructor that joins threads which the child does not have: it hangs or dies of a segmentation fault.
os.register_at_fork(after_in_child=gc.freeze)

_BEHIND = 2  # batches beyond its depth that a GPU may still read when the next one is started


@dataclass(slots=True)
class Pixels:
    """Images of a batch, with the finish step that is left: `from_dlpack(pixels)` gives them finished.

    images  dense; with `tail`, uint8 NHWC on the device, for the finish step; without, an array with `__dlpack__`
    device  of the batch: a GPU, or None, which is the CPU
    """

    images: Any
    tail: Tail | None = None
    device: Device | None = field(default=None, kw_only=True, repr=False, compare=False)

    def reading(self) -> AbstractContextManager[None]:
        """Within, work that is enqueued on a GPU may read this, and what else goes with its batch."""
        return nullcontext() if self.device is None else self.device.hold(self)

    def __dlpack_device__(self) -> tuple[int, int]:
        """(type, number) of the device, as DLPack counts them: (1, 0) is the CPU, (2, n) a CUDA device."""
        kind, number = self.images.__dlpack_device__()
        return int(kind), int(number)

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        """The finished images; without a copy on the CPU. On a GPU each call makes a new array, ready on `stream`.

        (n, 3, height, width), or (n, height, width, 3) with `Feed(layout="NHWC")`. `stream`: as DLPack says.
        """
        if self.device is None:
            return self.images.__dlpack__(**({} if stream is None else {"stream": stream}), **options)
        from dali_feed.engines.finish import exported  # torch: there since an engine made them

        return exported(self.images, self.tail, self.device, stream, options)


@dataclass(slots=True, weakref_slot=True)
class Work:
    """A batch to run, and what came of it.

    Given:
        ids: of the samples, int64 (n,).
        payloads: by image column a screened payload per sample.
        rows: what the samples take into the program's outputs, see `Program.draw`.
        values: the source's, by name an array or list of a value per sample.
        owner: whose batch it is; an engine does not look at it.

    Filled by the engine:
        outputs: images for each output of the program, or, of a user's own pipeline, what that gives; none where any
            slot is bad.
        columns: what follows the images, and late columns, by name a value per slot.
        bad: slot -> why its record cannot be used, in the order of slots.
    """

    ids: NDArray[np.int64]
    payloads: dict[str, list[memoryview]]
    rows: dict[RowKey, NDArray[Any]]
    values: dict[str, Any] = field(default_factory=dict)
    outputs: list[Pixels] = field(default_factory=list)
    columns: dict[str, list[Any]] = field(default_factory=dict)
    bad: dict[int, str] = field(default_factory=dict)
    owner: Any = None
    flight: _Flight | None = field(default=None, repr=False)  # the engine's own

    def release(self) -> None:
        """Let go of what the engine made and gave: whoever has it by now keeps it alone."""
        self.flight, self.outputs, self.columns = None, [], {}


@dataclass(slots=True, weakref_slot=True)
class Part:
    """The images of one column of a batch: what their maker is given, what it makes, and its ticket there.

    rows    of each output of the column, by the names of its program
    values  the batch's, for a user's pipeline that takes them
    stop    is set when the pass of the batch has ended
    images  of each output, once they are finished; none where a slot is `bad`, which has the reason
    ticket  the maker's own, from `start` or `again` on: what is in flight, and where the images of good slots lie
    """

    payloads: list[memoryview]
    rows: Sequence[Arrays]
    values: Mapping[str, Any] = field(default_factory=dict)
    ids: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    stop: sync.Event = field(default_factory=sync.Event)
    images: list[Pixels] = field(default_factory=list)
    bad: dict[int, str] = field(default_factory=dict)
    ticket: Any = None


class ImageMaker:
    """What makes the images of one column: on the host's CPU, or by DALI.

    by_workers  whether the engine's workers do it, so that what they have worked says what it costs
    """

    by_workers: bool = False

    @property
    def ready(self) -> int:
        """Images so far that it had without making them, as a cache has."""
        return 0

    def start(self, part: Part) -> None:
        """Begin; it never waits for images."""

    def finish(self, part: Part) -> None:
        """Fill it, once its images are done; where some failed, with its bad slots.

        Raises:
            EngineError: a failure that is no record's fault.
            ClosedError: its pass has ended.
        """
        raise NotImplementedError

    def drop(self, part: Part) -> None:
        """Let go of it, begun or not, finished or not: behind it nothing reads its memory."""

    def again(self, part: Part, before: Part | None, slots: Sequence[int]) -> None:
        """Fill it at once, beside those in flight; equal input gives equal output.

        `before` is what came of the same batch, with or without bad slots, which differs only in `slots`.
        """
        raise NotImplementedError

    def at_work(self, part: Part) -> Sequence[int]:
        """The slots of it that are being worked on, where that can be said. For any thread."""
        return ()

    def close(self) -> None:
        """Drop what is in flight and release device memory. Safe to call twice."""


@dataclass(frozen=True, slots=True)
class EngineWork:
    """Since the engine was made: its threads, the seconds that they worked all together, and the images they made."""

    threads: int
    seconds: float
    images: int


class _Flight:
    """What of a batch is under way: a part for each image column, and the jobs beside them."""

    def __init__(self, stop: sync.Event) -> None:
        self.stop = stop
        self.parts: dict[str, Part] = {}
        self.jobs: list[_BySlot] = []


class Engine:
    """A program made ready to run.

    program  its outputs; none, and batches without an image come out as they went in
    images   what makes those of each image column
    late     columns that are made when their batch is run
    depth    how many batches may be in flight
    device   the GPU that it makes batches for; None: the CPU
    """

    def __init__(
        self,
        program: Program,
        images: Mapping[str, ImageMaker],
        late: Mapping[str, Bytes],
        workers: Workers,
        *,
        depth: int,
        device: Device | None,
    ) -> None:
        self.name, self.depth, self.device = program.engine, depth, device
        self._program, self._images, self._late, self._workers = program, dict(images), dict(late), workers
        self._follows = [
            (number, followed, own)
            for number, output in enumerate(program.outputs)
            if (followed := output.followed) is not None and (own := output.followers)
        ]
        self._has_jobs = bool(self._follows or late)
        self._called = [outputs[0].called for outputs in program.columns.values()]
        self._waits: tuple[str, Callable[[], Sequence[int]]] = self.name, tuple  # for what, and its slots

    def enter(self) -> None:
        """Called once by a thread before it uses the engine: the engine's CUDA device becomes the thread's."""
        if self.device is not None:
            self.device.enter()

    def submit(self, work: Work, stop: sync.Event) -> None:
        """Start a batch. At most `depth` may be in flight; `stop` is set when its pass has ended."""
        if self.device is not None:
            self.device.bound(self.depth + _BEHIND)
        flight = self._flight(work, stop)
        try:
            for name, part in flight.parts.items():
                self._images[name].start(part)
            if self._has_jobs:
                self._begin(flight, work, range(len(work.ids)))
        except BaseException:
            self._drop(flight)
            raise
        work.flight = flight

    def take(self, work: Work) -> Work:
        """That batch, filled, once it is done.

        Raises:
            EngineError: a failure that is no record's fault.
            ClosedError: its pass has ended.
        """
        flight = work.flight
        if flight is None:
            raise ValueError("engine: a batch is taken that was not submitted")

        def finish() -> None:
            for name, part in flight.parts.items():
                self._waits = self.name, functools.partial(self._images[name].at_work, part)
                self._images[name].finish(part)

        return self._filled(work, flight, finish)

    def discard(self, work: Work) -> None:
        """Wait for that batch and drop it, whether it failed or not, and whether it has been taken or not."""
        if work.flight is not None:
            self._drop(work.flight)

    def redo(self, work: Work, before: Work | None = None, slots: Sequence[int] = ()) -> Work:
        """Fill one batch at once, beside those in flight; equal input gives equal output.

        `before` is the batch as it was taken, which need not have anything bad; it differs only in `slots`.
        """
        was = None if before is None else before.flight
        flight = work.flight = self._flight(work, sync.Event() if was is None else was.stop)
        again = range(len(work.ids)) if before is None else slots

        def run() -> None:
            if self._has_jobs:
                self._begin(flight, work, again, first=True)
            for name, part in flight.parts.items():
                self._waits = self.name, functools.partial(self._images[name].at_work, part)
                self._images[name].again(part, None if was is None else was.parts[name], slots)

        self._filled(work, flight, run)
        if before is not None:
            fresh = set(again)
            for name, values in work.columns.items():
                both = enumerate(zip(values, before.columns[name], strict=True))
                work.columns[name] = [new if slot in fresh else old for slot, (new, old) in both]
        return work

    def halt(self) -> None:
        """Wake who waits for batches of a pass that has ended: `take` and `redo` raise ClosedError. For any thread."""
        self._workers.halt()

    def at_work(self) -> tuple[str, Sequence[int]]:
        """What is at work on the batch that `take` or `redo` waits for, and on which slots, if that is known."""
        name, slots = self._waits
        return name, slots()

    @property
    def threads(self) -> list[sync.Thread]:
        """Its threads that are inside a decoder or a function of the user's now. For any thread."""
        return self._workers.inside

    def worked(self) -> EngineWork | None:
        """What its threads have worked. For any thread. None where a maker of images has threads of its own."""
        every = list(self._images.values())
        if not every or not all(images.by_workers for images in every):
            return None
        threads, seconds, images = self._workers.worked()
        return EngineWork(threads, seconds, images // len(every) + every[0].ready)

    def close(self) -> None:
        """Drop what is in flight and release threads and device memory. Safe to call twice."""
        drain = () if self.device is None else (self.device.drain,)  # before DALI's memory pool is released
        _every([self._workers.close, *drain, *(images.close for images in self._images.values())])

    def _flight(self, work: Work, stop: sync.Event) -> _Flight:
        flight = _Flight(stop)
        own, _ = self._program.split(work.rows)
        rows: dict[str, list[Arrays]] = {name: [] for name in self._images}
        for output, its in zip(self._program.outputs, own, strict=True):
            rows[output.column].append(its)
        for name in self._images:
            flight.parts[name] = Part(work.payloads[name], rows[name], work.values, work.ids, stop)
        return flight

    def _begin(self, flight: _Flight, work: Work, slots: Sequence[int], *, first: bool = False) -> None:
        """Start what runs beside the images, for some of the slots."""
        each = max(1, min(_CHUNK, len(slots) // (4 * self._workers.count)))
        chunks = [slots[at : at + each] for at in range(0, len(slots), each)]
        if self._follows:
            _, rows = self._program.split(work.rows)
            flight.jobs.append(_Following(work, self._follows, rows, chunks, flight.stop))
        if self._late:
            flight.jobs.append(_Making(work, self._late, chunks, flight.stop))
        for job in flight.jobs:
            self._workers.add(job, first=first)

    def _filled(self, work: Work, flight: _Flight, make: Callable[[], None]) -> Work:
        """`work`, once `make` has filled the parts and the jobs beside them are done."""
        try:
            make()
            for job in flight.jobs:
                self._waits = job.called or self.name, functools.partial(self._workers.at, job)
                self._workers.wait(job)
        except BaseException:
            self._drop(flight)
            raise
        finally:
            self._waits = self.name, tuple
        bad: dict[int, str] = {}  # of several reasons for one slot the images' own comes first
        for part, called in zip(flight.parts.values(), self._called, strict=True):
            for slot, why in part.bad.items():
                bad.setdefault(slot, called + why)
        jobs, flight.jobs = flight.jobs, []
        for job in jobs:
            job.drop()
            bad = job.bad | bad
            work.columns |= job.values
        work.bad = dict(sorted(bad.items()))
        work.outputs = [] if bad else [pixels for part in flight.parts.values() for pixels in part.images]
        return work

    def _drop(self, flight: _Flight) -> None:
        jobs, flight.jobs = flight.jobs, []
        drops: list[Callable[[], object]] = [
            functools.partial(self._images[name].drop, part) for name, part in flight.parts.items()
        ]
        for job in jobs:
            drops += [job.drop, functools.partial(self._workers.drop, job)]
        _every(drops)


def _every(calls: Iterable[Callable[[], object]]) -> None:
    """Call all of them, also where one raises; then an error goes on."""
    with ExitStack() as stack:
        for call in reversed(list(calls)):
            stack.callback(call)


# What runs beside the makers of images: jobs of some slots of a batch.


_CHUNK = 8  # slots that a worker takes at a time: few enough to share a batch out evenly

_Follows = Sequence[tuple[int, Followed, Mapping[str, Follower]]]  # an output's number, what moves what follows it


class _BySlot(Job):
    """A job that makes columns slot by slot.

    values  by name a value per slot
    bad     slot -> why its record cannot be used
    """

    called = ""

    def __init__(self, names: Iterable[str], count: int, chunks: Sequence[Sequence[int]], stop: sync.Event) -> None:
        super().__init__(chunks, stop)
        self.values: dict[str, list[Any]] = {name: [None] * count for name in names}
        self.bad: dict[int, str] = {}

    def drop(self) -> None:
        """Nothing: who drops it waits until nobody is inside it."""

    def run(self, worker: WorkerThread, slots: Sequence[int]) -> None:
        """Make the columns of these slots."""
        for slot in slots:
            if self.dropped or self.error is not None:
                return
            worker.slots = (slot,)
            self._make(slot)

    def _make(self, slot: int) -> None:
        """A slot's columns, until one of them cannot be made."""
        raise NotImplementedError


class _Following(_BySlot):
    """Masks, boxes and points, moved slot by slot as their image is moved.

    The law: what cannot follow makes its record a bad one, as what cannot be decoded does.
    """

    def __init__(self, work: Work, follows: _Follows, rows: Sequence[Arrays], *rest: Any) -> None:
        super().__init__((name for _, _, own in follows for name in own), len(work.ids), *rest)
        self._work, self._follows, self._rows = work, follows, rows

    def _make(self, slot: int) -> None:
        for number, followed, followers in self._follows:
            rows = self._rows[number]
            high, wide = rows[CANVAS][slot].tolist()
            moved = functools.partial(followed.run, arrays=rows, slot=slot)
            for name, kind in followers.items():
                try:
                    self.values[name][slot] = kind.followed(self._work.values[name][slot], (high, wide), moved)
                except DaliFeedError:
                    raise
                except Exception as error:  # noqa: BLE001 - whatever a library raises is about this record
                    why = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
                    self.bad.setdefault(slot, f"column {name!r} of member {kind.member!r}: {why}")


class _Making(_BySlot):
    """Columns that are made of a record's bytes when its batch is run: `Bytes(decode=f)`.

    The law: a record that stands in no batch costs no call. What a function raises makes its record a bad one; errors
    of ours that speak of no record go on, and so does what is no Exception, such as KeyboardInterrupt. A function is
    given a copy: what it returns or keeps, and whether it ever returns, is nothing to the memory of the batch.
    """

    lingers = False
    halted = "engine: the iteration was ended while functions worked on its batch"

    def __init__(self, work: Work, kinds: Mapping[str, Bytes], *rest: Any) -> None:
        super().__init__(kinds, len(work.ids), *rest)  # of the work itself it keeps nothing
        self._kinds = kinds
        self._sources = {name: work.values[name] for name in kinds}
        self._copying = sync.Lock()  # over the sources, and a copy of one
        self.called = f"what makes column {', '.join(map(repr, kinds))}"

    def drop(self) -> None:
        """Behind it nothing reads the batch's memory."""
        with self._copying:
            self._sources = {}

    def _make(self, slot: int) -> None:
        for name, kind in self._kinds.items():
            with self._copying:
                if not self._sources:
                    return
                own = bytearray(self._sources[name][slot])
            column = f"column {name!r} of member {kind.member!r}"
            try:
                self.values[name][slot], why = kind.attempt(memoryview(own))
            except DaliFeedError as error:
                error.add_note(f"From: {column}")
                raise
            if why:
                self.bad[slot] = f"{column}: {why}"
                return
