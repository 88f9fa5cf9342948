"""A pass: the thread that takes slots from its supply, has the engine fill them, and hands batches over in order.

The thread waits at four places and counts each: for reads, for the engine, for dead letters, for the training loop. It
never waits for a read while a finished batch could be handed over. An error reaches the training loop at the batch
where it belongs, after all batches before it. Whatever it waits for ends when the pass is closed.

Where slots come from is the business of the supply: of epochs, which follow each other in one pass, or of a stream. Of
an epoch that the loop has not asked for nothing is counted, and no error is reported: the thread waits, or ends, and
who asks for that epoch begins another pass.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from dali_feed import sync
from dali_feed.bad_records import BadRecord, Letter
from dali_feed.engines.device.ranges import NEXT
from dali_feed.engines.engine import Engine
from dali_feed.engines.workers import linger
from dali_feed.errors import ClosedError, DeadLetterError, WaitError
from dali_feed.feed.batch import Batch, Course, Flight, Uploads
from dali_feed.feed.lane import Piece
from dali_feed.feed.machine import Machine
from dali_feed.feed.meter import Meter, PassMeter
from dali_feed.feed.window import NoneGoodError
from dali_feed.records.source import unpack_id

RECORDS = 32  # of a batch that a message names: as many as one call of a decoder takes, any of which may hold it
LONGEST = sync.TIMEOUT_MAX  # seconds that the system can wait: two centuries; above that it is for ever
PATIENCE = 4.0  # seconds that close() waits for a decoder; its thread ends later then, and the interpreter after it

log = logging.getLogger("dali_feed")


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """Behind the last batch of an epoch; `more`: whether the pass goes on with the next one."""

    epoch: int
    more: bool


@dataclass(frozen=True, slots=True)
class FailedTake:
    """An error in place of the next slots of an epoch."""

    epoch: int
    error: Exception


class Gate:
    """What the loop's thread and the pass's say to each other: how far the loop asks, and who goes on.

    requested  the last epoch that the loop has asked for
    closed     whether no batch is given any more
    over       whether the pass's thread gives nothing more
    rests      whether it has done all that it may before the loop asks
    """

    def __init__(self, epoch: int) -> None:
        self.requested, self.closed, self.over, self.rests = epoch, False, False, False
        self._changed = sync.Condition()  # guards the first three

    def request(self, epoch: int) -> bool:
        """The loop asks for that epoch; False where the thread has ended before it, or does not go on."""
        with self._changed:
            if self.closed or self.over:
                return False
            self.requested = epoch
            self._changed.notify_all()
            return True

    def leave(self, epoch: int) -> bool:
        """The thread gives up in that epoch; whether that is to be said to nobody, as nobody has asked for it."""
        with self._changed:
            quietly = epoch > self.requested
            self.over = self.over or quietly
            return quietly

    def finish(self) -> None:
        """The thread gives nothing more."""
        with self._changed:
            self.over = True

    def close(self) -> None:
        """No batch is given any more."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def wake(self) -> None:
        """What a thread waits for may be there."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, done: Callable[[], bool]) -> None:
        """Wait until `done`; ClosedError where the pass is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self.closed or done())
            if self.closed:
                msg = "pass: closed before it was asked for"
                raise ClosedError(msg)

    def until_requested(self, epoch: int, meter: Meter) -> None:
        """Wait until the loop asks for that epoch: at once, but for one that was begun ahead of it."""
        if epoch > self.requested:
            self.rests = True
            with meter.at("rest"):
                self.wait(lambda: epoch <= self.requested)
            self.rests = False

    def is_closed(self) -> bool:
        """For whoever waits elsewhere."""
        return self.closed


Late = Callable[[], Batch]  # a batch that is made when all before it have been handed over


