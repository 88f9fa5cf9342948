"""What a source is whose records never end: it has no snapshot and no plan, only a position that moves on.

The law: a record is given to one rank, once, in the order of its partition; which records come together in a block
is the network's doing, so nothing may depend on it but the borders of batches. What a reader gave is not consumed: the
training loop's position is, and that is what a state holds. A stream that goes on from a state gives what came behind
it: nothing is lost and nothing comes twice.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dali_feed import sync
from dali_feed.records.source import Block, Extents, Lease, Reader, Records

Positions = Mapping[int, int]  # partition -> the next position to read there

SLICE_SECONDS = 0.1  # the longest wait that does not look whether it is still wanted
LETTER_SECONDS = 1.0  # for dead letters to be kept, where the loop has used up the time


@dataclass(frozen=True, slots=True)
class Pace:
    """When a batch of a stream is handed over; the first that holds decides.

    timeout  seconds after its first record has come; None: only when it is full
    size     bytes of its payloads, so that large and small records fill a batch of equal cost; None: by count alone.
             A record larger than that is a batch by itself
    idle     seconds without any record, after which an empty batch is handed over, so that no rank keeps the others
             waiting in a collective; None: wait
    """

    timeout: float | None = None
    size: int | None = None
    idle: float | None = None


@dataclass(slots=True)
class LiveBlock:
    """Records in the order in which they came, none absent, and where their partitions stand behind them.

    `position` has each partition that has moved, by records or by offsets that hold none. A reader's first block, with
    records or without, has all partitions of its rank: where they stand before anything came of them. `generation` is
    that of the progress when these records came: with another one by now they are void.
    """

    block: Block
    position: dict[int, int]
    generation: int = 0


class Progress:
    """How far a stream is: what the training loop was handed, and what it has finished. Positions by partition.

    The laws: a state has what the loop was handed. What others may go on from, in a group, is what it has finished: it
    asked for the next batch, or called commit(). A batch is handed over by `took` alone; where partitions are taken
    away, all that is under way is void (`withdraw`), so that the loop is waited for with the one batch that it has.

    The loop's threads and the reader's meet here. The reader alone says which partitions there are, and changes the
    generation. `changed` guards all of it, and what the reader keeps for its own `poll`.

    Args:
        durable: waits so many seconds until the dead letters of what the loop was handed are kept; whether they are.
    """

    def __init__(self, durable: Callable[[float], bool] = lambda _: True) -> None:
        self.changed = sync.Condition()
        self.generation = 0
        self._durable = durable
        self._known = False
        self._awaited = 0  # who waits for the loop to finish
        self._handed: dict[int, int] = {}
        self._finished: dict[int, int] = {}
        self._in_hand: dict[int, dict[int, int]] = {}  # thread -> what was handed before the batch that it has

    # The reader's.

    def begins(self, position: Positions) -> None:
        """Where partitions stand before anything came of them; those that are known already stay as they are."""
        with self.changed:
            self._known = True
            for at in (self._handed, self._finished):
                at.update({p: n for p, n in position.items() if p not in at})
            self.changed.notify_all()

    def withdraw(self) -> dict[int, int]:
        """All that the loop was not handed is void, and has to be read again; gives how far it was handed batches."""
        with self.changed:
            self.generation += 1
            self.changed.notify_all()
            return dict(self._handed)

    def wait_finished(
        self, partitions: Collection[int], seconds: float, stopped: Callable[[], bool] = lambda: False
    ) -> dict[int, int]:
        """Wait until the loop has finished what it was handed of these partitions; how far it has by then.

        Nothing where dead letters of it are not kept yet: whoever goes on from there would not see them again.
        """
        ends = sync.monotonic() + seconds
        with self.changed:
            self._awaited += 1
            try:
                while not stopped() and any(self._finished.get(p, 0) < self._handed.get(p, 0) for p in partitions):
                    left = ends - sync.monotonic()
                    if left <= 0:
                        break
                    self.changed.wait(min(left, SLICE_SECONDS))
            finally:
                self._awaited -= 1
            done = {p: self._finished[p] for p in partitions if p in self._finished}
        return done if self._durable(max(LETTER_SECONDS, ends - sync.monotonic())) else {}

    def forget(self, partitions: Collection[int]) -> None:
        """They are another's now."""
        with self.changed:
            for at in (self._handed, self._finished, *self._in_hand.values()):
                for p in partitions:
                    at.pop(p, None)

    # The training loop's.

    def asked(self) -> None:
        """This thread asks for the next batch: it has finished the one before."""
        with self.changed:
            self._in_hand.pop(sync.get_ident(), None)
            self._finish()

    def took(self, position: Positions, generation: int, settle: Callable[[], object] = lambda: None) -> bool:
        """This thread is handed a batch that ends there; False where that is void, and must not be used.

        `settle` is called where it is not. What that raises leaves the batch as if it had not come.
        """
        with self.changed:
            if generation != self.generation:
                return False
            settle()
            self._in_hand.setdefault(sync.get_ident(), dict(self._handed))
            self._handed.update({p: n for p, n in position.items() if p in self._handed})
            return True

    def done(self) -> dict[int, int]:
        """The loop says that it has finished all that it was handed; gives how far that is."""
        with self.changed:
            self._in_hand.clear()
            self._finish()
            return dict(self._finished)

    def _finish(self) -> None:
        """Finished is what came before the oldest batch that a thread still has."""
        finished = next(iter(self._in_hand.values()), self._handed)
        if self._finished != finished:
            self._finished.update({p: n for p, n in finished.items() if p in self._finished})
        if self._awaited:
            self.changed.notify_all()

    def state(self, seconds: float) -> dict[int, int] | None:
        """How far the loop was handed batches, of all partitions; None where the source does not say where they begin.

        Waits so long for that.
        """
        with self.changed:
            self.changed.wait_for(lambda: self._known, seconds)
            return dict(self._handed) if self._known else None

    # Whoever waits for something else to move.

    def moved(self) -> None:
        """Wake who waits: memory went back, or a pass has ended."""
        with self.changed:
            self.changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait until anything has moved, or so long."""
        with self.changed:
            self.changed.wait(seconds)


class LiveReader(Reader):
    """One thread's way into a stream. Not shared between threads, but for `commit`; never inherited through fork.

    It says to its `Progress` where partitions begin, before their first record.
    """

    @abstractmethod
    def poll(self, records: int, size: float, seconds: float, lease: Lease) -> LiveBlock:
        """Up to `records` records: as soon as so many are there, or `size` bytes of payload, or after `seconds`.

        The record that would pass `size` is left for the next call, unless it is the first. Seconds 0 asks for
        what has come already. Memory is taken of `lease`, which the caller releases, also when this raises: a
        ClosedError when the stop event is set, and a SourceError where it cannot go on.
        """

    def read(self, extents: Extents, lease: Lease) -> Block:
        """What has no end is polled."""
        raise NotImplementedError

    @abstractmethod
    def commit(self, position: Positions) -> None:
        """Publish how far the loop is. Raises a SourceError after a few seconds where that cannot be done."""


class Stream(Records):
    """Where records come from that never end. Cheap to make: nothing is opened before `live`."""

    @property
    @abstractmethod
    def pace(self) -> Pace:
        """When a batch is handed over."""

    @abstractmethod
    def live(
        self,
        at: Mapping[str, Any] | None,
        members: Sequence[str],
        *,
        rank: int = 0,
        world_size: int = 1,
        stop: sync.Event | None = None,
        progress: Progress | None = None,
    ) -> LiveReader:
        """A reader of these members of this rank's partitions, from `at` on, a mark of before; None: from the begin.

        Where it begins is captured here, once. `progress` None: what `poll` gives counts as handed over, and as
        finished when it is called for more. Raises StateError where `at` is of something else, or lacks a partition of
        this rank.
        """

    @abstractmethod
    def mark(self, position: Positions, *, rank: int = 0, world_size: int = 1) -> dict[str, Any]:
        """A rank's position as plain JSON, with what it was made for: all of its partitions, as blocks said them."""

    @abstractmethod
    def merged(self, marks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """One mark of those of several ranks of one run, which a run of any world size goes on from.

        Raises StateError where they are not of one run, or two are of one rank.
        """
