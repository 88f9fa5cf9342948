"""A stream: where the loop is in it, what a pass over it is fed with, and the thread that gathers that.

The laws: only the newest iterator gives batches, and an iterator that is left loses nothing: the next one goes on
behind the last batch that the loop was handed. A finished batch never waits for a record that has not come. A record
that is bad is replaced in its slot by the next good one of its batch; a batch without a good record is not shown to the
loop. What a batch costs, its place in the stream, its bad records and their dead letters, is settled in the loop's
thread when that takes it (`settle`): until then the batch may be void, because its partitions are another's.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from dali_feed import sync
from dali_feed.bad_records import BadRecord, Letter, Quarantine
from dali_feed.columns.image import Images
from dali_feed.columns.request import Request, RequestReader
from dali_feed.draws import check_seed
from dali_feed.engines.device.ranges import READ
from dali_feed.errors import ClosedError, ConfigError, DaliFeedError, DeadLetterError, SourceError
from dali_feed.feed.batch import Batch, Course, Due, EmptyBatches, Flight
from dali_feed.feed.lane import Chunk, Piece
from dali_feed.feed.machine import Machine
from dali_feed.feed.passes import Batches, Positions
from dali_feed.feed.run import Gate, Late, Pass, Supply
from dali_feed.feed.stats import Stats
from dali_feed.feed.window import NoneGoodError, Window
from dali_feed.options import BadRecords, Tuning
from dali_feed.plan import state as states
from dali_feed.plan.batching import Shares
from dali_feed.records.gauges import summed
from dali_feed.records.live import LiveBlock, LiveReader, Pace, Progress, Stream
from dali_feed.records.pieces import Pieces, nbytes
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import Block, Lease

PATIENCE = 5.0  # seconds that a state waits for the source to say where it begins
WINDOW = 10_000  # records in a row that BadRecords(limit=...) is of, where window= does not say

log = logging.getLogger("dali_feed")


def check_stream(tuning: Tuning, **order: object) -> None:
    """Raise ConfigError for what a stream cannot have: a cache, readers that adapt, an order of the user's."""
    if tuning.cache is not None:
        msg = "Tuning(cache=...): keeps records for later epochs, and a stream has no epochs. Leave it out"
        raise ConfigError(msg)
    if tuning.readers == "auto":
        msg = 'Tuning(readers="auto"): a stream has one reader for all its partitions. Leave readers out'
        raise ConfigError(msg)
    for name, value in order.items():
        if value is not None and value is not False:
            msg = f"{name}: would change the data, and is not supported; a stream has its own order, so leave it out"
            raise ConfigError(msg)


