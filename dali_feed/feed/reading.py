"""Reader threads, and how many: each has a reader of its own; they take read tasks in the order of the requests.

The law: a block's memory is leased here, and released here where its read fails; of a block that is there it is
released once, by whoever took it. Readers end in columns: formats and the screen are their threads' work.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from dali_feed import sync
from dali_feed.engines.device.ranges import READ
from dali_feed.errors import ClosedError, ConfigError, DaliFeedError, SourceError
from dali_feed.feed.meter import Meter
from dali_feed.records.gauges import KafkaStats, StorageStats, storage_of, summed
from dali_feed.records.metrics import counted
from dali_feed.records.pieces import nbytes
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import Block, Extents, Reader, Source, unpack_id

OpenReader = Callable[[sync.Event], Reader]  # whose waits end at the event

REST_SECONDS = 5.0  # without a task, after which a reader that wants to may look after itself


@dataclass(frozen=True, slots=True)
class ReaderWork:
    """How many readers there are, the records that were read, and the readers' seconds: in reads, and of CPU time."""

    threads: int
    records: int
    seconds: float
    cpu: float


class ReadTask:
    """One read: its extents, and, once `done` is set, its block or the error in place of one.

    alone    a reader for this read alone, in place of the thread's own; None: that
    lent     whether its rows are to lie side by side, in memory that is lent
    expects  about how many bytes its values take; None: nobody knows
    bytes    that the block's values take, once it is there
    """

    def __init__(
        self,
        extents: Extents,
        estimate: Callable[[], int],
        alone: OpenReader | None = None,
        *,
        lent: bool = False,
        expects: int | None = None,
    ) -> None:
        self.extents, self.alone, self.lent, self.expects = extents, alone, lent, expects
        self.bytes = 0
        self._estimate = estimate
        self._memory: int | None = None
        self.requested = False
        self.done = sync.Event()
        self._block: Block | None = None
        self._error: BaseException | None = None
        self._dropped = False
        self._lock = sync.RLock()  # guards the block against two who would release it; reentrant, as a collection may

    @property
    def memory(self) -> int:
        """Bytes of slabs: an estimate, which gets better as other reads are done; what they really are once it is."""
        return self._estimate() if self._memory is None else self._memory

    def finish(self, block: Block | None, error: BaseException | None) -> None:
        """Called once by a reader thread."""
        self.bytes = 0 if block is None else sum(map(nbytes, block.values.values()))
        with self._lock:
            if self._dropped and block is not None:
                block.lease.release()
                block = None
            self._memory = 0 if block is None else block.lease.size
            self._block, self._error = block, error
        self.done.set()

    def take(self) -> Block:
        """The block, when it is there; raises what the reader raised."""
        self.done.wait()
        if self._error is not None:
            raise self._error
        if self._block is None:
            msg = "read: taken after it was dropped"
            raise ClosedError(msg)
        return self._block

    def cancel(self) -> None:
        """Who waits for it goes on, with a ClosedError: what reads it may hang, and has its memory until it ends."""
        with self._lock:
            if self.done.is_set():
                return
            msg = "read: its pass has ended"
            self._dropped, self._error = True, ClosedError(msg)
        self.done.set()

    def drop(self) -> None:
        """The block will not be taken: release the memory, now or when the read ends."""
        with self._lock:
            self._dropped = True
            block, self._block = self._block, None
        if block is not None:
            block.lease.release()


