"""One pass over an epoch: a thread that fills batches, runs and repairs them; they come out in order.

The thread waits at three places and counts each: for reads, for the engine, for the training loop. It never
waits for a read while a finished batch could be handed over. An error reaches the training loop at the
batch where it belongs, after all batches before it.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from dali_feed.engines.lingering import linger
from dali_feed.engines.ranges import NEXT, WAITS
from dali_feed.errors import ClosedError, WaitError
from dali_feed.feed.batch import Batch, Flight
from dali_feed.feed.channel import Channel
from dali_feed.feed.lane import Lane
from dali_feed.feed.setting import Setting
from dali_feed.feed.watchdog import stuck
from dali_feed.quarantine.budget import Fault, Quarantine
from dali_feed.quarantine.letters import Letter
from dali_feed.records.source import unpack_id

__all__ = ["EpochRun"]

PATIENCE = 5.0  # seconds that close() waits for a decoder; its thread ends later then, and the interpreter after it

log = logging.getLogger("dali_feed")


class EpochRun:
    """An iterator over `counts` batches; batch k takes counts[k] slots of every lane."""

    def __init__(self, setting: Setting, lanes: Sequence[Lane], counts: Sequence[int], quarantine: Quarantine) -> None:
        self.setting = setting
        self._lanes, self._counts, self._quarantine = lanes, counts, quarantine
        self._landed = 0  # slots
        self.landing: Flight | None = None  # the batch that the engine is waited for
        self._flying: deque[Flight] = deque()
        self._out: Channel[Batch | BaseException | None] = Channel(setting.prefetch)
        self._ended = False
        self._over, self._then = False, list[Callable[[], None]]()
        self._lock = threading.Lock()
        setting.engine.resume()
        self._look_ahead = True  # reads may be asked for since the last look
        self._thread = threading.Thread(target=self._run, name="dali_feed-feed", daemon=True)
        self._thread.start()

    def __iter__(self) -> EpochRun:
        return self

    def take(self, timeout: float | None = None) -> Batch:
        """The next batch. Raises StopIteration at the end, and after `timeout` seconds a WaitError: what is stuck."""
        if self._ended:
            raise StopIteration
        begun = time.perf_counter()
        with NEXT:
            item = self._wait(timeout)
        self.setting.meter.step_waits.append(time.perf_counter() - begun)
        if isinstance(item, Batch):
            return item
        self.close()
        if item is None:
            raise StopIteration
        raise item

    def _wait(self, timeout: float | None) -> Batch | BaseException | None:
        """The next item; the watchdog warns after `watchdog` seconds without one, and again after twice as many."""
        begun, speaks = time.monotonic(), self.setting.watchdog
        while True:
            waited = time.monotonic() - begun
            ends = speaks if timeout is None else min(speaks, timeout)
            try:
                return self._out.get(max(0.0, ends - waited) if ends < math.inf else None)
            except TimeoutError:
                if ends == timeout:
                    raise WaitError(stuck(self.setting, self.landing)) from None
                log.warning("no batch for %.0f s: %s", time.monotonic() - begun, stuck(self.setting, self.landing))
                speaks *= 2

    def __next__(self) -> Batch:
        return self.take()

    def close(self) -> None:
        """End the pass in whatever state it is; reads and batches under way are dropped."""
        if self._ended:
            return
        self._ended = True
        self._out.close()
        self.setting.engine.halt()
        if threading.current_thread() is self._thread:
            return  # the garbage collector ran here; the next put ends the thread
        self.setting.pool.halt()  # for as long as the thread may still ask for reads
        self._thread.join(timeout=PATIENCE)
        self.setting.pool.resume()
        if self.alive:
            linger(self._thread)

    @property
    def alive(self) -> bool:
        """Whether its thread may still use the engine: it may be inside a decoder."""
        return not self._over

    def at_end(self, call: Callable[[], None]) -> None:
        """Call it when the thread no longer uses the engine: in that thread, or at once."""
        with self._lock:
            if not self._over:
                self._then.append(call)
                return
        call()

    def wait(self) -> None:
        """Wait until the thread of a closed pass has ended, and log now and then what it does."""
        begun = time.monotonic()
        while self.alive:
            self._thread.join(self.setting.watchdog if self.setting.watchdog < math.inf else None)
            if self.alive:
                log.warning(
                    "the pass before is still ending after %.0f s: %s",
                    time.monotonic() - begun,
                    stuck(self.setting, self.landing),
                )

    def _run(self) -> None:
        last: BaseException | None
        begun = time.thread_time()
        try:
            try:
                last = self._feed()
            except BaseException as error:  # noqa: BLE001  in its place; a ClosedError too, where the source was closed
                last = error
            self._out.put(last)
        except ClosedError:
            pass  # the training loop has gone; no one is left to report to
        finally:
            self.setting.meter.feed_cpu += time.thread_time() - begun
            try:
                self._clear()
            finally:
                with self._lock:
                    self._over = True
                for call in self._then:
                    call()

    def _feed(self) -> BaseException | None:
        """Feed all batches; an error that ends it early is returned after all batches before it were handed over."""
        self.setting.engine.enter()
        wrong: BaseException | None = None
        for count in self._counts:
            self._make_room(count)
            try:
                self._fly(count)
            except Exception as error:  # noqa: BLE001  whatever it is, the trainer must see it, and in its place
                error.add_note("Stage: feed")
                wrong = error
                break
        while self._flying:
            self._land()  # an error ends the pass: no later batch may come in this one's place
        if wrong is None:
            with WAITS["letters_wait"], self.setting.meter.waiting("letters_wait"):
                self.setting.outbox.drain(self._has_ended)  # an epoch that ends well has its letters written
        return wrong

    def _make_room(self, count: int) -> None:
        """Hand over finished batches until the next one can be filled and submitted without delaying any."""
        while self._flying:
            full = len(self._flying) >= self.setting.engine.depth
            if not full and all(lane.ready(count) for lane in self._lanes):
                return
            self._land()

    def _fly(self, count: int) -> None:
        if self._look_ahead:
            self._look_ahead = False
            self._read_ahead()
        with WAITS["read_wait"], self.setting.meter.waiting("read_wait"):
            for lane in self._lanes:
                known = bool(self.setting.sizes)
                lane.wait(count)
                if not known and self.setting.sizes:
                    self._read_ahead()
        dealt = sum(lane.dealt for lane in self._lanes)
        pieces = [piece for lane in self._lanes for piece in lane.take(count)]
        self._look_ahead = sum(lane.dealt for lane in self._lanes) > dealt
        flight = Flight(pieces, self.setting.where, same_size=self.setting.same_size)
        self.setting.engine.submit(flight.work)
        self._flying.append(flight)

    def _count_faults(self, flight: Flight) -> None:
        faults = flight.own_faults()
        self.setting.meter.absent += int((~flight.ok).sum()) - len(faults)
        for slot, fault in faults:
            self._quarantined(slot, fault)

    def _quarantined(self, slot: int, fault: Fault) -> None:
        before = len(self._quarantine)
        where = self.setting.where(fault.sample)
        try:
            at = self._landed + slot
            self._quarantine.add(fault.sample, at, where, fault.reason, lambda: self._post(where, fault))
        finally:
            if len(self._quarantine) > before:
                self.setting.meter.bad += 1
                self.setting.meter.recent_bad.append((where, fault.reason))

    def _post(self, where: str, fault: Fault) -> None:
        """Post a dead letter while the payload is in memory, and before its batch is handed over."""
        if self.setting.outbox.wanted:
            partition, position = unpack_id(fault.sample)
            payload = bytes(fault.payload or b"")
            letter = Letter(
                where, self.setting.source, partition, position, fault.sample, fault.stage, fault.reason, payload
            )
            with WAITS["letters_wait"], self.setting.meter.waiting("letters_wait"):
                self.setting.outbox.post(letter, self._has_ended)

    def _has_ended(self) -> bool:
        return self._ended

    def _land(self) -> None:
        self.setting.outbox.check()
        flight = self.landing = self._flying.popleft()
        with WAITS["engine_wait"], self.setting.meter.waiting("engine_wait"):
            result = self.setting.engine.take()
        if not flight.ok.all():
            self._count_faults(flight)  # here, in batch order: a limit ends a run at the same batch at any depth
        while result.bad:
            for slot, fault in flight.refused(result.bad):
                self._quarantined(slot, fault)
            mended = flight.mend(result.bad, self.setting.draw, self.setting.engine.prepare)
            with WAITS["engine_wait"], self.setting.meter.waiting("engine_wait"):
                result = self.setting.engine.redo(flight.work, result, mended)
        self._landed += len(flight)
        batch = flight.done(result, self.setting.made, len(self._lanes))
        self.setting.beside(batch)
        self._look_ahead |= any(piece.chunk.window.left == 0 for piece in flight.pieces)  # memory went back
        with WAITS["trainer_wait"], self.setting.meter.waiting("trainer_wait"):
            self._out.put(batch)

    def _read_ahead(self) -> None:
        """Request reads in order of need, lane by lane in turn, as far as each lane's part of the memory allows.

        Before the first is done only a sample of sizes is known: no more reads than there are readers.
        """
        part = self.setting.memory // len(self._lanes)
        most = math.inf if self.setting.sizes else self.setting.readers
        ahead = [(lane, lane.reads_ahead()) for lane in self._lanes]
        while ahead:
            for turn in list(ahead):
                lane, reads = turn
                task = next(reads, None)
                if task is None or lane.held() + task.held > part:
                    ahead.remove(turn)
                else:
                    self.setting.pool.request(task)
                    most -= 1
                if most <= 0:
                    return

    def _clear(self) -> None:
        """Clean up engine and memory for the next epoch."""
        while self._flying:
            self._flying.popleft()
            self.setting.engine.discard()
        for lane in self._lanes:
            lane.close()