class StreamPosition(Positions):
    """Where the loop is in a stream's partitions.

    progress  what it was handed of what the pass under way read, or the last one
    """

    def __init__(self, source: Stream, machine: Machine, ranks: Shares, bad: BadRecords, seed: int) -> None:
        super().__init__(machine, ranks, replace(bad, window=bad.window or WINDOW))
        self._source, self._name, self._seed = source, repr(source), check_seed(seed)
        self._request = Request(source, machine.columns.members, machine.columns.optional)
        self._mark: dict[str, Any] | None = None  # where the pass began, or one that was loaded
        self.progress = Progress(self._letters_kept)

    @property
    def epoch(self) -> int:
        """0: its random numbers are those of epoch 0."""
        return 0

    def count(self) -> int:
        """A TypeError."""
        self.endless("batches")

    def left(self, *, of_next: bool = False) -> int:
        """A TypeError."""
        self.endless("batches left")

    def endless(self, what: str) -> NoReturn:
        """Raise the TypeError of a number that a stream does not have."""
        msg = f"{self._name}: a stream does not end, so it has no number of {what}"
        raise TypeError(msg)

    def set_epoch(self, epoch: int) -> None:
        """Does nothing."""

    # The pass, which goes on from one iterator to the next.

    def begin(self) -> Batches:
        """Batches from where the loop is; what the iterator before had read is kept."""
        with self._newest() as (token, under_way):
            run = under_way
            if run is None:
                self._wait()
                at, progress = self.at(), Progress(self._letters_kept)
                fresh = self._new_pass(at, progress)
                with self._lock:
                    self.check(token, begun=False)
                    self._mark, self.progress = at, progress
                run = self._begin(fresh, token)
            return Batches(self, run, token, None)

    def _stays(self) -> bool:
        return True

    def _new_pass(self, at: Any, progress: Progress) -> Pass:
        machine, source, request = self._machine, self._source, self._request
        engine = machine.engaged(self)

        def opened(stop: sync.Event) -> LiveReader:
            reader = source.live(
                at,
                request.members,
                rank=self.ranks.rank,
                world_size=self.ranks.world_size,
                stop=stop,
                progress=progress,
            )
            return RequestReader(reader, request, machine.stage)

        memory, size = machine.tuning.memory_bytes, self.ranks.batch_size
        gatherer = Gatherer(self._name, opened, source.pace, size, progress, machine.slabs, memory)
        empty = EmptyBatches(machine.program, machine.columns, machine.device, machine.companions)
        course = machine.course(self._seed, 0, Quarantine(self._bad, WINDOW, endless=True))
        gate = Gate(0)
        supply = StreamSupply(machine, self._name, gatherer, progress, empty, course, gate)
        return Pass(machine, engine, supply, gate)

    def _letters_kept(self, seconds: float) -> bool:
        """Wait so long for the dead letters of what the loop was handed; whether they are kept."""
        ends = sync.monotonic() + seconds
        try:
            self._machine.outbox.drain(lambda: sync.monotonic() >= ends)
        except (ClosedError, DeadLetterError):
            return False
        return True

    @property
    def _supply(self) -> StreamSupply | None:
        supply = None if self.run is None else self.run.supply
        return supply if isinstance(supply, StreamSupply) else None

    # What the iterator reports.

    def requested(self) -> None:
        self.progress.asked()

    def void(self, batch: Batch) -> bool:
        """See `Positions.void`; it costs nothing to look before anything is made of a batch."""
        due = batch.due or Due()
        return due.generation != self.progress.generation or not due.shown

    def took(self, token: object, batch: Batch, count: int, *, last: bool) -> bool:
        """See `Positions.took`. Its bad records count from here on; raises what their policy says."""
        del count, last
        self.check(token)
        due, supply = batch.due or Due(), self._supply
        taken = supply is not None and self.progress.took(due.position, due.generation, lambda: supply.settle(due))
        if not taken or not due.shown:
            return False
        self._machine.meter.hand_over(len(batch))
        return True

    # State.

    def at(self) -> dict[str, Any] | None:
        """See `Positions.at`; None where nothing has been read, as before the first iterator."""
        position = self.progress.state(0.0 if self.run is None else PATIENCE)
        if position is None:
            return self._mark
        return self._source.mark(position, rank=self.ranks.rank, world_size=self.ranks.world_size)

    def state(self, at: dict[str, Any] | None) -> dict[str, Any]:
        """See `Positions.state`; this rank's."""
        info = {
            "engine": self._machine.program.engine,
            **self._machine.decode.informing,
            "rank": self.ranks.rank,
            "world_size": self.ranks.world_size,
            "batch_size": self.ranks.batch_size,
        }
        return states.pack(self._made_for(), info, stream=None if at is None else dict(at))

    def _made_for(self) -> dict[str, Any]:
        """What the pixels of a record depend on, and whether it is a bad one."""
        return {"seed": self._seed, **self._machine.decode.compared}

    def restore(self, state: Any) -> None:
        """See `Positions.restore`; a list of all ranks' states goes on at any world size."""
        several = states.check_streams(state)
        states.compare_streams(several, self._made_for())
        marks = [each["stream"] for each in several]
        merges = not isinstance(state, Mapping) and None not in marks
        at = self._source.merged(marks) if merges else marks[0]
        with self._lock:
            self._token = None
            self._mark, self.progress = at, Progress(self._letters_kept)
        self.end()

    def commit(self) -> None:
        """See `Positions.commit`.

        It says that all batches that the loop was handed are finished; their dead letters are kept before. A failure is
        one warning in the log.
        """
        supply, position = self._supply, self.progress.done()
        reader = None if supply is None else supply.gatherer.reader
        if reader is None or not position:
            return
        try:
            self._machine.outbox.drain()
            reader.commit(position)
        except Exception as error:  # noqa: BLE001  what is published must not end a loop
            what = str(error)  # a record in a log must not keep the frames, and the connection, alive
            log.warning("commit: %s. The loop goes on, and the next commit includes this one", what)

    # The rest.

    def describe(self) -> str:
        pace, ranks, machine = self._source.pace, self.ranks, self._machine
        timeout = "when full" if pace.timeout is None else f"after {pace.timeout:g} s at most"
        size = "" if pace.size is None else f", of {pace.size:,} bytes at most"
        idle = "" if pace.idle is None else f"; empty ones after {pace.idle:g} s without a record"
        return "\n".join(
            (
                f"{self._name}: a stream",
                f"batches: up to {ranks.batch_size:,} per rank, {ranks.world_size} ranks, {timeout}{size}{idle}",
                f"engine: {machine.describe_engine()}",
            )
        )

    def stats(self) -> Stats:
        stats, supply = super().stats(), self._supply
        kafka = None if supply is None else summed([supply.gatherer.reader])
        return stats if kafka is None else replace(stats, kafka=kafka.at_positions(self.progress.state(0) or {}))


Bad = tuple[int, BadRecord, str, Letter | None]  # its slot, where it is, and its dead letter if those are kept


