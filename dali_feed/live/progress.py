"""How far a stream is: what has been read of it, what the training loop was handed, and what it has finished.

The law: a state has what the loop was handed. What others may go on from, in a group, is what it has finished: it
asked for the next batch, or called commit(). Positions are those of the next record, per partition.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection

from dali_feed.records.live import Positions

__all__ = ["Progress"]


class Progress:
    """Written by the thread that reads and by the training loop's."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._known = False
        self._read: dict[int, int] = {}
        self._handed: dict[int, int] = {}
        self._finished: dict[int, int] = {}

    # The thread that reads.

    def begins(self, position: Positions) -> None:
        """Where partitions stand before anything came of them; those that are known already stay as they are."""
        with self._changed:
            self._known = True
            for at in (self._read, self._handed, self._finished):
                at.update({p: n for p, n in position.items() if p not in at})
            self._changed.notify_all()

    def reads(self, position: Positions) -> None:
        """Records up to there are on their way to the loop."""
        with self._changed:
            self._read |= position

    def moved(self) -> None:
        """Wake who waits: memory went back, or a queue has room."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait until anything has moved, or so long."""
        with self._changed:
            self._changed.wait(seconds)

    def drained(self, partitions: Collection[int], seconds: float, on: Callable[[], object] | None = None) -> Positions:
        """Wait until the loop has finished all that was read of these partitions; they are forgotten, and given back.

        on  called whenever something has moved: it may hand on what could not be handed on before
        """
        ends = time.monotonic() + seconds
        while True:
            if on is not None:
                on()
            with self._changed:
                left = ends - time.monotonic()
                if left <= 0 or all(self._finished.get(p, 0) >= self._read.get(p, 0) for p in partitions):
                    found = {p: self._finished[p] for p in partitions if p in self._finished}
                    for at in (self._read, self._handed, self._finished):
                        for p in partitions:
                            at.pop(p, None)
                    return found
                self._changed.wait(min(left, 0.1))

    # The training loop's thread.

    def asked(self) -> None:
        """The loop asks for the next batch: it has finished those before."""
        with self._changed:
            if self._finished != self._handed:
                self._finished = dict(self._handed)
            self._changed.notify_all()

    def took(self, position: Positions) -> None:
        """The loop was handed a batch that ends there; of partitions that were taken away it says nothing."""
        with self._changed:
            self._handed.update({p: n for p, n in position.items() if p in self._read})
            self._changed.notify_all()

    def done(self) -> Positions:
        """The loop says that it has finished all that it was handed; gives how far that is."""
        self.asked()
        return dict(self._finished)

    def state(self, seconds: float) -> Positions | None:
        """How far the loop was handed batches, of all partitions; None where the source does not say where they begin.

        Waits so long for that.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._known, seconds)
            return dict(self._handed) if self._known else None
