"""A bounded queue between two threads that either side can end at any time."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

from dali_feed.errors import ClosedError

__all__ = ["Channel"]

T = TypeVar("T")


class Channel(Generic[T]):
    """First in, first out, at most `size` items; `close` wakes all waiting threads."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._items: deque[T] = deque()
        self._closed = False
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T) -> None:
        """Wait for room and add. Raises ClosedError once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._items) < self._size)
            self._add(item)

    def end(self, item: T) -> None:
        """Add the last item, behind all others, whether there is room or not. Raises ClosedError once closed."""
        with self._changed:
            self._add(item)

    def _add(self, item: T) -> None:
        if self._closed:
            msg = "channel: put after close"
            raise ClosedError(msg)
        self._items.append(item)
        self._changed.notify_all()

    def offer(self, item: T, timeout: float) -> bool:
        """Add where there is room within `timeout` seconds; whether it was. Raises ClosedError once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._items) < self._size, timeout)
            if self._closed:
                msg = "channel: offer after close"
                raise ClosedError(msg)
            if len(self._items) >= self._size:
                return False
            self._items.append(item)
            self._changed.notify_all()
            return True

    def get(self, timeout: float | None = None) -> T:
        """Wait for an item and take it. Raises TimeoutError after `timeout` seconds, ClosedError once closed."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._closed or self._items, timeout):
                raise TimeoutError
            if self._closed:
                msg = "channel: get after close"
                raise ClosedError(msg)
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def close(self) -> list[T]:
        """Drop what is in it, which is given back, and wake both sides."""
        with self._changed:
            self._closed = True
            dropped = list(self._items)
            self._items.clear()
            self._changed.notify_all()
            return dropped
