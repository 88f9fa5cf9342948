"""The thread that reads a stream, and gathers its records to batches at the source's pace.

The law: records leave in the order in which they came, and which of them make a batch is decided by their number, the
pace and the clock; nothing else depends on it. Reading never runs more than some batches ahead of the loop.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol

from dali_feed.engines.ranges import READ
from dali_feed.errors import ClosedError, DaliFeedError, SourceError
from dali_feed.feed.channel import Channel
from dali_feed.live.progress import Progress
from dali_feed.live.shared import Shared
from dali_feed.records.live import Drain, LiveBlock, LiveReader, Pace, Positions
from dali_feed.records.pieces import Pieces
from dali_feed.records.source import Block, Slabs, unpack_ids

__all__ = ["Gathered", "Gatherer", "Opened"]

AHEAD = 2  # batches that wait for the feed thread
SLICE_S = 1.0  # how long a wait may be without a look at the reader
REST_S = 5.0  # of a wait for the loop, after which a reader that wants to may look after itself
_ROOM_S = 0.02  # how often memory is looked at again


class Opened(Protocol):
    """Opens a stream for a thread."""

    def __call__(self, slabs: Slabs, stop: threading.Event, drain: Drain) -> LiveReader:
        """A reader whose waits end at `stop`."""
        ...


@dataclass(slots=True)
class Gathered:
    """The records of a batch, or none of an idle one, and where their partitions stand behind them."""

    blocks: list[Block] = field(default_factory=list)
    position: dict[int, int] = field(default_factory=dict)
    count: int = 0
    size: int = 0

    def add(self, found: LiveBlock) -> None:
        """A block more."""
        self.position |= found.position
        if len(found.block.ids):
            self.blocks.append(found.block)
            self.count += len(found.block.ids)
            self.size += _size(found.block)
        else:
            found.block.lease.release()

    def release(self) -> None:
        """Give the memory back."""
        for block in self.blocks:
            block.lease.release()


def _size(block: Block) -> int:
    """Bytes of payloads, and of fields that are bytes."""
    size = sum(len(payload) for payload in block.payloads if payload is not None)
    for values in block.fields.values():
        if isinstance(values, Pieces):
            size += int(values.size.sum())
        elif isinstance(values, list):
            size += sum(len(value) for value in values if isinstance(value, memoryview | bytes))
    return size


def _begin(found: LiveBlock, known: Collection[int]) -> dict[int, int]:
    """Where partitions that are new stand before this block: at their first record in it."""
    fresh = {p: n for p, n in found.position.items() if p not in known}
    if fresh:
        partitions, positions = unpack_ids(found.block.ids)
        for p, n in zip(partitions.tolist(), positions.tolist(), strict=True):
            if p in fresh:
                fresh[p] = min(fresh[p], n)
    return fresh


class Gatherer:
    """One thread, once it is told to `begin`. Batches are taken by one other thread."""

    def __init__(
        self, name: str, opened: Opened, pace: Pace, batch_size: int, progress: Progress, slabs: Shared
    ) -> None:
        self._name, self._opened, self._pace, self._batch_size = name, opened, pace, batch_size
        self._progress, self._slabs = progress, slabs
        self._stop = threading.Event()
        self._out: Channel[Gathered | BaseException] = Channel(AHEAD)
        self._waiting: list[Gathered] = []  # for room in the channel
        self._part = Gathered()
        self._begun = 0.0  # when its first record came
        self._quiet = 0.0  # since when none has come
        self._known: set[int] = set()  # partitions
        self._lost: set[int] = set()  # those of them that were taken away since the last poll
        self._told = False  # whether the first block has come
        self._hurry = False  # partitions are being taken away: no batch waits for more records
        self._came = self._rested = time.monotonic()
        self._reader: LiveReader
        self._thread = threading.Thread(target=self._run, name="dali_feed-live", daemon=True)

    def begin(self) -> None:
        """Read; whoever stops it is known by then, for an interrupt may come out of here."""
        self._thread.start()

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

    def told(self) -> str:
        """What it is at, for the watchdog."""
        trouble = self.trouble
        since = time.monotonic() - self._came
        told = f"source: {self._name}: the last record came {since:.0f} s ago"
        if count := self._part.count:
            told = f"{told}, {count} of the {self._batch_size} records of a batch are there"
        return f"{told}, {trouble}" if trouble else told

    @property
    def trouble(self) -> str:
        """What hinders the reader, if it says so."""
        return getattr(self.reader, "trouble", "")

    @property
    def reader(self) -> LiveReader | None:
        """The reader, once there is one."""
        return getattr(self, "_reader", None)

    def stop(self, timeout: float = 5.0) -> None:
        """End the reader, and wait for it so long. Safe to call twice."""
        self._stop.set()
        for dropped in self._out.close():
            if isinstance(dropped, Gathered):
                dropped.release()
        self._progress.moved()
        if self._thread.is_alive() and self._thread is not threading.current_thread():  # where the collector may run
            self._thread.join(timeout)

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
        self._reader = self._opened(self._slabs, self._stop, self._drain)
        self._quiet = time.monotonic()
        while not self._stop.is_set():
            self._put()
            self._step()

    def _step(self) -> None:
        """One poll, and what becomes of it."""
        pace, part = self._pace, self._part
        now = time.monotonic()
        if part.count:
            left = math.inf if pace.timeout is None else self._begun + pace.timeout - now
            if left <= 0 or self._hurry:
                self._flush()
                return
            self._poll(self._batch_size - part.count, self._idle(now, left))
        elif not self._poll(self._batch_size, 0.0):
            self._poll(1 if pace.timeout is not None else self._batch_size, self._idle(now, math.inf))

    def _idle(self, now: float, left: float) -> float:
        """How long a poll may wait; hands an empty batch over where the stream has been idle for long."""
        idle = math.inf if self._pace.idle is None else self._quiet + self._pace.idle - now
        if idle <= 0:
            self._waiting.append(Gathered(position=self._part.position if not self._part.count else {}))
            if not self._part.count:
                self._part = Gathered()
            self._quiet = now
            return 0.0
        return min(left, idle, SLICE_S)

    def _poll(self, records: int, seconds: float) -> bool:
        """Take what comes into the batch; whether that was any record."""
        size = self._pace.size
        with READ:
            found = self._reader.poll(records, math.inf if size is None else max(1, size - self._part.size), seconds)
        lost, self._lost = self._lost, set()
        self._known -= lost
        fresh = _begin(found, self._known)
        if fresh or not self._told:  # a rank may have no partition
            self._told = True
            self._known |= fresh.keys()
            self._progress.begins(fresh)
        came = len(found.block.ids) > 0
        if came:
            self._came = self._quiet = time.monotonic()
            part = self._part
            if size is not None and part.count and part.size + _size(found.block) > size:
                self._flush()
            if not self._part.count:
                self._begun = self._came
        if came:
            self._progress.reads(found.position)
        self._part.add(found)
        part = self._part
        self._slabs.check(part.count)
        if part.count >= self._batch_size or (size is not None and part.size >= size):
            self._flush()
        return came

    def _flush(self) -> None:
        """The batch is whole, and so is its memory."""
        if self._part.count:
            self._slabs.turn()
            self._waiting.append(self._part)
            self._part = Gathered()

    def _put(self) -> None:
        """Hand whole batches on, and wait until there is room for another one; the reader is asked for none then."""
        while self._waiting and not self._stop.is_set():
            self._rest()
            if self._out.offer(self._waiting[0], SLICE_S):
                self._waiting.pop(0)
            else:
                self._poll(0, 0.0)
        looked = time.monotonic()
        while not (self._stop.is_set() or self._part.count or self._slabs.room_left()):
            self._rest()
            self._progress.wait(_ROOM_S)
            if time.monotonic() - looked > SLICE_S:
                looked = time.monotonic()
                self._poll(0, 0.0)

    def _rest(self) -> None:
        """Nothing is read now; see `records.source.Reader`."""
        now = time.monotonic()
        if now - self._rested >= REST_S and (rest := getattr(self._reader, "rest", None)) is not None:
            self._rested = now
            with contextlib.suppress(Exception):  # what is wrong with it shows in the next poll
                rest()

    def _drain(self, partitions: Collection[int], seconds: float) -> Positions:
        """Called by the reader, when partitions are taken away: what was given of them is handed on and waited for.

        In this thread, inside a poll; or in one of the reader's own, while this one goes on.
        """

        def hand_on() -> None:
            while self._waiting and self._out.offer(self._waiting[0], 0.0):
                self._waiting.pop(0)

        own = threading.current_thread() is self._thread
        self._hurry = True
        if own:
            self._flush()
        ended = self._stop.is_set()  # the loop has gone: it finishes nothing any more
        try:
            return self._progress.drained(partitions, 0.0 if ended else seconds, hand_on if own and not ended else None)
        finally:
            self._hurry = False
            self._lost |= set(partitions)