class Supply(ABC):
    """Where a pass gets its slots from. The pass's thread uses it, others only `begin`, `halt`, `resume`, `at_work`.

    epoch   that `take` stands in: whose its slots, and its errors, are
    source  the name of the source
    """

    epoch: int

    def __init__(self, machine: Machine, source: str) -> None:
        self.machine, self.source = machine, source

    def begin(self) -> None:  # noqa: B027  most have none
        """The pass begins: threads of the supply's own may run."""

    @abstractmethod
    def ready(self) -> bool:
        """Whether `take` gives something without waiting."""

    @abstractmethod
    def take(self) -> tuple[Course, list[Piece]] | Late | EpochEnd | None:
        """The slots of the next batch, or a batch that has none, or an epoch's end; None: no more. May wait.

        No slots mean that there is none yet: what is in flight goes first.
        """

    @abstractmethod
    def bad(self, flight: Flight, slot: int, bad: BadRecord) -> None:
        """A record of a batch turned out to be bad; its payload is in memory."""

    @abstractmethod
    def landed(self, flight: Flight, batch: Batch) -> None:
        """A batch is whole, and is handed over next."""

    def none_good(self, flight: Flight, error: NoneGoodError) -> Batch:
        """No record of a batch in flight is good: gives what is handed over in its place."""
        raise error

    def end(self, epoch: int) -> None:  # noqa: B027  a stream has none
        """All batches of that epoch have been handed over."""

    @abstractmethod
    def halt(self) -> None:
        """End the reads under way and those still to come."""

    def resume(self, seconds: float) -> None:  # noqa: B027  a stream's reader ends with its pass
        """Reads may be asked for again, for another pass, once those under way have ended, or so long from now."""

    def threads(self) -> Sequence[sync.Thread]:
        """Threads of this pass alone."""
        return ()

    @abstractmethod
    def release(self) -> None:
        """Give back the memory of what has been read; nothing is in flight any more."""

    # For the watchdog.

    @abstractmethod
    def at_work(self) -> str:
        """What the source is at."""

    def remark(self) -> str:
        """What else keeps batches from coming, whatever is at work."""
        return ""

    def alarm(self) -> int:
        """The level of the line in the log."""
        return logging.WARNING

    # Bad records and their letters.

    def count(self, course: Course, slot: int, bad: BadRecord, where: str, post: Callable[[], None]) -> None:
        """Count a bad record, and `post` its letter where it is new. Raises by the policy."""
        quarantine, meter = course.quarantine, self.machine.meter
        before = len(quarantine)
        try:
            quarantine.add(bad.sample, slot, where, bad.reason, post)
        finally:
            if len(quarantine) > before:
                meter.bad += 1
                meter.recent_bad.append((where, bad.reason))

    def letter(self, where: str, bad: BadRecord) -> Letter:
        """A bad record's, made while the payload is in memory."""
        partition, position = unpack_id(bad.sample)
        cache = self.machine.cache
        if cache is None:
            payload = bytes(bad.payload or b"")
        else:  # as it was read
            with self.machine.meter.at("source"):
                payload = cache.payload(bad.sample, bad.payload)
        return Letter(where, self.source, partition, position, bad.sample, bad.stage, bad.reason, payload)


