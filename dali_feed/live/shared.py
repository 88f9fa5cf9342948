"""Slabs of a batch that comes piece by piece: its blocks lie in the same ones.

A stream's records come one by one at times, and a slab for each would be megabytes for kilobytes.
"""

from __future__ import annotations

import threading

from dali_feed.errors import ConfigError
from dali_feed.records.slabs import SlabLease, SlabPool

__all__ = ["Shared"]


class _Whole:
    """A lease that several blocks share; it goes back when it is whole and all of them are released."""

    def __init__(self, lease: SlabLease) -> None:
        self.lease = lease
        self._lock = threading.Lock()
        self._held = 1  # by `Shared`, until it is whole

    def hold(self) -> None:
        with self._lock:
            self._held += 1

    def let_go(self) -> None:
        with self._lock:
            self._held -= 1
            last = not self._held
        if last:
            self.lease.release()


class _Part:
    """A block's part. See `records.source.Lease`."""

    def __init__(self, whole: _Whole) -> None:
        whole.hold()
        self._whole, self._held = whole, True
        self.slab_bytes = whole.lease.slab_bytes
        self._filled = 0

    @property
    def size(self) -> int:
        """Bytes that were asked for."""
        return self._filled

    def room(self, size: int) -> memoryview:
        """A writable view of the batch's slabs."""
        self._filled += size
        return self._whole.lease.room(size)

    def ahead(self, size: int) -> list[memoryview]:
        """None: a batch ends where its slabs do, so that parts take what they need."""
        del size
        return []

    def back(self, views: list[memoryview], filled: int) -> None:
        """There are none."""

    def release(self) -> None:
        """Safe to call twice."""
        if self._held:
            self._held = False
            self._whole.let_go()


class Shared:
    """Slabs of `pool`, of which `memory` bytes may be out. See `records.source.Slabs`; used by one thread."""

    def __init__(self, pool: SlabPool, memory: int) -> None:
        self._pool, self._memory = pool, memory
        self._whole = _Whole(pool.lease())

    def lease(self) -> _Part:
        """A part of the batch that is being gathered."""
        return _Part(self._whole)

    def turn(self) -> None:
        """The next blocks are another batch's."""
        whole, self._whole = self._whole, _Whole(self._pool.lease())
        whole.let_go()

    def room_left(self) -> bool:
        """Whether another batch may be begun."""
        return self._pool.leased <= self._memory // 2

    def check(self, count: int) -> None:
        """Raise ConfigError where the batch, of so many records by now, takes more than there is."""
        held = self._whole.lease.size
        if held > self._memory:
            msg = (
                f"Tuning(memory={self._memory}): must be enough bytes for a batch; found one of {held} bytes, with"
                f" {count} records. Give several times as much, a smaller batch_size, or the stream a limit in bytes"
            )
            raise ConfigError(msg)