class ReadPool:
    """`count` threads that read a source. Between `halt` and `resume` every read ends at once, with a ClosedError.

    They begin with the first request: whoever closes them is known by then. With a `steering`, which looks after each
    read, their number changes. `opened` makes their readers.
    """

    def __init__(
        self,
        source: Source,
        opened: OpenReader,
        slabs: SlabPool,
        count: int,
        steering: Steering | None = None,
    ) -> None:
        self._source, self._slabs, self._steering = source, slabs, steering
        self._opened = opened
        self._tasks: sync.SimpleQueue[ReadTask | None] = sync.SimpleQueue()
        self._stop = sync.Event()
        self._idle = sync.Condition()
        self._unfinished = set[ReadTask]()  # tasks requested and not finished; guarded by `_idle`, as is `_closed`
        self._closed = False
        self._at: dict[int, tuple[ReadTask, float, Reader]] = {}  # thread -> what it reads, since when
        self._readers: dict[int, Reader] = {}  # thread -> its reader
        self._kafka: KafkaStats | None = None  # what those measured that have left
        self._storage: tuple[StorageStats, ...] = ()
        self._threads: list[sync.Thread] = []  # those that are about to leave too
        self._begun = self._staying = 0  # threads
        self._rows, self._busy, self._cpu = 0, 0.0, 0.0
        self._count = count

    @property
    def count(self) -> int:
        """How many threads there are to be."""
        return self._count

    def choose(self, count: int) -> None:
        """Begin threads at once; those that are too many leave when their read is done.

        RuntimeError where the system gives none at all.
        """
        with self._idle:
            if self._closed:
                return
            self._count = count
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            while self._staying < count:
                n = self._begun
                thread = sync.Thread(target=self._work, args=(n,), name=f"dali_feed-read-{n}", daemon=True)
                self._threads.append(thread)  # counted before it runs: Ctrl-C may come out of `start`
                self._begun, self._staying = n + 1, self._staying + 1
                try:
                    thread.start()
                except RuntimeError:  # the system gives no more threads: those there are go on
                    self._threads.pop()
                    self._begun, self._staying = n, self._staying - 1
                    if not self._staying:
                        raise
                    self._count = self._staying
                    return

    def request(self, task: ReadTask) -> None:
        """Queue a task; a second request of the same task does nothing."""
        if not task.requested:
            with self._idle:
                if not self._begun:
                    self.choose(self._count)
                task.requested = True
                if not self._closed:
                    self._unfinished.add(task)
                    self._tasks.put(task)
                    return
            msg = "read: asked for after close()"
            task.finish(None, ClosedError(msg))

    def doing(self) -> list[tuple[ReadTask, float, str]]:
        """The reads under way: each with the time it began (`time.monotonic`), and its reader's `trouble`."""
        return [(task, since, reader.trouble) for task, since, reader in list(self._at.values())]

    def gauges(self) -> KafkaStats | None:
        """What the readers have measured, those too that have left; None where they do not, or have not yet."""
        with self._idle:
            readers, left = list(self._readers.values()), self._kafka
        return summed(readers, left)

    def worked(self) -> ReaderWork:
        """What all of them have read."""
        with self._idle:
            return ReaderWork(self._count, self._rows, self._busy, self._cpu)

    def storage(self) -> tuple[StorageStats, ...]:
        """What the readers have measured of their files, those too that have left, per store."""
        with self._idle:
            readers, left = list(self._readers.values()), self._storage
        return storage_of(readers, left)

    def _leave(self, thread: int) -> None:
        """A reader will be closed: what it received stays in the sums."""
        with self._idle:
            reader = self._readers.pop(thread, None)
            kafka, storage = summed([reader]), storage_of([reader])
            self._kafka = summed((), None if kafka is None else counted(kafka), self._kafka)
            self._storage = storage_of((), self._storage, tuple(map(counted, storage)))

    def _next(self, reader: Reader | None) -> ReadTask | None:
        """The next task; None to end."""
        while reader is not None and reader.rests:
            try:
                return self._tasks.get(timeout=REST_SECONDS)
            except sync.Empty:
                with contextlib.suppress(Exception):  # what is wrong with it shows in the next read
                    reader.rest()
        return self._tasks.get()

    def _work(self, thread: int) -> None:
        reader: Reader | None = None
        try:
            while (task := self._next(reader)) is not None:
                cpu = time.thread_time()  # twice per read
                try:
                    if self._stop.is_set():
                        msg = "read: cancelled before it began"
                        raise ClosedError(msg)
                    reader = self._readers[thread] = reader or self._opened(self._stop)
                    self._at[thread] = task, sync.monotonic(), reader
                    with READ:
                        block = self._read(reader, task)
                    task.finish(block, None)
                except DaliFeedError as error:
                    error.add_note("Stage: read")
                    if isinstance(error, ConfigError):
                        error.add_note(f"Read: {self._named(task.extents)}")
                    task.finish(None, error)
                except BaseException as error:  # noqa: BLE001  a source may raise anything; the trainer must hear of it
                    msg = f"{type(self._source).__name__}: read raised {type(error).__name__}: {error}"
                    failure = SourceError(msg)
                    failure.__cause__ = error
                    task.finish(None, failure)
                if self._ended(thread, task, cpu):
                    self._leave(thread)
                    return
        finally:
            if reader is not None:
                reader.close()

    def _read(self, reader: Reader, task: ReadTask) -> Block:
        if task.alone is not None:
            reader = task.alone(self._stop)
        lease = self._slabs.lent() if task.lent else self._slabs.lease(task.expects)
        try:
            return reader.read(task.extents, lease)
        except BaseException:
            lease.release()
            raise
        finally:
            if task.alone is not None:
                reader.close()

    def _ended(self, thread: int, task: ReadTask, cpu: float) -> bool:
        """A read, begun at that CPU time of its thread, is over: count it; whether the thread is one too many."""
        now, rows = sync.monotonic(), task.extents.positions  # arrays let other threads in: not under the lock
        _, since, _ = self._at.pop(thread, (None, now, None))
        with self._idle:
            self._unfinished.discard(task)
            if not self._stop.is_set():
                self._busy += now - since
                self._rows += rows
                self._cpu += time.thread_time() - cpu
            self._idle.notify_all()
        if self._steering is not None and not self._stop.is_set():
            chosen = self._steering.look()
            if chosen is not None:
                self.choose(chosen)
        with self._idle:
            leaves = self._staying > self._count and not self._closed
            self._staying -= leaves
        return leaves

    def _named(self, extents: Extents) -> str:
        """The records of a read, as text."""
        first = unpack_id(int(extents[:1].ids()[0]))
        return f"{extents.positions} records from {self._source.where(*first)}"

    def halt(self) -> None:
        """End the reads under way, those queued and those still to be requested. Who waits for one waits no longer."""
        self._stop.set()
        with self._idle:
            unfinished = list(self._unfinished)
        for task in unfinished:
            task.cancel()

    def resume(self, seconds: float) -> None:
        """Wait so long until no requested read is left, and be ready for new tasks, also where Ctrl-C ends the wait."""
        try:
            with self._idle:
                self._idle.wait_for(lambda: not self._unfinished, timeout=seconds)
        finally:
            self._stop.clear()

    @property
    def alive(self) -> list[sync.Thread]:
        """Threads that have not ended."""
        return [thread for thread in self._threads if thread.is_alive()]

    def close(self, timeout: float = 2.0) -> None:
        """End all reads and the threads, and wait for them up to `timeout` seconds."""
        self.halt()
        with self._idle:  # a task queued after the marks that end the threads would never be done
            self._closed = True
            for _ in range(self._staying):
                self._tasks.put(None)
        ends = sync.monotonic() + timeout
        for thread in self.alive:
            if thread is not sync.current_thread():  # the garbage collector may run here
                thread.join(max(0.0, ends - sync.monotonic()))