class StreamSupply(Supply):
    """Slots of the batches that `gatherer` gathers: a window each."""

    epoch = 0

    def __init__(
        self,
        machine: Machine,
        source: str,
        gatherer: Gatherer,
        progress: Progress,
        empty: EmptyBatches,
        course: Course,
        gate: Gate,
    ) -> None:
        super().__init__(machine, source)
        self.gatherer, self._progress, self._empty = gatherer, progress, empty
        self._course, self._gate = course, gate
        self._windows: deque[tuple[Window, Gathered]] = deque()  # of the batches in flight
        self._bad: list[Bad] = []  # of the batch that is landing
        self._settled = 0  # slots
        self._in_vain = 0  # records that came since the last batch, all of them bad

    def begin(self) -> None:
        self.gatherer.begin()

    def ready(self) -> bool:
        return self.gatherer.ready()

    def take(self) -> tuple[Course, list[Piece]] | Late:
        """See `Supply.take`: none of what was gathered before partitions were taken away."""
        with self.machine.meter.at("source"):
            gathered = self.gatherer.take()
        if gathered.generation != self._progress.generation:
            gathered.release()
            return self._course, []
        if not gathered.count:
            return lambda: self._empty_batch(gathered)
        try:
            window = Window.arrived(gathered.blocks, self.machine.columns, self.machine.where, gathered.release)
        except BaseException:
            gathered.release()
            raise
        self._windows.append((window, gathered))
        try:
            chunk = Chunk.dealt(window, 0, window.rows, self._course.draw)
        except NoneGoodError:
            return self._unshown
        return self._course, [Piece(chunk, 0, window.rows)]

    def _empty_batch(self, gathered: Gathered) -> Batch:
        """One without records, as those before it are."""
        batch = self._empty.batch()
        batch.due = Due(gathered.position, gathered.generation)
        return batch

    def _unshown(self) -> Batch:
        """The oldest batch has no good record: the loop settles it, and does not see it."""
        window, _ = self._windows[0]
        self._bad = []
        for row in sorted(window.faults):
            self._note(row, window.bad_record(row))
        window.release()
        return Batch(None, due=self._due(shown=False))

    def none_good(self, flight: Flight, error: NoneGoodError) -> Batch:
        del flight, error
        return self._unshown()

    def bad(self, flight: Flight, slot: int, bad: BadRecord) -> None:
        """Note it; it counts when its batch is taken."""
        del flight
        self._note(slot, bad)

    def _note(self, slot: int, bad: BadRecord) -> None:
        where = self.machine.where(bad.sample)
        self._bad.append((slot, bad, where, self.letter(where, bad) if self.machine.outbox.wanted else None))

    def landed(self, flight: Flight, batch: Batch) -> None:
        del flight
        batch.due = self._due(shown=True)
        self._empty.saw(batch)

    def _due(self, *, shown: bool) -> Due:
        """What is settled with the oldest batch, whose memory has gone back."""
        window, gathered = self._windows.popleft()
        noted, self._bad = self._bad, []
        self._progress.moved()
        return Due(gathered.position, gathered.generation, window.rows, noted, shown)

    def halt(self) -> None:
        self.gatherer.stop()

    def threads(self) -> Sequence[sync.Thread]:
        return (self.gatherer.thread,)

    def release(self) -> None:
        self.gatherer.stop()
        while self._windows:
            self._windows.popleft()[0].release()

    def at_work(self) -> str:
        return self.gatherer.at_work()

    def remark(self) -> str:
        """Where records come and none is good, that is why no batch does."""
        recent = self._course.quarantine.recent
        if not self._in_vain:
            return ""
        last = "; the last of them {}: {}".format(*recent[-1]) if recent else ""
        return f"; all {self._in_vain} records that were read since the last batch are bad{last}"

    def alarm(self) -> int:
        """A stream on which nothing comes is no trouble."""
        quiet = self.machine.meter.now()[0] == "source" and not self.gatherer.trouble and not self._in_vain
        return logging.INFO if quiet else logging.WARNING

    def settle(self, due: Due) -> None:
        """In the loop's thread, which takes the batch: its bad records count, and their letters are on their way.

        Raises:
            BadRecordError, BadRecordLimitError: by the policy; the batch is not handed over.
            DeadLetterError: a letter before could not be written.
        """
        try:
            for slot, bad, where, letter in due.bad:

                def post(letter: Letter | None = letter) -> None:
                    if letter is not None:
                        self.machine.outbox.post(letter, self._gate.is_closed)

                self.count(self._course, self._settled + slot, bad, where, post)
        finally:
            self._settled += due.slots
            self._in_vain = 0 if due.shown and due.slots else self._in_vain + due.slots


# The thread that reads a stream, and gathers its records to batches at the source's pace.
#
# The law: records leave in the order in which they came, and which of them make a batch is decided by their number, the
# pace and the clock; nothing else depends on it. Reading never runs more than some batches ahead of the loop.


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

    def _put(self) -> None:
        """Hand whole batches on, and wait until there is room for another one; the reader is asked for none then."""
        while self._waiting and not self._stop.is_set():
            if self._out.offer(self._waiting[0], SLICE_S):
                self._waiting.pop(0)
        while not (self._stop.is_set() or self._part.count or self._slabs.leased <= self._memory // 2):
            self._progress.wait(_ROOM_S)
