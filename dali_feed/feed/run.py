"""One pass: a thread that fills batches, runs and repairs them; they come out in order.

The thread waits at three places and counts each: for reads, for the engine, for the training loop. It never
waits for a read while a finished batch could be handed over. An error reaches the training loop at the
batch where it belongs, after all batches before it.

Where records come from is the business of the two kinds of pass: over an epoch, or over a stream. The thread of a pass
that has given all it has may go on with the next one, which then has begun before the training loop asks for it.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from dali_feed import sync
from dali_feed.bad_records import BadRecord, Quarantine
from dali_feed.dead_letters import Letter, Outbox
from dali_feed.engines.device.ranges import NEXT
from dali_feed.engines.engine import Engine
from dali_feed.engines.workers import linger
from dali_feed.errors import ClosedError, WaitError
from dali_feed.feed.batch import Batch, Flight, Made
from dali_feed.feed.channel import Channel
from dali_feed.feed.lane import Draw, Piece
from dali_feed.feed.meter import Meter, PassMeter
from dali_feed.feed.reading import ReadPool
from dali_feed.feed.window import MeanSize
from dali_feed.records.source import unpack_id

__all__ = ["EpochSetting", "FeedRun", "Setting", "reads"]


# The thread that feeds: of one pass, or of several, where one goes on into the next.


class Worker:
    """A thread that uses the engine until nothing comes behind. `start` it."""

    def __init__(self, first: FeedRun, name: str) -> None:
        self._first: FeedRun | None = first
        self._begun, self._runs, self._over = False, False, False
        self._then = list[Callable[[], None]]()
        self._ended = sync.Event()
        self._lock = sync.Lock()
        self.thread = sync.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Once. Whatever comes out of here, as an interrupt does, `alive` says whether the thread runs."""
        self._begun = True
        try:
            self.thread.start()
        except BaseException:
            with self._lock:
                self._begun = self._runs
            raise

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, up to `timeout` seconds; for nothing where it has not begun."""
        if self._begun and self._ended.wait(timeout) and self.thread.is_alive():
            self.thread.join(timeout)

    def _run(self) -> None:
        with self._lock:
            if not self._begun:  # nobody waits for it any more
                return
            self._runs = True
        run, self._first = self._first, None  # what is over is not held
        try:
            while run is not None:
                run = run.one()
        finally:
            with self._lock:
                self._over = True
            for call in self._then:
                call()
            self._ended.set()

    @property
    def alive(self) -> bool:
        """Whether it may still use the engine: it may be inside a decoder."""
        return self._begun and not self._over

    def at_end(self, call: Callable[[], None]) -> None:
        """Call it when the thread no longer uses the engine: in that thread, or at once."""
        with self._lock:
            if self.alive:
                self._then.append(call)
                return
        call()


# The objects that all passes over a feed use.


@dataclass(frozen=True, slots=True)
class Setting:
    """The objects that a pass uses and shares with the passes after it."""

    engine: Engine
    meter: Meter
    outbox: Outbox
    source: str
    epoch: int
    where: Callable[[int], str]
    draw: Draw
    beside: Callable[[Batch], None]
    prefetch: int
    same_size: bool
    payload: Callable[[int, memoryview | None], bytes] | None  # a record's, as it was read; None: as it is in memory
    made: Made  # columns of a batch, from what its records kept
    watchdog: float


@dataclass(frozen=True, slots=True)
class EpochSetting(Setting):
    """And those of a pass over an epoch, which reads ahead by its plan."""

    pool: ReadPool
    memory: int
    sizes: MeanSize
    readers: int


# The watchdog: where no batch comes for long, it says which stage is stuck and on which record.
#
# The waiting training loop's own thread looks at what the other threads have noted down; nothing is
# requested from a stage that may never answer.


SHOWN = 3
RECORDS = 32  # of a batch: as many as one call of a decoder takes, any of which may hold it


def stuck(setting: Setting, flight: Flight | None, source: Callable[[], str]) -> str:
    """The stage that the feed thread waits for, for how long, and its work.

    flight  the engine's batch
    source  tells what the source is at
    """
    stage, seconds = setting.meter.now()
    match stage:
        case "source":
            told = source()
        case "engine" | "repair" if flight is not None:
            told = _engine(setting, flight)
        case "dead letters":
            told = f"dead letters: {setting.outbox} does not accept them"
        case _:
            told = "feed: its thread is at work on the next batch"
    return f"{told}; for {seconds:.0f} s"


def reads(setting: EpochSetting) -> str:
    """The work of each reader thread, the longest first."""
    reads = []
    for task, since, trouble in sorted(setting.pool.doing(), key=lambda read: read[1]):
        first = setting.where(int(task.extents[:1].ids()[0]))
        said = f", {trouble}" if trouble else ""
        reads.append(f"{int(task.extents.lengths.sum())} records from {first} ({sync.monotonic() - since:.0f} s{said})")
    more = f", and {len(reads) - SHOWN} more" if len(reads) > SHOWN else ""
    return f"source: {setting.source} is being read: {'; '.join(reads[:SHOWN]) or 'nothing'}{more}"


def _engine(setting: Setting, flight: Flight) -> str:
    """The records that the engine's threads work on, where it can say; otherwise the batch's first and last."""
    what, at = setting.engine.at_work()
    slots = sorted(slot for slot in at if slot < len(flight))
    name = f"engine: {what}"
    if slots:
        shown = ", ".join(setting.where(int(flight.ids[slot])) for slot in slots[:RECORDS])
        return f"{name} is at {shown}{f', and {len(slots) - RECORDS} more' if len(slots) > RECORDS else ''}"
    first, last = (setting.where(int(flight.ids[slot])) for slot in (0, -1))
    return f"{name} runs the batch of {len(flight)} from {first} to {last}"


LONGEST = sync.TIMEOUT_MAX  # seconds that the system can wait: two centuries; above that it is for ever
PATIENCE = 5.0  # seconds that close() waits for a decoder; its thread ends later then, and the interpreter after it

log = logging.getLogger("dali_feed")


class FeedRun:
    """An iterator over batches, each with equally many slots of so many `lanes`. A subclass is ready before that.

    Of a pass that is `behind` another one, that one's thread feeds it afterwards.
    """

    _quarantine: Quarantine

    def __init__(
        self, setting: Setting, lanes: int, quarantine: Quarantine | None = None, behind: FeedRun | None = None
    ) -> None:
        self.setting, self._parts = setting, lanes
        if quarantine is not None:  # or the subclass has it before it is needed
            self._quarantine = quarantine
        self._landed = 0  # slots
        self._noted = PassMeter(setting.meter)
        self.landing: Flight | None = None  # the batch that the engine is waited for
        self._flying: deque[Flight] = deque()
        self._out: Channel[Batch | BaseException | None] = Channel(setting.prefetch)
        self._ended = False
        self._stop = sync.Event()  # set at its end: its batches are not worked on any more
        self.cut = False  # whether another thread ended it while one waited for a batch
        self.next: FeedRun | None = None  # the pass that its thread goes on with
        self._lock = sync.Lock()
        self._worker: Worker = Worker(self, "dali_feed-feed") if behind is None else behind._worker

    def begin(self) -> None:
        """Have its thread feed it; whoever closes it is known by then, for an interrupt may come out of here."""
        self._worker.start()

    @property
    def _thread(self) -> sync.Thread:
        return self._worker.thread

    def take(self, timeout: float | None = None) -> Batch:
        """The next batch. Raises StopIteration at the end, and after `timeout` seconds a WaitError: what is stuck."""
        if self._ended:
            raise StopIteration
        self._noted.asked()
        with NEXT:
            item = self._wait(timeout)
        self._noted.came(more=isinstance(item, Batch))
        if isinstance(item, Batch):
            return item
        if item is None and self.next is not None:
            self._ended = True  # and its thread goes on
        else:
            self.close()
        if item is None:
            raise StopIteration
        raise item

    def _wait(self, timeout: float | None) -> Batch | BaseException | None:
        """The next item; the watchdog warns after `watchdog` seconds without one, and again after twice as many."""
        begun, speaks = sync.monotonic(), self.setting.watchdog
        while True:
            waited = sync.monotonic() - begun
            ends = speaks if timeout is None else min(speaks, timeout)
            try:
                return self._out.get(max(0.0, ends - waited) if ends < LONGEST else None)
            except ClosedError:
                self.cut = True
                msg = (
                    "iterator: another thread has ended this pass while this one waited for a batch: by close(), a"
                    " newer pass over the same loader, or load_state_dict()"
                )
                raise ClosedError(msg) from None
            except TimeoutError:
                if ends == timeout:
                    raise WaitError(self._stuck()) from None
                log.log(self._alarm(), "no batch for %.0f s: %s", sync.monotonic() - begun, self._stuck())
                speaks *= 2

    def close(self) -> None:
        """End the pass in whatever state it is, and the next one; reads and batches under way are dropped."""
        self._noted.end()
        if self._ended:
            if self.next is not None:  # an interrupt came before that was handed on
                self.next.close()
            return
        self._end()
        self.setting.engine.halt()
        if sync.current_thread() is self._thread:
            return  # the garbage collector ran here; the next put ends the thread
        self._halt()  # for as long as the thread may still ask for reads
        try:
            self._worker.join(PATIENCE)
        finally:  # a second Ctrl-C: the next pass reads all the same
            self._resume()
        if self.alive:
            linger(self._thread)

    def _end(self) -> None:
        """No batch is given any more; its thread finds that out where it is."""
        with self._lock:
            self._ended = True
        self._stop.set()
        self._out.close()
        if self.next is not None:
            self.next._end()

    @property
    def alive(self) -> bool:
        """Whether its thread may still use the engine: it may be inside a decoder."""
        return self._worker.alive

    def at_end(self, call: Callable[[], None]) -> None:
        """Call it when the thread no longer uses the engine: in that thread, or at once."""
        self._worker.at_end(call)

    def wait(self) -> None:
        """Wait until the thread of a closed pass has ended, and log now and then what it does."""
        begun = sync.monotonic()
        while self.alive:
            self._worker.join(self.setting.watchdog if self.setting.watchdog < LONGEST else None)
            if self.alive:
                log.warning(
                    "the pass before is still ending after %.0f s: %s",
                    sync.monotonic() - begun,
                    self._stuck(),
                )

    def one(self) -> FeedRun | None:
        """In its thread: feed all of it. Gives the next pass, where the thread goes on."""
        last: BaseException | None
        begun = time.thread_time()
        goes_on: FeedRun | None = None
        try:
            try:
                last = self._feed()
            except BaseException as error:  # noqa: BLE001  in its place; a ClosedError too, where the source was closed
                last = error
            behind = None if last is not None else self.next
            self._last(last)
            goes_on = behind
        except ClosedError:
            pass  # the training loop has gone; no one is left to report to
        finally:
            self.setting.meter.feed_cpu += time.thread_time() - begun
            self._clear()
            if goes_on is None and self.next is not None:
                self.next._clear()
        return goes_on

    def _last(self, item: BaseException | None) -> None:
        """Behind all batches comes an error, or None: the end."""
        self._out.end(item)

    # What the two kinds of pass do each in their way.

    def _feed(self) -> BaseException | None:
        """Feed all batches; an error that ends it early is returned after all batches before it were handed over."""
        raise NotImplementedError

    def _halt(self) -> None:
        """End the reads under way and those still to come."""
        raise NotImplementedError

    def _resume(self) -> None:
        """Reads may be asked for again."""

    def _release(self) -> None:
        """Give back the memory of what has been read."""
        raise NotImplementedError

    def _source(self) -> str:
        """What the source is at, for the watchdog."""
        raise NotImplementedError

    def _alarm(self) -> int:
        """The level of the watchdog's line in the log."""
        return logging.WARNING

    def _hold(self) -> None:
        """Wait until what is found may be counted: at once, but for a pass that nobody has asked for yet."""

    # What they share.

    def _stuck(self) -> str:
        return stuck(self.setting, self.landing, self._source)

    def _start(self, pieces: list[Piece]) -> None:
        """A batch of these slots is given to the engine."""
        engine = self.setting.engine
        flight = Flight(pieces, self.setting.where, engine.columns, same_size=self.setting.same_size)
        engine.submit(flight.work, self._stop)
        self.setting.meter.service.began(len(flight))
        self._flying.append(flight)

    def _finish(self) -> None:
        """Wait until all dead letters are written: a pass that ends well has them on disk."""
        with self.setting.meter.at("dead letters"):
            self.setting.outbox.drain(self._has_ended)

    def _count_faults(self, flight: Flight) -> None:
        faults = flight.own_faults()
        self.setting.meter.absent += int((~flight.ok).sum()) - len(faults)
        for slot, bad in faults:
            self._quarantined(slot, bad)

    def _quarantined(self, slot: int, bad: BadRecord) -> None:
        before = len(self._quarantine)
        where = self.setting.where(bad.sample)
        try:
            at = self._landed + slot
            self._quarantine.add(bad.sample, at, where, bad.reason, lambda: self._post(where, bad))
        finally:
            if len(self._quarantine) > before:
                self.setting.meter.bad += 1
                self.setting.meter.recent_bad.append((where, bad.reason))

    def _post(self, where: str, bad: BadRecord) -> None:
        """Post a dead letter while the payload is in memory, and before its batch is handed over."""
        if self.setting.outbox.wanted:
            with self.setting.meter.at("dead letters"):
                self.setting.outbox.post(self._letter(where, bad), self._has_ended)

    def _letter(self, where: str, bad: BadRecord) -> Letter:
        """A bad record's, made while the payload is in memory."""
        partition, position = unpack_id(bad.sample)
        anew = self.setting.payload
        if anew is None:
            payload = bytes(bad.payload or b"")
        else:
            with self.setting.meter.at("source"):
                payload = anew(bad.sample, bad.payload)
        return Letter(where, self.setting.source, partition, position, bad.sample, bad.stage, bad.reason, payload)

    def _has_ended(self) -> bool:
        return self._ended

    def _landed_batch(self) -> tuple[Flight, Batch]:
        """The oldest batch in flight, done and mended."""
        self.setting.outbox.check()  # what raises here leaves the batch in flight, or the engine would keep it
        flight = self.landing = self._flying.popleft()
        with self.setting.meter.at("engine"):
            self.setting.engine.take(flight.work)
        self.setting.meter.landed(len(flight))
        if flight.work.bad or not flight.ok.all():
            self._hold()
        if not flight.ok.all():
            self._count_faults(flight)  # here, in batch order: a limit ends a run at the same batch at any depth
        while flight.work.bad:
            before = flight.work
            with self.setting.meter.at("mend"):
                for slot, bad in flight.refused(before.bad):
                    self._quarantined(slot, bad)
                mended = flight.mend(self.setting.draw)
            with self.setting.meter.at("repair"):
                self.setting.engine.redo(flight.work, before, mended)
        self._landed += len(flight)
        batch = flight.done(self.setting.made, self._parts)
        self.setting.beside(batch)
        return flight, batch

    def _hand_over(self, batch: Batch) -> None:
        with self.setting.meter.at("trainer"):
            self._out.put(batch)

    def _clear(self) -> None:
        """Clean up engine and memory for the next pass."""
        while self._flying:
            self.setting.engine.discard(self._flying.popleft().work)
            self.setting.meter.service.dropped()
        self._release()