class Pass:
    """One thread that feeds, one supply, one channel to the training loop. `begin` it once."""

    def __init__(self, machine: Machine, engine: Engine, supply: Supply, gate: Gate, lanes: int = 1) -> None:
        self.machine, self.engine, self.supply, self.gate = machine, engine, supply, gate
        self._lanes = lanes  # of this rank: each batch has equally many slots of each
        self._uploads = machine.uploads or Uploads(machine.companions, engine.device)
        self.ended_epoch = -1  # the last one whose batches, and letters, have all been handed over
        self.landing: Flight | None = None  # the batch that the engine is waited for
        self._flying: deque[Flight | Late | EpochEnd | FailedTake] = deque()
        self._out: sync.Channel[Batch | EpochEnd | BaseException] = sync.Channel(machine.tuning.prefetch)
        self._stop = sync.Event()  # set at its end: its batches are not worked on any more
        self.thread = sync.Thread(target=self._run, name="dali_feed-feed", daemon=True)
        self._begun = self._runs = self._over = False
        self._then = list[Callable[[], None]]()  # called at the thread's end
        self._ended = sync.Event()
        self._lock = sync.RLock()  # guards whether the thread has begun, and what is called at its end
        self._noted = PassMeter(machine.meter)

    # For the training loop, and whoever closes.

    def begin(self) -> None:
        """Have its thread feed it, once; whoever closes it is known by then, for an interrupt may come out of here.

        Whatever does, `alive` says whether the thread runs.
        """
        self.supply.begin()
        self._begun = True
        try:
            self.thread.start()
        except BaseException:
            with self._lock:
                self._begun = self._runs
            raise

    def request(self, epoch: int) -> bool:
        """The loop asks for that epoch, of which this pass may have batches already; False where it cannot go on."""
        if not self.gate.request(epoch):
            return False
        self._noted.end()  # of a loop that left the epoch before at its last batch
        self._noted = PassMeter(self.machine.meter)
        return True

    def take(self, timeout: float | None = None) -> Batch:
        """The next batch. StopIteration at an epoch's end; after `timeout` seconds a WaitError that says what is stuck.

        Behind any other error comes nothing.
        """
        self._noted.begin_wait()
        with NEXT:
            item = self._wait(timeout)
            while isinstance(item, EpochEnd) and item.epoch < self.gate.requested:
                item = self._wait(timeout)  # the end of an epoch whose last batch the loop has left it at
        self._noted.came(more=isinstance(item, Batch))
        if isinstance(item, Batch):
            item.make_views()
            return item
        if isinstance(item, EpochEnd):
            raise StopIteration
        if isinstance(item, DeadLetterError):
            self.machine.outbox.heard = True
        raise item

    def _wait(self, timeout: float | None) -> Batch | EpochEnd | BaseException:
        """The next item; the watchdog warns after `watchdog` seconds without one, and again after twice as many."""
        begun, speaks = sync.monotonic(), self.machine.tuning.watchdog
        while True:
            waited = sync.monotonic() - begun
            ends = speaks if timeout is None else min(speaks, timeout)
            try:
                return self._out.get(max(0.0, ends - waited) if ends < LONGEST else None)
            except ClosedError:
                self._noted.end()  # whoever closed the pass may have done so before it was noted that this one asks
                msg = (
                    "iterator: another thread has ended this pass while this one waited for a batch: by close(), a"
                    " newer pass over the same loader, or load_state_dict()"
                )
                raise ClosedError(msg) from None
            except TimeoutError:
                if ends == timeout:
                    raise WaitError(self._stuck()) from None
                log.log(self.supply.alarm(), "no batch for %.0f s: %s", sync.monotonic() - begun, self._stuck())
                speaks *= 2

    def drop(self) -> None:
        """No batch is wanted any more: its thread finds that out with the next one.

        For finalizers, which may run in any thread and in the middle of anything: it takes no lock and waits for
        nothing. `close` is still due.
        """
        self._out.drop()

    def close(self) -> None:
        """End the pass in whatever state it is; reads and batches under way are dropped.

        Who was interrupted in here calls it again: all of it is done again.
        """
        self._noted.end()
        self._stop.set()
        self._out.close()  # before the gate: what that raises is no error for the loop
        self.gate.close()
        self.engine.halt()
        if sync.current_thread() is self.thread:
            return  # the garbage collector ran here; the next put ends the thread
        ends = sync.monotonic() + PATIENCE
        self.supply.halt()  # for as long as the thread may still ask for reads
        try:
            self._join(PATIENCE)
        finally:  # a second Ctrl-C: the next pass reads all the same
            self.supply.resume(max(0.0, ends - sync.monotonic()))
        if self.alive:
            linger(self.thread)

    @property
    def alive(self) -> bool:
        """Whether its thread may still use the engine: it may be inside a decoder."""
        return self._begun and not self._over

    @property
    def threads(self) -> list[sync.Thread]:
        """Its threads that have not ended."""
        return [thread for thread in (self.thread, *self.supply.threads()) if thread.is_alive()]

    def at_end(self, call: Callable[[], None]) -> None:
        """Call it when the thread no longer uses the engine: in that thread, or at once."""
        with self._lock:
            if self.alive:
                self._then.append(call)
                return
        call()

    def _join(self, timeout: float | None) -> None:
        """Wait for its thread's end, up to `timeout` seconds; for nothing where that has not begun."""
        if self._begun and self._ended.wait(timeout) and self.thread.is_alive():
            self.thread.join(timeout)

    def wait_ended(self) -> None:
        """Wait until the thread of a pass that is over has ended, and log now and then what it does."""
        begun = sync.monotonic()
        if self.alive:
            self.close()  # an interrupt may have ended the last try before the thread could hear of it
        while self.alive:
            watchdog = self.machine.tuning.watchdog
            self._join(watchdog if watchdog < LONGEST else None)
            if self.alive:
                log.warning(
                    "the pass before is still ending after %.0f s: %s",
                    sync.monotonic() - begun,
                    self._stuck(),
                )

    # The thread's own.

    def _run(self) -> None:
        with self._lock:
            if not self._begun:  # nobody waits for it any more
                return
            self._runs = True
        try:
            self._work()
        finally:
            with self._lock:
                self._over = True
            for call in self._then:
                call()
            self._ended.set()

    def _work(self) -> None:
        begun = time.thread_time()
        last: BaseException | None
        try:
            try:
                last = self._feed()
            except BaseException as error:  # noqa: BLE001  in its place; a ClosedError too, where the source was closed
                last = error
            if last is not None:
                self._out.end(last)
        except ClosedError:
            pass  # the training loop has gone; no one is left to report to
        finally:
            self.gate.finish()
            self.machine.meter.feed_cpu += time.thread_time() - begun
            self._clear()

    def _feed(self) -> BaseException | None:
        """Feed all batches; an error that ends it is returned after all batches before it were handed over."""
        engine, supply, flying = self.engine, self.supply, self._flying
        if self.gate.closed:  # before it ran
            return None
        engine.enter()
        self.machine.meter.clock()  # runs from here on
        more = True
        while more or flying:
            while flying and not (more and len(flying) < engine.depth and supply.ready()):
                oldest = flying[0]
                epoch = oldest.epoch if isinstance(oldest, Flight | EpochEnd | FailedTake) else supply.epoch
                try:
                    self._land()
                except BaseException as error:  # noqa: BLE001  in its place
                    return None if self.gate.leave(epoch) else error
            if more:
                more = self._fly()
        return None

    def _fly(self) -> bool:
        """Put what the supply gives next behind what is in flight; False where nothing comes behind it."""
        try:
            item = self.supply.take()
            if isinstance(item, tuple):
                course, pieces = item
                if pieces:
                    self._submit(course, pieces)
            elif item is not None:
                self._flying.append(item)
        except Exception as error:  # noqa: BLE001  whatever it is, the trainer must see it, and in its place
            error.add_note("Stage: feed")
            item = None
            self._flying.append(FailedTake(self.supply.epoch, error))
        return item is not None

    def _submit(self, course: Course, pieces: list[Piece]) -> None:
        """A batch of these slots is given to the engine."""
        engine, machine = self.engine, self.machine
        flight = Flight(pieces, course, machine.where, same_size=machine.same_size)
        engine.submit(flight.work, self._stop)
        machine.meter.began(len(flight))
        self._flying.append(flight)

    def _land(self) -> None:
        """Hand over the oldest of what is in flight. An error leaves it there, or the engine would keep it."""
        machine, oldest = self.machine, self._flying[0]
        if isinstance(oldest, FailedTake):
            raise oldest.error
        if isinstance(oldest, EpochEnd):
            with machine.meter.at("dead letters"):  # an epoch that ends well has them on disk
                machine.outbox.drain(self.gate.is_closed)
            self.supply.end(oldest.epoch)
            if not oldest.more:
                self.gate.finish()  # before the loop can hear of the end, and ask for another epoch
            self.ended_epoch = oldest.epoch
            item: Batch | EpochEnd = oldest
        elif isinstance(oldest, Flight):
            item = self._landed(oldest)
        else:
            item = oldest()
        self._flying.popleft()
        with machine.meter.at("trainer"):
            self._out.put(item)

    def _landed(self, flight: Flight) -> Batch:
        """The batch, done and mended."""
        machine, supply, course = self.machine, self.supply, flight.course
        machine.outbox.check()
        self.landing = flight
        with machine.meter.at("engine"):
            self.engine.take(flight.work)
        machine.meter.landed(len(flight))
        try:
            if flight.work.bad or not flight.ok.all():
                self.gate.until_requested(course.epoch, machine.meter)  # before anything of it is counted
            if not flight.ok.all():  # here, in batch order: a limit ends a run at the same batch at any depth
                faults = flight.own_faults()
                machine.meter.absent += int((~flight.ok).sum()) - len(faults)
                for slot, bad in faults:
                    supply.bad(flight, slot, bad)
            while flight.work.bad:
                before = flight.work
                with machine.meter.at("mend"):
                    for slot, bad in flight.refused(before.bad):
                        supply.bad(flight, slot, bad)
                    mended = flight.mend()
                with machine.meter.at("repair"):
                    self.engine.redo(flight.work, before, mended)
        except NoneGoodError as error:
            return supply.none_good(flight, error)
        course.landed += len(flight)
        columns_of = partial(machine.columns.batch, room=self._uploads.room, gpu=self._uploads.device is not None)
        batch = flight.done(columns_of, self._lanes)
        self._uploads(batch, course.epoch)
        if len(self._out) >= machine.tuning.prefetch:  # the loop has enough to take
            batch.make_views()
        supply.landed(flight, batch)
        return batch

    def _clear(self) -> None:
        """Clean up engine and memory for the next pass."""
        while self._flying:
            flight = self._flying.popleft()
            if isinstance(flight, Flight):
                self.engine.discard(flight.work)
        self.machine.meter.dropped()
        self.supply.release()

    # What is stuck, said by the waiting loop's own thread out of what the other threads have noted down: nothing is
    # requested from a stage that may never answer.

    def _stuck(self) -> str:
        """The stage that the thread waits for, for how long, and its work."""
        stage, seconds = self.machine.meter.now()
        match stage:
            case "source":
                what = self.supply.at_work()
            case "engine" | "repair" if self.landing is not None:
                what = self._engine_at(self.landing)
            case "dead letters":
                what = f"dead letters: {self.machine.outbox} does not accept them"
            case _:
                what = "feed: its thread is at work on the next batch"
        return f"{what}; for {seconds:.0f} s{self.supply.remark()}"

    def _engine_at(self, flight: Flight) -> str:
        """The records that the engine's threads work on, where it can say; otherwise the batch's first and last."""
        where, (what, at) = self.machine.where, self.engine.at_work()
        slots = sorted(slot for slot in at if slot < len(flight))
        name = f"engine: {what}"
        if slots:
            shown = ", ".join(where(int(flight.ids[slot])) for slot in slots[:RECORDS])
            return f"{name} is at {shown}{f', and {len(slots) - RECORDS} more' if len(slots) > RECORDS else ''}"
        first, last = (where(int(flight.ids[slot])) for slot in (0, -1))
        return f"{name} runs the batch of {len(flight)} from {first} to {last}"