# How many threads read with `Tuning(readers="auto")`: a hill climb on how long the training loop waits for the source.
#
# The law: order and contents of batches never depend on it. A change is a trial: it stays where the loop then waits a
# tenth less per sample, or no longer waits. A direction that did not pay rests for twice as many intervals as the time
# before, and so does the way down after each change that stayed; so whatever is measured, changes become rare.


FIRST_READERS, MOST_READERS = 2, 8
WAITS = 0.1  # share of its time that the loop waits for the source, from which on another number is tried
CONTENT = 0.02  # and up to which one reader less is tried
GAIN = 0.1  # part of the wait per sample that a change must take away
FIRST, LONGEST = 8, 256  # intervals that a direction rests
SECONDS, BATCHES = 3.0, 5  # an interval is at least so long, and has so many batches

log = logging.getLogger("dali_feed")


@dataclass(frozen=True, slots=True)
class Interval:
    """What the training loop saw: how long that was, how long it waited for the source, and its samples."""

    seconds: float
    waited: float
    samples: int

    @property
    def share(self) -> float:
        """Part of its time that the loop waited."""
        return min(1.0, self.waited / self.seconds)

    @property
    def per_sample(self) -> float:
        """Seconds that it waited for each sample."""
        return self.waited / max(1, self.samples)

    def __str__(self) -> str:
        return f"{100 * self.share:.0f} % of its time, {self.samples / self.seconds:.0f} samples/s"


