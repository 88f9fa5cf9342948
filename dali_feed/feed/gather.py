"""The thread that reads a stream, and gathers its records to batches at the source's pace.

The law: records leave in the order in which they came, and which of them make a batch is decided by their number, the
pace and the clock; nothing else depends on it. Reading never runs more than some batches ahead of the loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from dali_feed import sync
from dali_feed.columns.image import Images
from dali_feed.engines.device.ranges import READ
from dali_feed.errors import ClosedError, ConfigError, DaliFeedError, SourceError
from dali_feed.records.live import LiveBlock, LiveReader, Pace, Progress
from dali_feed.records.pieces import Pieces, nbytes
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import Block, Lease

# Memory of a batch that comes piece by piece: its blocks lie in the same slabs.
#
# A stream's records come one by one at times, and a slab for each would be megabytes for kilobytes. A block that came
# too large for the batch it was read for is the first of the next one, whose memory then is that of both.


class Shared:
    """A lease with as many holders as batches have bytes in it; the last of them releases it.

    The thread that reads fills it and holds it; the feed thread and that one release it.
    """

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self._lock = sync.RLock()  # guards the number of holders; reentrant, as a collection may end a batch in here
        self._holders = 1  # the thread that reads, until it goes on to the next one

    def hold(self) -> None:
        """One holder more."""
        with self._lock:
            self._holders += 1

    def release(self) -> None:
        """One less."""
        with self._lock:
            self._holders -= 1
            last = not self._holders
        if last:
            self.lease.release()


AHEAD = 2  # batches that wait for the feed thread
SLICE_S = 1.0  # how long a wait may be without a look at whether it is still wanted
_ROOM_S = 0.02  # how often memory is looked at again

OpenStream = Callable[[sync.Event], LiveReader]  # a reader whose waits end at the event


@dataclass(slots=True)
class Gathered:
    """The records of a batch, or none of an idle one, and where their partitions stand behind them.

    All are of one generation of the stream's progress.

    leases  memory that their bytes lie in; `release` gives it back
    """

    generation: int = 0
    blocks: list[Block] = field(default_factory=list)
    position: dict[int, int] = field(default_factory=dict)
    count: int = 0
    size: int = 0
    leases: list[Shared] = field(default_factory=list)

    def add(self, polled: LiveBlock, lease: Shared) -> None:
        """A block more, whose bytes lie in that lease."""
        self.position |= polled.position
        if not len(polled.block.ids):
            return
        self.blocks.append(polled.block)
        self.count += len(polled.block.ids)
        self.size += _size(polled.block)
        if lease not in self.leases:
            lease.hold()
            self.leases.append(lease)

    def release(self) -> None:
        """Give the memory back. Safe to call twice."""
        leases, self.leases = self.leases, []
        for lease in leases:
            lease.release()


def _size(block: Block) -> int:
    """Bytes of images, and of columns that are bytes."""
    size = 0
    for values in block.values.values():
        if isinstance(values, Pieces | Images):
            size += nbytes(values)
        elif isinstance(values, list):
            size += sum(len(value) for value in values if isinstance(value, memoryview | bytes))
    return size


class Gatherer:
    """One thread, once it is told to `begin`. Batches are taken by one other thread."""

    def __init__(
        self,
        name: str,
        opened: OpenStream,
        pace: Pace,
        batch_size: int,
        progress: Progress,
        slabs: SlabPool,
        memory: int,
    ) -> None:
        self._name, self._opened, self._pace, self._batch_size = name, opened, pace, batch_size
        self._progress, self._slabs, self._memory = progress, slabs, memory
        self._lease = Shared(slabs.lease())  # of the batch that is being gathered
        self._stop = sync.Event()
        self._out: sync.Channel[Gathered | BaseException] = sync.Channel(AHEAD)
        self._waiting: list[Gathered] = []  # for room in the channel
        self._part = Gathered()
        self._begun = 0.0  # when its first record came
        self._quiet = 0.0  # since when none has come
        self._came = sync.monotonic()
        self._reader: LiveReader
        self.thread = sync.Thread(target=self._run, name="dali_feed-live", daemon=True)

    def begin(self) -> None:
        """Read; whoever stops it is known by then, for an interrupt may come out of here."""
        self.thread.start()

    # For the feed thread, and others.

    def ready(self) -> bool:
        """Whether a batch, or an error, can be taken without waiting."""
        return len(self._out) > 0

    def take(self) -> Gathered:
        """The next batch. Raises what the reader raised, and ClosedError once stopped."""
        item = self._out.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def at_work(self) -> str:
        """What it is at, for the watchdog."""
        trouble = self.trouble
        since = sync.monotonic() - self._came
        line = f"source: {self._name}: the last record came {since:.0f} s ago"
        if count := self._part.count:
            line = f"{line}, {count} of the {self._batch_size} records of a batch are there"
        return f"{line}, {trouble}" if trouble else line

    @property
    def trouble(self) -> str:
        """What hinders the reader, if it says so."""
        return "" if self.reader is None else self.reader.trouble

    @property
    def reader(self) -> LiveReader | None:
        """The reader, once there is one."""
        return getattr(self, "_reader", None)

    def stop(self, timeout: float = 3.0) -> None:
        """End the reader, and wait for it so long. Safe to call twice."""
        self._stop.set()
        for dropped in self._out.close():
            if isinstance(dropped, Gathered):
                dropped.release()
        self._progress.moved()
        if self.thread.is_alive() and self.thread is not sync.current_thread():  # where the collector may run
            self.thread.join(timeout)

    # The thread's own.

    def _run(self) -> None:
        try:
            try:
                self._read()
            except ClosedError as error:
                self._give_up(error)
            except DaliFeedError as error:
                error.add_note("Stage: read")
                self._give_up(error)
            except BaseException as error:  # noqa: BLE001  a source may raise anything; the trainer must hear of it
                msg = f"{self._name}: reading the next records failed: {type(error).__name__}: {error}"
                failure = SourceError(msg)
                failure.__cause__ = error
                self._give_up(failure)
        finally:
            for each in (*self._waiting, self._part):
                each.release()
            self._lease.release()
            if self.reader is not None:
                self.reader.close()

    def _give_up(self, error: BaseException) -> None:
        """The error comes behind all whole batches, and the records that had come."""
        try:
            self._flush()
            while self._waiting:
                self._out.put(self._waiting[0])
                self._waiting.pop(0)
            self._out.put(error)
        except ClosedError:  # the loop has gone; no one is left to report to
            pass

    def _read(self) -> None:
        if self._stop.is_set():  # before it ran
            return
        self._reader = self._opened(self._stop)
        self._quiet = sync.monotonic()
        while not self._stop.is_set():
            self._put()
            self._step()

    def _step(self) -> None:
        """One poll, and what becomes of it."""
        pace, part = self._pace, self._part
        now = sync.monotonic()
        if part.count:
            left = math.inf if pace.timeout is None else self._begun + pace.timeout - now
            if left <= 0:
                self._flush()
                return
            self._poll(self._batch_size - part.count, self._idle(now, left))
        elif not self._poll(self._batch_size, 0.0):
            self._poll(1 if pace.timeout is not None else self._batch_size, self._idle(now, math.inf))

    def _idle(self, now: float, left: float) -> float:
        """How long a poll may wait; hands an empty batch over where the stream has been idle for long."""
        idle = math.inf if self._pace.idle is None else self._quiet + self._pace.idle - now
        if idle <= 0:
            empty, part = Gathered(self._part.generation), self._part
            if not part.count:
                empty.position, part.position = part.position, {}
            self._waiting.append(empty)
            self._quiet = now
            return 0.0
        return min(left, idle, SLICE_S)

    def _poll(self, records: int, seconds: float) -> bool:
        """Take what comes into the batch; whether that was any record."""
        size, lease = self._pace.size, self._lease
        most = math.inf if size is None else max(1, size - self._part.size)
        with READ:
            polled = self._reader.poll(records, most, seconds, lease.lease)
        self._came_to(polled, lease)
        part = self._part
        self._check(part.count)
        if part.count >= self._batch_size or (size is not None and part.size >= size):
            self._flush()
        return len(polled.block.ids) > 0

    def _came_to(self, polled: LiveBlock, lease: Shared) -> None:
        """A block more, in that memory, for the batch that is being gathered."""
        size = self._pace.size
        if polled.generation != self._part.generation:  # partitions were taken away: what was gathered before is void
            self._part.release()
            self._part = Gathered(polled.generation)
        if len(polled.block.ids):
            self._came = self._quiet = sync.monotonic()
            part = self._part
            if size is not None and part.count and part.size + _size(polled.block) > size:
                self._flush()
            if not self._part.count:
                self._begun = self._came
        self._part.add(polled, lease)

    def _flush(self) -> None:
        """The batch is whole, and so is its memory."""
        if self._part.count:
            lease, self._lease = self._lease, Shared(self._slabs.lease())
            lease.release()
            self._waiting.append(self._part)
            self._part = Gathered(self._part.generation)

    def _check(self, count: int) -> None:
        """Raise ConfigError where the batch, of so many records by now, takes more than there is."""
        size = self._lease.lease.size
        if size > self._memory:
            msg = (
                f"Tuning(memory={self._memory}): must be enough bytes for a batch; found one of {size} bytes, with"
                f" {count} records. Give several times as much, a smaller batch_size, or the stream a limit in bytes"
            )
            raise ConfigError(msg)

    def _room_left(self) -> bool:
        """Whether another batch may be begun."""
        return self._slabs.leased <= self._memory // 2

    def _put(self) -> None:
        """Hand whole batches on, and wait until there is room for another one; the reader is asked for none then."""
        while self._waiting and not self._stop.is_set():
            if self._out.offer(self._waiting[0], SLICE_S):
                self._waiting.pop(0)
        while not (self._stop.is_set() or self._part.count or self._room_left()):
            self._progress.wait(_ROOM_S)
