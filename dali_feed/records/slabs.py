"""Slabs: the memory that payloads are read into, taken from a pool and given back whole.

Slabs are anonymous maps, so that a dropped one goes back to the system at once, and a reused one costs
no page faults. They are private and of huge pages, where the system has them: to write into a new one costs a tenth
of what it does in Python's maps as they are by default, shared and in small pages. The pool counts what is leased; the
code that schedules reads holds them back (`leased`), because only it knows which read the training loop is waiting
for. Views of a released lease must not be used: the next lease writes over them.
"""

from __future__ import annotations

import mmap
from collections import deque
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dali_feed import sync
from dali_feed.errors import ConfigError

SLAB_BYTES = 8 << 20
LITTLE = 256 << 10  # bytes of a slab, up to which clearing a huge page costs more than faults of small ones
_NO_ROOM = memoryview(bytearray())  # `room` promises a view that can be written, one of no bytes too


def slabs_for(records: int, record_bytes: int, slab_bytes: int) -> int:
    """Bytes of slabs that a lease of so many records of this mean size takes: an estimate on the safe side.

    Slabs are counted as seven eighths full, because a record does not go over a slab's end and reads differ.
    """
    if record_bytes > slab_bytes // 2:
        return records * max(record_bytes, slab_bytes)
    return -(-records * record_bytes // (slab_bytes * 7 // 8)) * slab_bytes


class LeaseMark(NamedTuple):
    """What a lease held: so many slabs, the rest of the last of them, and the bytes that were put into them."""

    slabs: int
    free: memoryview
    filled: int


class Lease:
    """Memory that a block's bytes lie in: slabs, more while the block is read, given back whole. For one thread.

    pool     what gives and takes the slabs
    dense    whether its memory is lent
    expects  about how many bytes it will hold, where that is known: a new slab for a few is of small pages
    """

    def __init__(self, pool: SlabPool, *, dense: bool = False, expects: int | None = None) -> None:
        self.pool, self._dense = pool, dense
        self._huge = expects is None or expects > LITTLE
        self._slabs: list[memoryview] = []
        self._free = _NO_ROOM
        self._filled = 0

    def room(self, size: int) -> memoryview:
        """A writable view of `size` bytes that nobody else has."""
        self._filled += size
        if size > len(self._free):
            self._check(size)
            if size > self.pool.slab_bytes // 2:  # a large record would waste most of a slab's rest
                own = self._added(max(size, self.pool.slab_bytes))
                rest = own[size:]
                if len(rest) > len(self._free):
                    self._free = rest
                return own[:size]
            self._free = self._added(self.pool.slab_bytes)
        view, self._free = self._free[:size], self._free[size:]
        return view

    def unused(self, size: int) -> None:
        """So many bytes of what `room` gave hold nothing."""
        self._filled -= size

    def mark(self) -> LeaseMark:
        """What it holds now, for `rewind`."""
        return LeaseMark(len(self._slabs), self._free, self._filled)

    def rewind(self, mark: LeaseMark) -> None:
        """Give back what was taken since `mark`; what was there before stays. A reader goes back to its own mark alone.

        Of several readers that fill one lease each has its part, so none may clear it.
        """
        back, self._slabs = self._slabs[mark.slabs :], self._slabs[: mark.slabs]
        self._free, self._filled = mark.free, mark.filled
        self.pool._give(back, 0, lent=self._dense)

    def _added(self, size: int) -> memoryview:
        # Where the first is full, or one record takes more, it is more than was expected.
        huge = self._huge or bool(self._slabs) or size > self.pool.slab_bytes
        taken = self.pool._take(size, lent=self._dense, huge=huge)
        self._slabs.append(taken)
        return taken

    def _check(self, size: int) -> None:
        """Raise ConfigError where one read would take more than there is for all of them."""
        most, whole = self.pool.most, self.size + max(size, self.pool.slab_bytes)
        if most is not None and whole > most:
            msg = (
                f"Tuning(memory={most}): must hold each read; one takes {whole} bytes or more, its last record {size}."
                " Give several times as much, or a narrower Shuffle(extent=...)"
            )
            raise ConfigError(msg)

    @property
    def slab_bytes(self) -> int:
        """Bytes of a slab, which it grows by; pieces larger than half of one cost more."""
        return self.pool.slab_bytes

    @property
    def size(self) -> int:
        """Bytes that it holds now, the unused ones too."""
        return sum(len(slab) for slab in self._slabs)

    @property
    def dense(self) -> bool:
        """Whether its memory is lent: it is not used again before the last view of it has ended, whoever has it.

        A reader that can puts a member's rows side by side into it, so that a batch is a slice of them.
        """
        return self._dense

    def release(self) -> None:
        """Give the memory back; views into it must not be used again. Safe to call twice."""
        slabs, self._slabs, self._free = self._slabs, [], _NO_ROOM
        filled, self._filled = self._filled, 0
        self.pool._give(slabs, filled, lent=self._dense)


class SlabPool:
    """Slabs of `slab_bytes` each; up to `keep_bytes` of returned ones wait for the next lease.

    Thread-safe. `leased` is what is out now, `peak` the most that ever was, `filled` what
    payloads took in the leases given back so far; all in bytes. A lease may take `most` bytes. What a dense lease has
    lent is counted until that is released: from then on it is theirs who look at it. `kept` is what readers have beside
    their leases, from read to read: groups of a table, a shard that was unpacked.
    """

    def __init__(self, slab_bytes: int = SLAB_BYTES, keep_bytes: int = 256 << 20, most: int | None = None) -> None:
        self.slab_bytes, self.most = slab_bytes, most
        self._keep = keep_bytes // slab_bytes
        self._idle: list[memoryview] = []
        self._reused = Reused()
        # Guards the counts and `_idle`. Reentrant: a collection of garbage, wherever it comes, may end a lease in here.
        # So a statement that changes a count calls nothing.
        self._lock = sync.RLock()
        self.leased = 0
        self.kept = 0
        self.peak = 0  # of both together
        self.filled = 0

    def lease(self, expects: int | None = None) -> Lease:
        """A lease that holds nothing yet; `expects`: about how many bytes it will, where that is known."""
        return Lease(self, expects=expects)

    def lent(self) -> Lease:
        """A dense one, whose memory is lent (`Lease.dense`)."""
        return Lease(self, dense=True)

    def keep(self, more: int) -> None:
        """Count so many bytes more as kept by a reader, or fewer where it is below 0."""
        with self._lock:
            self.kept += more
            self.peak = max(self.peak, self.leased + self.kept)

    def _take(self, size: int, *, lent: bool, huge: bool) -> memoryview:
        with self._lock:
            self.leased += size
            self.peak = max(self.peak, self.leased + self.kept)
            if size == self.slab_bytes and self._idle and not lent:
                return self._idle.pop()
        return self._reused(size).data if lent else _fresh(size, huge=huge)

    def _give(self, slabs: list[memoryview], filled: int, *, lent: bool) -> None:
        with self._lock:
            self.filled += filled
            for slab in slabs:
                size = len(slab)
                self.leased -= size
                if not lent and size == self.slab_bytes and len(self._idle) < self._keep:
                    self._idle.append(slab)


def _fresh(size: int, *, huge: bool = True) -> memoryview:
    """New memory of this process's own."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without them
        if huge:
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


# Memory that is used again once nobody looks at it any more.
#
# The law: bytes that were given are not given again while any array, tensor or view over them is left, however it was
# made. New memory costs a page fault for each 4 KB, which is more than to fill it; a ring would be written over
# while somebody still looks at it.


ALIGNED = 64  # bytes: of a cache line, and the widest vector; where memory begins
IDLE = 4  # pieces of memory kept for the next ones
HUGE = 2 << 20  # bytes of a page


class _Lent:
    """What all arrays over the memory end in: NumPy goes on to what is behind an array, but never behind this."""

    __slots__ = ("__array_interface__", "_idle", "_memory")

    def __init__(self, memory: NDArray[np.uint8], idle: deque[NDArray[np.uint8]]) -> None:
        self.__array_interface__: dict[str, Any] = memory.__array_interface__
        self._memory, self._idle = memory, idle

    def __del__(self) -> None:
        """Nobody looks at it any more."""
        self._idle.append(self._memory)


class Reused:
    """A pool of memory. Thread-safe: a deque's ends are."""

    def __init__(self) -> None:
        self._idle: deque[NDArray[np.uint8]] = deque(maxlen=IDLE)

    def __call__(self, size: int) -> NDArray[np.uint8]:
        """So many bytes of any content, uint8 (size,)."""
        try:
            memory = self._idle.pop()
        except IndexError:
            memory = np.empty(0, np.uint8)
        if not size <= len(memory) <= 2 * size:  # much too large: batches have become smaller
            memory = _new(size)
        return np.asarray(_Lent(memory, self._idle))[:size]


def _new(size: int) -> NDArray[np.uint8]:
    """Memory that begins where a line does, which NumPy's own does not; a large one of huge pages."""
    if size >= HUGE:
        return np.frombuffer(_fresh(size), np.uint8)
    memory = np.empty(size + ALIGNED, np.uint8)
    start = -memory.ctypes.data % ALIGNED
    return memory[start : start + size]
