"""Pieces in the making: rows whose bytes are copied into a lease one after the other.

The law: nothing is made per row that Python's garbage collector looks at. A view is, and a million views that wait for
their batches cost it a microsecond each, over and over; numbers cost it nothing.
"""

from __future__ import annotations

import numpy as np

from dali_feed.records.pieces import Pieces
from dali_feed.records.source import Lease

__all__ = ["Filling"]

AT_ONCE = 1 << 20  # bytes that are asked of a lease for many rows: what is left of the last of them is lost


class Filling:
    """Rows that have nothing yet; each may be given its bytes, in any order."""

    def __init__(self, rows: int, lease: Lease) -> None:
        self._lease, self._rows = lease, rows
        self._of, self._at, self._size = [-1] * rows, [0] * rows, [0] * rows
        self._memories: list[memoryview] = []
        self._memory, self._number, self._free = memoryview(b""), -1, 1  # the one in use, and its first free byte

    def __bool__(self) -> bool:
        """Whether any row has been given its bytes."""
        return bool(self._memories)

    def copy(self, row: int, data: bytes | bytearray | memoryview) -> None:
        """A row's bytes are these: they are copied."""
        size, first = len(data), self._free
        if first + size > len(self._memory):
            most = min(AT_ONCE, self._lease.slab_bytes, size * self._rows)
            self._memory, self._number, first = self._lease.room(max(size, most)), len(self._memories), 0
            self._memories.append(self._memory)
        self._free = stop = first + size
        self._memory[first:stop] = data
        self._of[row], self._at[row], self._size[row] = self._number, first, size

    def keep(self, row: int, view: memoryview | None) -> None:
        """A row's bytes are these, which lie in the lease already; None: it has none."""
        if view is not None:
            self._of[row], self._at[row], self._size[row] = len(self._memories), 0, len(view)
            self._memories.append(view)

    def pieces(self) -> Pieces:
        """All rows."""
        of, at, size = (np.array(each, np.int64) for each in (self._of, self._at, self._size))
        return Pieces(self._memories, of, at, size)
