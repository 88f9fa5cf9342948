"""Threads, and what they meet on: locks, conditions, queues, futures and the clock, all from this one module.

The rooms whose threads meet take theirs from here by name (`sync.Condition()`), when they need one and not before. So a
test puts others in their place: threads that a seeded scheduler runs one at a time, on a clock of its own
(tests/kit/schedules.py). Thousands of schedules then take seconds, and one that breaks a law comes again by its seed.
"""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import (
    TIMEOUT_MAX,
    Barrier,
    BrokenBarrierError,
    Condition,
    Event,
    Lock,
    RLock,
    Thread,
    current_thread,
    get_ident,
)
from time import monotonic, perf_counter, sleep
from typing import Any, Generic, TypeVar

from dali_feed.errors import ClosedError

__all__ = [
    "TIMEOUT_MAX",
    "Barrier",
    "BrokenBarrierError",
    "Channel",
    "Condition",
    "Empty",
    "Event",
    "Future",
    "Lock",
    "RLock",
    "SimpleQueue",
    "Thread",
    "current_thread",
    "get_ident",
    "monotonic",
    "perf_counter",
    "sleep",
]

# A bounded queue between two threads that either side can end at any time.
#
# Two queues of C, of the items and of the room for them, because a batch is handed over by it: `Condition` does
# the same in Python, and took as long as all else that is done for a small batch.

T = TypeVar("T")

_CLOSED = object()  # the last item, once closed: whoever finds it puts it back for the others


class Channel(Generic[T]):
    """First in, first out, at most `size` items; `close` wakes all waiting threads."""

    def __init__(self, size: int) -> None:
        self._items: SimpleQueue[Any] = SimpleQueue()
        self._room: SimpleQueue[None] = SimpleQueue()  # as many as there may be more items; once closed one for good
        for _ in range(size):
            self._room.put(None)
        self._closed = self._over = False  # whether nothing is given any more, and nothing is left in it
        # Guards that no item comes behind the last. Reentrant: the garbage collector may close a feed in here.
        self._closing = RLock()

    def __len__(self) -> int:
        return 0 if self._closed else self._items.qsize()

    def put(self, item: T) -> None:
        """Wait for room and add. Raises ClosedError once closed."""
        self._room.get()
        self._add(item, "put")

    def end(self, item: T) -> None:
        """Add the last item, behind all others, whether there is room or not. Raises ClosedError once closed."""
        self._add(item, "put")

    def offer(self, item: T, timeout: float) -> bool:
        """Add where there is room within `timeout` seconds; whether it was. Raises ClosedError once closed."""
        try:
            self._room.get(timeout=timeout)
        except Empty:
            return False
        self._add(item, "offer")
        return True

    def _add(self, item: T, how: str) -> None:
        with self._closing:  # an item behind the last would be held for as long as the channel is
            if not self._closed:
                self._items.put(item)
                if not self._over:
                    return
                self.close()  # the collector has closed it in here, and nobody would take the item out
        self._room.put(None)  # for the next one that waits
        msg = f"channel: {how} after close"
        raise ClosedError(msg)

    def get(self, timeout: float | None = None) -> T:
        """Wait for an item and take it. Raises TimeoutError after `timeout` seconds, ClosedError once closed."""
        try:
            item = self._items.get(timeout=timeout)
        except Empty:
            raise TimeoutError from None
        if item is _CLOSED:
            self._items.put(_CLOSED)
            msg = "channel: get after close"
            raise ClosedError(msg)
        self._room.put(None)
        taken: T = item
        return taken

    def drop(self) -> None:
        """Wake both sides, which find that it is closed; for finalizers, as it takes no lock. `close` is still due."""
        self._closed = True
        self._items.put(_CLOSED)
        self._room.put(None)

    def close(self) -> list[T]:
        """Drop what is in it, which is given back, and wake both sides."""
        dropped = list[T]()
        with self._closing:
            self._closed = self._over = True
            with suppress(Empty):
                while True:  # somebody else may take the last one
                    item = self._items.get_nowait()
                    if item is not _CLOSED:
                        dropped.append(item)
            self._items.put(_CLOSED)
            self._room.put(None)
        return dropped