class Climb:
    """One number of readers after another, 1 to MOST_READERS; without a clock."""

    def __init__(self) -> None:
        self.readers = FIRST_READERS
        self._trial: tuple[int, Interval] | None = None  # the step to be judged, and what was seen before it
        self._rests = {1: 0, -1: 0}  # intervals that each step still rests
        self._next_rests = {1: FIRST, -1: FIRST}

    def next(self, seen: Interval) -> str:
        """Choose `readers` for the next interval; why, where that is another number, and else an empty text."""
        if self._trial is not None:
            (step, before), self._trial = self._trial, None
            pays = seen.share <= CONTENT or seen.per_sample <= (1 - GAIN) * before.per_sample
            self._rest(-1 if pays else step)
            return "" if pays else self._go(-step, f"it did not pay: the loop waits {seen}; before, {before}")
        self._rests = {step: max(0, left - 1) for step, left in self._rests.items()}
        if CONTENT < seen.share < WAITS:
            return ""
        for step in (1, -1) if seen.share >= WAITS else (-1,):
            if not self._rests[step] and 1 <= self.readers + step <= MOST_READERS:
                self._trial = step, seen
                return self._go(step, f"the loop waits for the source {seen}")
        return ""

    def _go(self, step: int, why: str) -> str:
        self.readers += step
        return f"readers {self.readers - step} -> {self.readers}: {why}"

    def _rest(self, step: int) -> None:
        self._rests[step] = self._next_rests[step]
        self._next_rests[step] = min(LONGEST, 2 * self._next_rests[step])


class Steering:
    """Measures intervals at the ends of reads; it has no thread: where nothing is read, nothing is to be decided."""

    def __init__(self, meter: Meter) -> None:
        self._meter, self._climb = meter, Climb()
        self._lock = sync.Lock()  # all below: any reader's thread may look
        self._settles = True  # the interval has a change in it, or the first connections
        self._begun = self._counts()

    def look(self) -> int | None:
        """Where an interval ends here and another number of readers follows from it: that number."""
        with self._lock:
            at, waited, batches, samples = self._begun
            seconds = sync.monotonic() - at
            if seconds < SECONDS or self._meter.batches - batches < BATCHES:
                return None
            _, waits_now, _, samples_now = self._begun = self._counts()
            if self._settles:
                self._settles = False
                return None
            why = self._climb.next(Interval(max(seconds, 1e-6), waits_now - waited, samples_now - samples))
            if not why:
                return None
            self._settles = True
            log.info("%s", why)
            return self._climb.readers

    def _counts(self) -> tuple[float, float, int, int]:
        meter = self._meter
        waited = sum(each.seconds for each in meter.loop.causes if each.cause == "source")
        return sync.monotonic(), waited, meter.batches, meter.samples
