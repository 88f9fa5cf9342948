"""Rows that C fills: for the usual records, value and key and headers copied, and no Python per record.

The law: what rows are asked for is said beforehand (`Wanted`), and what C leaves out, as a record without a value or
with a label that is no plain number, is taken by the rows in Python, with their words for what is wrong.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.native.kafka import MOST_HEADERS, NO_HEADER, RowsInC, address
from dali_feed.records.pieces import Pieces
from dali_feed.records.source import Lease

__all__ = ["Filled", "Wanted", "merged"]

_NOTHING = memoryview(b"")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of each record is asked for, of headers with one name the last.

    label  a header with a number in decimal digits
    """

    value: bool
    key: bool = False
    times: bool = False
    headers: tuple[str, ...] = ()
    label: str | None = None

    def fits(self) -> bool:
        """Whether C can be asked for it."""
        names = "".join([*self.headers, *(() if self.label is None else (self.label,))])
        if len(self.headers) > MOST_HEADERS or "\0" in names:
            return False
        try:
            names.encode()
        except UnicodeEncodeError:  # half of a surrogate pair, which no header has
            return False
        return True


class Filled:
    """Rows that have nothing yet. `told` is for C."""

    def __init__(self, wanted: Wanted, rows: int, lease: Lease) -> None:
        self.wanted, self._lease, self._rows = wanted, lease, rows
        columns = wanted.value + wanted.key + len(wanted.headers)
        self._cells = np.zeros((3, columns, rows), np.int64)
        self._cells[0] = NO_HEADER
        self.taken = np.zeros(rows, np.uint8)
        self.labels = None if wanted.label is None else np.zeros(rows, np.int64)
        self.times = np.zeros(rows, np.int64) if wanted.times else None
        self._memories: list[memoryview] = []
        self._bytes = 0  # in those that are full
        self.begun = self._left_out = False  # whether C has been asked, and whether Python has taken any all the same
        names = [name.encode() for name in wanted.headers]
        self._names = (ctypes.c_char_p * len(names))(*names)
        self._label = None if wanted.label is None else ctypes.c_char_p(wanted.label.encode())
        self.told = RowsInC(rows=rows, headers=len(names), wants_value=wanted.value, wants_key=wanted.key)
        self.told.of, self.told.at, self.told.size = (address(each) for each in self._cells)
        self.told.names = ctypes.cast(self._names, ctypes.c_void_p)
        self.told.label = None if self._label is None else ctypes.cast(self._label, ctypes.c_void_p)
        self.told.labels = None if self.labels is None else address(self.labels)
        self.told.times = None if self.times is None else address(self.times)
        self.told.taken = address(self.taken)

    def grow(self, need: int) -> None:
        """Another memory for the next records, the first of them of `need` bytes.

        It is for all that are left, as large as those before, a slab at most: what does not fit into the rest of one
        goes into the next, so that a lease is as well filled as by message.
        """
        self._bytes += self.told.filled
        there = int(np.count_nonzero(self.taken))
        each = max(need, self._bytes // there if there else 0)
        memory = self._lease.room(max(need, min(self._lease.slab_bytes, each * (self._rows - there))))
        self.told.memory, self.told.room, self.told.filled = address(memory), len(memory), 0
        self.told.number = len(self._memories)
        self._memories.append(memory)

    @property
    def whole(self) -> bool:
        """Whether Python has taken none."""
        return self.begun and not self._left_out

    def untake(self, rows: int | slice) -> None:
        """Python takes this one, or they are to be taken once more."""
        self.taken[rows], self._left_out = 0, True

    def _column(self, number: int) -> Pieces:
        of, at, size = self._cells[:, number]
        memories = self._memories or [_NOTHING]  # where all that was taken is of no bytes
        return Pieces(memories, np.where(self.taken, of, NO_HEADER), at, size)

    @property
    def values(self) -> Pieces:
        """Of the rows that were taken; the others have none."""
        return self._column(0)

    def views(self, rows: list[Any]) -> list[Any]:
        """The values as views, and in the rows that Python took what it has."""
        found = self.values.views()
        return found if self.whole else merged(found, rows)

    def texts(self) -> dict[str, Pieces]:
        """Key, as `key`, and headers, as `headers.NAME`; none where a record has none."""
        names = [*(["key"] if self.wanted.key else []), *(f"headers.{name}" for name in self.wanted.headers)]
        first = int(self.wanted.value)
        return {name: self._column(first + k) for k, name in enumerate(names)}

    def where(self) -> NDArray[np.bool_]:
        """Which rows were taken."""
        return self.taken.astype(bool)


def merged(filled: Iterable[Any], rows: list[Any]) -> list[Any]:
    """What C has filled, and in the other rows what Python has."""
    return [mine if its is None else its for its, mine in zip(filled, rows, strict=True)]
