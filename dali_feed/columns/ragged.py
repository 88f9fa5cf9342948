"""Rows of which each record has its own number: those of a batch padded and counted, or end to end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dali_feed.records.pieces import Pieces


class Counted(NamedTuple):
    """Rows of a batch in one array.

    rows   (n, most, ...), filled with 0 after those of a record: float32 of boxes and points
    count  int64 (n,): how many rows each record has
    """

    rows: Any
    count: Any


class Jagged(NamedTuple):
    """Rows of a batch end to end, of which a loader makes a nested tensor.

    rows   (all, ...)
    count  int64 (n,): how many rows each record has
    """

    rows: Any
    count: Any

    def split(self) -> list[NDArray[Any]]:
        """The rows of each record: views."""
        return np.split(self.rows, np.cumsum(self.count))[: len(self.count)]

    def padded(self, most: int) -> Counted:
        """At most so many rows a record, as one array."""
        out = np.zeros((len(self.count), most, *self.rows.shape[1:]), self.rows.dtype)
        nth = np.arange(len(self.rows)) - np.repeat(np.cumsum(self.count) - self.count, self.count)
        out[np.repeat(np.arange(len(self.count)), self.count), nth] = self.rows
        return Counted(out, self.count)


def end_to_end(values: Sequence[Any], dtype: np.dtype[Any], sides: tuple[int, ...]) -> Jagged:
    """Arrays of records, or their bytes, of that dtype, whose rows have the shape `sides`: each is copied once."""
    parts: list[Any] = values.views() if isinstance(values, Pieces) else [_as_bytes(value, dtype) for value in values]
    rows = np.frombuffer(bytearray().join(parts), dtype).reshape(-1, *sides)
    return Jagged(rows, np.array([part.nbytes for part in parts], np.int64) // (math.prod(sides) * dtype.itemsize))


def _as_bytes(value: Any, dtype: np.dtype[Any]) -> Any:
    """What has a record's bytes."""
    return np.ascontiguousarray(value, dtype) if isinstance(value, np.ndarray) else memoryview(value)
