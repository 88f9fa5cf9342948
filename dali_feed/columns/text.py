"""Text, bytes and JSON: a list of n values in a batch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dali_feed.columns.column import Column, Faults
from dali_feed.errors import BadRecordError, DaliFeedError, FormatError
from dali_feed.formats.json_text import loads
from dali_feed.records.pieces import Pieces

_BYTES = (memoryview, bytes, bytearray)


class _Listed(Column):
    """Values in a list, where a default stands as it is."""

    def read_default(self, faults: Faults) -> list[Any]:
        """As it is."""
        del faults
        return [self.default]


@dataclass(frozen=True)
class Text(_Listed):
    """UTF-8 text. Gives a list of n str; bytes that are no UTF-8 make a bad record.

    member   the member that it is made from; for "a;b" the first of these that a record has
    default  what stands in the list for a record without one: a text, or None
    """

    member: str

    def read(self, values: Sequence[Any], faults: Faults) -> list[str]:
        """The texts, decoded."""
        return texts(values, faults)


@dataclass(frozen=True)
class JsonValue(_Listed):
    """A JSON document (RFC 8259: no NaN, no Infinity). Gives a list of n values as Python's json has them.

    What a format has read already (`json:meta`, or `json:$` for all of it) comes as the format gives it; a text there
    is read as a document.

    member   the member that it is made from; for "a;b" the first of these that a record has
    default  what stands in the list for a record without one
    """

    member: str

    def read(self, values: Sequence[Any], faults: Faults) -> list[Any]:
        """The documents, parsed."""
        return _each(values, faults, lambda value: loads(value) if isinstance(value, (*_BYTES, str)) else value, None)


@dataclass(frozen=True)
class Bytes(Column):
    """Bytes that only the user understands. Gives a list of n: memoryviews, or what `decode` makes of the bytes.

    The views cannot be written to. One that is kept keeps its batch's bytes, or those of up to 8 MiB that were read
    together with it; `bytes(view)` is a copy of its own.

    Arrays and tensors that it makes stay a list, of equal shapes too; arrays of numbers come as tensors on the device.

    member   the member that it is made from; for "a;b" the first of these that a record has
    decode   is called with a memoryview of one record's bytes, which it may keep and write to, by `Tuning(threads=...)`
             threads at once, when the record's batch is run. What it raises makes that record a bad one. It must not
             use random numbers of its own, or a resumed run differs.
    default  the bytes of a record without them, which `decode` gets too
    """

    member: str
    decode: Callable[[memoryview], Any] | None = None

    @property
    def late(self) -> bool:
        """Whether anything is left to make when a batch is run: a record that is in none costs no call of `decode`."""
        return self.decode is not None

    def read(self, values: Any, faults: Faults) -> Any:
        """Views as they are; what is no bytes is a fault."""
        if isinstance(values, Pieces):
            return values
        for row, value in enumerate(values):
            if value.__class__ not in _BYTES:
                faults[row] = f"must be bytes; found {type(value).__name__}"
        return values

    def attempt(self, data: memoryview) -> tuple[Any, str]:
        """What is made of a record's bytes, in memory of their own; or None, and why its record is a bad one.

        Called by many threads at once. Errors of ours that speak of no record go on, and so does what is no Exception,
        such as KeyboardInterrupt.
        """
        try:
            return data if self.decode is None else self.decode(data), ""
        except Exception as error:
            if isinstance(error, DaliFeedError) and not isinstance(error, BadRecordError | FormatError):
                raise
            hint = (
                ": decode= is given a memoryview, of which bytes(view) makes bytes"
                if "memoryview" in str(error)
                else ""
            )
            return None, f"{type(error).__name__}: {error}{hint}"

    def batch(self, values: Any) -> list[Any]:
        """Views of lent memory, or of a copy of the batch's bytes."""
        if self.late:
            return list(values)
        if isinstance(values, Pieces):
            rows = values if values.lent else values.copied()
            memories = [memory.toreadonly() for memory in rows.memories]
            return Pieces(memories, rows.of, rows.at, rows.size).views()
        whole, ends = memoryview(b"".join(values)), itertools.accumulate(map(len, values), initial=0)
        return [whole[a:b] for a, b in itertools.pairwise(ends)]


def texts(values: Sequence[Any], faults: Faults) -> list[str]:
    """Each value as a text; what is no UTF-8 is a fault."""
    return _each(values, faults, _text, "")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value, "utf-8")


def _each(values: Sequence[Any], faults: Faults, make: Callable[[Any], Any], instead: Any) -> list[Any]:
    """What is made of each value; one that fails is a fault."""
    out: list[Any] = [instead] * len(values)
    for row, value in enumerate(values):
        try:
            out[row] = make(value)
        except Exception as error:  # noqa: BLE001 - whatever a user's function raises is about this record
            faults[row] = f"{type(error).__name__}: {error}"
    return out
