"""What will be read, in order: the future of a file cache, as far as the plan knows it.

The law: it decides what is kept, never what is given. A read that comes earlier or later than it should costs speed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dali_feed.storage.piece import Name

__all__ = ["NEVER", "Coming"]

Int64s = NDArray[np.int64]

NEVER = 1 << 62
_BITS = 40  # of a byte's place in a file


class Coming:
    """Reads to come: number k is of `size[k]` bytes from byte `at[k]` of `files[file[k]]`.

    piece  bytes of a piece
    now    how many of them are over, as far as is known
    this   how many are of the pass under way; behind them come those of later ones
    """

    def __init__(self, files: Sequence[str], file: Int64s, at: Int64s, size: Int64s, this: int, piece: int) -> None:
        self._number = {name: k for k, name in enumerate(files)}
        first, last = at // piece, (at + np.maximum(size, 1) - 1) // piece
        pieces = last - first + 1
        when = np.repeat(np.arange(len(at), dtype=np.int64), pieces)
        nth = np.arange(len(when), dtype=np.int64) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        code = _code(np.repeat(file, pieces), np.repeat(first, pieces) + nth)
        order = np.lexsort((when, code))
        self._uses = when[order]  # piece by piece
        self._pieces, which = np.unique(code[order], return_inverse=True)
        self._span = len(at) + 1
        self._keys = which * self._span + self._uses  # ascending, as each piece's uses are
        records = (file[:this] << _BITS) | at[:this]
        order = np.argsort(records, kind="stable")
        self._records, self._times = records[order], order.astype(np.int64)
        self.now = 0

    def read(self, file: str, at: int, size: int) -> None:
        """Those bytes have been read: what was to come up to there is over."""
        number = self._number.get(file)
        if number is not None:
            start = (number << _BITS) | at
            a, b = np.searchsorted(self._records, (start, start + size))
            ahead = self._times[a:b] >= self.now
            if ahead.any():  # of a record that comes several times the next one
                _, first = np.unique(self._records[a:b][ahead], return_index=True)
                self.now = int(self._times[a:b][ahead][first].max()) + 1

    def next_uses(self, names: Sequence[Name]) -> Int64s:
        """Of each piece the number of the next read that needs it, NEVER where none is known: int64 (n,)."""
        file = np.array([self._number.get(name, -1) for name, _ in names], np.int64)
        code = _code(file, np.array([number for _, number in names], np.int64))
        if not len(self._pieces):
            return np.full(len(names), NEVER, np.int64)
        piece = np.searchsorted(self._pieces, code).clip(max=len(self._pieces) - 1)
        use = np.searchsorted(self._keys, piece * self._span + self.now)
        at = use.clip(max=len(self._keys) - 1)
        there = (self._pieces[piece] == code) & (file >= 0) & (use < len(self._keys))
        there &= self._keys[at] // self._span == piece
        return np.where(there, self._uses[at], NEVER)


def _code(file: Int64s, number: Int64s) -> Int64s:
    return np.asarray((file << 24) | number, np.int64)
