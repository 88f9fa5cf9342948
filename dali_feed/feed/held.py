"""Records in memory, and what is known of each: what a batch is cut from, and mended from.

The law: a record that turns out to be bad, in its header or in the decoder, is replaced in its slot by one that is
held; so payloads stay until the last slot has left the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.feed.usable import Look
from dali_feed.quarantine.budget import Fault
from dali_feed.quarantine.letters import Stage
from dali_feed.records.pieces import Pieces
from dali_feed.records.source import Block

__all__ = ["Held", "Rows"]

Rows = NDArray[np.int64]

_NOTHING = memoryview(b"")


def _room(values: Any, rows: int) -> Any:
    """What such values of all rows go into."""
    if isinstance(values, Pieces):
        return Pieces.none(rows)
    return np.zeros((rows, *values.shape[1:]), values.dtype) if isinstance(values, np.ndarray) else [None] * rows


class Held:
    """Rows are numbered in the order of reading, slots in the order of the batches. Used by one thread.

    order     the row whose own each slot is
    borrowed  whether its records are others' than its slots'
    bare      whether its payloads are no images and have no bytes
    left      slots whose batch has not left the engine yet
    turn      how often its records have come in this epoch before: what is done to them is drawn anew each time
    """

    order: Rows
    borrowed = bare = False
    left = 0
    turn = 0

    def __init__(self, look: Look, where: Callable[[int], str]) -> None:
        self._look, self._where = look, where

    def _hold(self, ids: NDArray[np.int64]) -> None:
        """Room for these records, of which nothing has been read."""
        rows = self.rows = len(ids)
        self.ids = ids
        self.payloads: list[memoryview | None] = [None] * rows
        self._plain: dict[int, memoryview] = {}  # bytes that decoders get instead
        self.sizes = np.zeros((rows, 2), np.int32)
        self.usable = np.zeros(rows, bool)
        self.reasons: dict[int, str] = {}
        self._stages: dict[int, Stage] = {}
        self.fields: dict[str, Any] = {}

    def _screened(self, a: int, b: int, block: Block) -> None:
        """Rows a..b-1 are those of a block."""
        self.payloads[a:b] = block.payloads
        screened = self._look(block.payloads, block.fields)
        self.bare = screened.bare
        if screened.sizes.shape[1] != self.sizes.shape[1]:  # of images that are turned, or several, there are more
            self.sizes = np.zeros((self.rows, screened.sizes.shape[1]), np.int32)
        self.sizes[a:b] = screened.sizes
        self.usable[a:b] = screened.sizes[:, 0] > 0
        for row, reason in {**screened.reasons, **block.faults}.items():
            self.reasons[a + row] = reason
            self._stages[a + row] = "source" if row in block.faults else "screen"
            self.usable[a + row] = False
        self._plain |= {a + row: plain for row, plain in screened.plain.items()}
        for name, values in block.fields.items():
            if name not in self.fields:
                self.fields[name] = _room(values, self.rows)
            elif isinstance(self.fields[name], Pieces) and not isinstance(values, Pieces):
                self.fields[name] = list(self.fields[name])
            self.fields[name][a:b] = values

    def condemn(self, row: int, reason: str) -> None:
        """A record turned out to be bad after the screen."""
        self.usable[row] = False
        self.reasons[row], self._stages[row] = reason, "decode"

    def fault(self, row: int) -> Fault:
        """The fault of a row that has a reason; its payload is a view that `release` ends."""
        return Fault(int(self.ids[row]), self.reasons[row], self._stages[row], self.payloads[row])

    def deal(self, first: int, stop: int) -> tuple[Rows, NDArray[np.bool_]]:
        """The rows that fill slots first..stop-1, and which of them are the slots' own."""
        raise NotImplementedError

    def good_payloads(self, rows: Rows) -> list[memoryview]:
        """Payloads of rows that `deal` gave, as decoders get them."""
        if self.bare:
            return [_NOTHING] * len(rows)
        if self._plain:
            return [self._plain.get(row, self.payloads[row]) for row in rows.tolist()]
        return [self.payloads[row] for row in rows.tolist()]

    def good_fields(self, rows: Rows) -> dict[str, Any]:
        """Fields of rows that `deal` gave."""
        return {
            name: values[rows] if isinstance(values, np.ndarray | Pieces) else [values[row] for row in rows.tolist()]
            for name, values in self.fields.items()
        }

    def retire(self, slots: int) -> None:
        """Slots whose batch has left the engine; with the last of them the memory goes back."""
        self.left -= slots
        if self.left == 0:
            self.release()

    def release(self) -> None:
        """Give all memory back; views into it must not be used any more."""
        raise NotImplementedError
