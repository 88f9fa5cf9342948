"""A batch of a stream in memory, and the rule for which of its records fills which slot.

The law: a slot whose record is bad is taken by the next good record of the same batch, from the first again after the
last: no other record may be near.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from dali_feed.errors import DaliFeedError
from dali_feed.feed.held import Held, Rows
from dali_feed.feed.usable import Look
from dali_feed.records.source import Block

__all__ = ["LiveWindow", "NoneGoodError"]


class NoneGoodError(DaliFeedError):
    """No record of a batch is good: it is not handed over."""


class LiveWindow(Held):
    """The records of some blocks, one slot each."""

    def __init__(self, blocks: Sequence[Block], look: Look, where: Callable[[int], str]) -> None:
        super().__init__(look, where)
        self._blocks = list(blocks)
        ids = [block.ids for block in blocks]
        self._hold(ids[0] if len(ids) == 1 else np.concatenate(ids))
        self.order: Rows = np.arange(self.rows, dtype=np.int64)
        self.left = self.rows
        first = 0
        for block in blocks:
            self._screened(first, first + len(block.ids), block)
            first += len(block.ids)

    def deal(self, first: int, stop: int) -> tuple[Rows, NDArray[np.bool_]]:
        """The rows that fill slots first..stop-1, and which of them are the slots' own. NoneGoodError."""
        rows = self.order[first:stop].copy()
        ok = self.usable[rows]
        if not ok.all():
            good = np.flatnonzero(self.usable)
            if not good.size:
                msg = f"a batch of {self.rows} records: none of them is good"
                raise NoneGoodError(msg)
            rows[~ok] = good[np.searchsorted(good, rows[~ok]) % len(good)]
        return rows, ok

    def release(self) -> None:
        """Give all memory back; views into it must not be used any more."""
        self.payloads, self._plain = [], {}
        blocks, self._blocks = self._blocks, []
        for block in blocks:
            block.lease.release()
