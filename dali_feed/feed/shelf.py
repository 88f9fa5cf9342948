"""Records in memory: what a read gave, kept row by row, and given again as a read would.

The law: what is given is equal to what was read, whatever the training loop has done with that since: bytes are copied
when they are kept, and lists are copied again when they are given. A record that is a fault, or that holds what cannot
be copied so, is not kept.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.records.source import Block

__all__ = ["Row", "Shelf", "copied"]

_ROW = 200  # bytes that a row takes beside its values, about
_ITEM = 32  # and a number, or a place in a list
_Form = tuple[np.dtype[Any], tuple[int, ...]] | None  # of a field that is an array: of a row; None: any values


@dataclass(frozen=True, slots=True)
class Row:
    """A record: its payload (None: the position holds none) and its fields' values; `size` in bytes."""

    payload: memoryview | None
    values: tuple[Any, ...]
    size: int


class Shelf:
    """Rows by sample id, up to `limit` bytes. Nothing is ever taken away; any number of threads may use it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rows: dict[int, Row] = {}
        self._forms: dict[str, _Form] | None = None
        self._lock = threading.Lock()
        self.held = 0  # bytes

    def __len__(self) -> int:
        return len(self._rows)

    def look(self) -> None:
        """See what others have kept since: of memory nobody has."""

    def close(self) -> None:
        """Let go of what is not memory."""

    def rows(self, ids: Sequence[int]) -> list[Row | None]:
        """What is kept of these records."""
        get = self._rows.get
        return [get(sample) for sample in ids]

    def has_room(self, size: int) -> bool:
        """Whether so many bytes more may be kept."""
        return self.held + size <= self._limit

    def keep(self, sample: int, payload: memoryview | None, values: Sequence[Any], size: int) -> None:
        """Keep a row whose bytes are its own."""
        with self._lock:
            if sample not in self._rows and self.has_room(size):
                self._rows[sample] = Row(payload, tuple(values), size)
                self.held += size

    def fits(self, block: Block) -> bool:
        """Whether the fields of a block are those of what is kept, so that rows of both can stand in one."""
        forms = _forms(block)
        if any(form is not None and form[0].hasobject for form in forms.values()):
            return False
        with self._lock:
            if self._forms is None:
                self._forms = forms
            return self._forms == forms

    def values_of(self, block: Block, row: int) -> tuple[list[Any], int] | None:
        """A copy of the fields of a block's row, and the bytes they take; None where they cannot be copied."""
        values, size = [], _ROW
        for field in block.fields.values():
            try:
                value, bytes_ = copied(field[row])
            except TypeError:
                return None
            values.append(value)
            size += bytes_
        return values, size

    def fields(self, rows: Sequence[Row | None], read: Block | None, at: NDArray[np.int64]) -> dict[str, Any]:
        """The fields of all rows: of those that are kept, and of a block that has those at `at`."""
        out: dict[str, Any] = {}
        kept = [k for k, row in enumerate(rows) if row is not None]
        for n, (name, form) in enumerate((self._forms or {}).items()):
            values = [row.values[n] for row in rows if row is not None]
            if form is None:
                whole: Any = [None] * len(rows)
                for k, value in zip(kept, values, strict=True):
                    whole[k] = copied(value)[0] if isinstance(value, list | dict | tuple) else value
                for k, value in zip(at.tolist(), () if read is None else read.fields[name], strict=True):
                    whole[k] = value
            else:
                whole = np.empty((len(rows), *form[1]), form[0])
                if kept:
                    whole[kept] = values
                if read is not None:
                    whole[at] = read.fields[name]
            out[name] = whole
        return out


def _forms(block: Block) -> dict[str, _Form]:
    return {
        name: (values.dtype, values.shape[1:]) if isinstance(values, np.ndarray) else None
        for name, values in block.fields.items()
    }


def copied(value: Any) -> tuple[Any, int]:
    """A value that shares no memory with it, bytes as a view of their own; and about how many bytes it takes.

    Raises:
        TypeError: it is, or holds, something else than bytes, text, numbers, arrays of numbers, lists, tuples, dicts.
    """
    kind = type(value)
    if kind is bytearray or (kind is memoryview and value.format == "B" and value.ndim == 1):
        return memoryview(bytearray(value)), len(value)
    if value is None or kind in (bool, int, float, complex) or isinstance(value, np.generic):
        return value, _ITEM
    if kind in (str, bytes):
        return value, len(value)
    if kind is np.ndarray and value.dtype.kind in "biufcSU":
        return value.copy(), value.nbytes
    if kind is list or kind is tuple:
        parts = [copied(each) for each in value]
        return kind(each for each, _ in parts), _ITEM + sum(size for _, size in parts)
    if kind is dict:
        pairs = {copied(key)[0]: copied(each) for key, each in value.items()}
        return {key: each for key, (each, _) in pairs.items()}, _ITEM + sum(_ITEM + size for _, size in pairs.values())
    msg = f"cannot be kept: {kind.__name__}"
    raise TypeError(msg)
