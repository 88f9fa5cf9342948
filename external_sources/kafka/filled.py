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

from dali_feed.external_sources.kafka.ahead import Memory
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
    """Rows that have nothing yet. `told` is for C.

    row_bytes  that C put into a row of the read before, or 0: so much memory is taken for all rows at once
    """

    def __init__(self, wanted: Wanted, rows: int, lease: Lease, row_bytes: int = 0) -> None:
        self.wanted, self._rows, self._row_bytes = wanted, rows, row_bytes
        columns = wanted.value + wanted.key + len(wanted.headers)
        lines = 3 * columns + (wanted.label is not None) + wanted.times
        numbers = np.zeros((lines, rows), np.int64)  # one array, of which C is told by one address
        self._cells = numbers[: 3 * columns].reshape(3, columns, rows)
        self._cells[0] = NO_HEADER
        self.taken = np.zeros(rows, np.uint8)
        self.labels = None if wanted.label is None else numbers[3 * columns]
        self.times = numbers[-1] if wanted.times else None
        self._begun = self._left_out = False  # whether C has been asked, and whether Python has taken any all the same
        names = [name.encode() for name in wanted.headers]
        self._names = (ctypes.c_char_p * len(names))(*names)
        self._label = None if wanted.label is None else ctypes.c_char_p(wanted.label.encode())
        self.told = RowsInC(rows=rows, headers=len(names), wants_value=wanted.value, wants_key=wanted.key)
        first, line = address(numbers), numbers.strides[0]
        self.told.of, self.told.at, self.told.size = (first + k * columns * line for k in range(3))
        self.told.names = ctypes.cast(self._names, ctypes.c_void_p)
        self.told.label = None if self._label is None else ctypes.cast(self._label, ctypes.c_void_p)
        self.told.labels = None if self.labels is None else first + 3 * columns * line
        self.told.times = None if self.times is None else first + (lines - 1) * line
        self.told.taken = address(self.taken)
        self._memory = Memory(self.told, lease)

    def begin(self, shift: int) -> None:
        """C is asked now, for rows that are offset + shift."""
        self.told.shift = shift
        if not self._begun:
            self._begun = True
            self._memory.take_ahead(self._rows, self._row_bytes)
        self._memory.mark()

    def grow(self, need: int) -> None:
        """More memory, for all rows that are left: as large as those before, the next of `need` bytes."""
        there = int(np.count_nonzero(self.taken))
        known = int(self._cells[2].sum()) // there if there else 0
        self._memory.grow(need, max(need, known) * (self._rows - there))

    def settle(self) -> int:
        """All records have come: what was taken in vain goes back. Bytes of a row, for the read behind this one."""
        self._memory.settle()
        return int(self._cells[2].sum()) // max(1, self._rows)

    @property
    def whole(self) -> bool:
        """Whether Python has taken none."""
        return self._begun and not self._left_out

    def leave_out(self, rows: int | slice) -> None:
        """Python takes these, with memory of its own from the lease."""
        self.taken[rows], self._left_out = 0, True
        if self.told.spare:
            self._memory.give_back()

    def undo(self, rows: slice) -> None:
        """What C took since `begin`, these rows, is taken once more, into the same memory."""
        self.taken[rows], self._cells[2, :, rows] = 0, 0
        self._memory.undo()

    def _column(self, number: int) -> Pieces:
        of, at, size = self._cells[:, number]
        memories = self._memory.pieces or [_NOTHING]  # where all that was taken is of no bytes
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
