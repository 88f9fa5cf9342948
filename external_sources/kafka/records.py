"""Kafka records into the columns of a block.

The fast path takes the value as the image and one header as the label: one copy of the value, by memoryview
slice (a numpy slice releases the interpreter lock for each record and waits for it again), and a few
microseconds of Python. A codec of the user's costs what it costs; what it raises is a fault of that record.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from confluent_kafka import Message

from dali_feed.external_sources.kafka.claims import UNTOLD, Follows, value_of
from dali_feed.external_sources.kafka.filled import Filled, Wanted
from dali_feed.quarantine.reasons import place_of
from dali_feed.records.source import LABEL, Lease

__all__ = ["LABEL", "Codec", "Rows", "Takes", "rows_for"]


Codec = Callable[[memoryview, bytes | None, list[tuple[str, bytes]]], Mapping[str, Any]]

_INT64 = 1 << 63
_NOTHING = memoryview(b"")
_TOMBSTONE = "a record must hold an image; this one is a tombstone (no value)"


class Takes(Protocol):
    """An object that takes records, each with its row."""

    def take(self, row: int, message: Message) -> None:
        """Put a record into its row. The message is not used afterwards: what is kept is copied."""
        ...


class Rows(Takes, Protocol):
    """Columns that are being filled."""

    payloads: list[memoryview | None]
    faults: dict[int, str]
    filled: Filled | None  # what C fills, or None where it fills nothing

    def wanted(self) -> Wanted | None:
        """What C is to copy of each record; None where these rows are filled in Python alone."""
        ...

    def finish(self) -> None:
        """All records have come: what C has filled goes into the rows."""
        ...

    def columns(self) -> dict[str, Any]:
        """The fields beside the image."""
        ...


def rows_for(
    label: str | None, codec: Codec | None, fields: tuple[str, ...], n: int, lease: Lease, claims: Follows = UNTOLD
) -> Rows:
    """Empty columns of n rows, whose payloads will lie in `lease`; `claims` follows those that lie elsewhere."""
    return _Plain(label, n, lease, claims) if codec is None else _Coded(codec, fields, n, lease, claims)


class _Plain:
    """value = image, one header = label."""

    def __init__(self, header: str | None, n: int, lease: Lease, claims: Follows) -> None:
        self.payloads: list[memoryview | None] = [None] * n
        self.faults: dict[int, str] = {}
        self.filled: Filled | None = None
        self._header = header
        self._labels = [0] * n
        self._room, self._lease, self._claims = lease.room, lease, claims

    def wanted(self) -> Wanted:
        """The value, and the header's number."""
        return Wanted(value=True, label=self._header)

    def finish(self) -> None:
        """What C has filled."""
        if self.filled is not None:
            self.payloads = self.filled.views(self.payloads)

    def take(self, row: int, message: Message) -> None:
        """Copy a record into its row."""
        value = message.value()
        if value:
            view = self._room(len(value))
            view[:] = value
            self.payloads[row] = view
        else:
            found = value_of(self._claims, message, self._lease)
            if not isinstance(found, memoryview):
                self.payloads[row], self.faults[row] = _NOTHING, found or _TOMBSTONE
                return
            self.payloads[row] = found
        if self._header is None:
            return
        label: Any = _ABSENT
        headers: Any = message.headers()
        for name, text in headers or ():
            if name == self._header:
                label = text  # the last one counts, as Kafka's lastHeader has it
        if label.__class__ is bytes and label.isdigit() and len(label) < 19:
            self._labels[row] = int(label)
        else:
            self._odd_label(row, label)

    def _odd_label(self, row: int, found: Any) -> None:
        if found is _ABSENT:
            self.faults[row] = f"header {self._header}: a decimal number is needed; the record has no such header"
            return
        if isinstance(found, bytes) and found.removeprefix(b"-").isdigit() and len(found) <= 20:
            number = int(found)
            if -_INT64 <= number < _INT64:
                self._labels[row] = number
                return
        shown = found if found is None or len(found) <= 40 else found[:40] + b"..."
        self.faults[row] = f"header {self._header}: a decimal number is needed; found {shown!r}"

    def columns(self) -> dict[str, Any]:
        """The fields beside the image."""
        if self._header is None:
            return {}
        filled = self.filled
        if filled is None or filled.labels is None:
            return {LABEL: np.array(self._labels, np.int64)}
        if filled.whole:
            return {LABEL: filled.labels}
        return {LABEL: np.where(filled.where(), filled.labels, np.array(self._labels, np.int64))}


class _Absent:
    """No header of that name (None is a header without a value)."""


_ABSENT = _Absent()


class _Coded:
    """What the user's codec makes of a record."""

    def __init__(self, codec: Codec, fields: tuple[str, ...], n: int, lease: Lease, claims: Follows) -> None:
        self.payloads: list[memoryview | None] = [None] * n
        self.faults: dict[int, str] = {}
        self.filled: Filled | None = None
        self._codec = codec
        self._tombstone: Any = getattr(codec, "tombstone", None)  # what it makes of a key and headers without a value
        self._room, self._lease, self._claims = lease.room, lease, claims
        self._values: dict[str, list[Any]] = {name: [0 if name == LABEL else None] * n for name in fields}

    def wanted(self) -> None:
        """A codec is Python."""

    def finish(self) -> None:
        """All is there."""

    def take(self, row: int, message: Message) -> None:
        """Copy a record into its row; where the codec fails, its whole value, so that it can be looked at."""
        value = message.value() or value_of(self._claims, message, self._lease)
        gone = value is None and self._tombstone is not None
        value = b"" if gone else value
        if not isinstance(value, bytes | memoryview):
            self.payloads[row], self.faults[row] = _NOTHING, value or _TOMBSTONE
            return
        try:
            headers: Any = message.headers() or []
            key = message.key()
            parts = self._tombstone(key, headers) if gone else self._codec(memoryview(value), key, headers)
            image = memoryview(parts["image"]).cast("B")
            values = {name: parts[name] for name in self._values}
            if LABEL in values:
                values[LABEL] = _int64(values[LABEL])
        except Exception as error:  # noqa: BLE001 - whatever a user's function raises is about this record
            image = memoryview(value)
            said = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) and error.args else str(error)
            place = place_of(error, self._codec)
            self.faults[row] = f"codec: {type(error).__name__}: {said}{f', at {place}' if place else ''}"
        else:
            for name, column in self._values.items():
                column[row] = values[name]
        view = self._room(len(image))
        view[:] = image
        self.payloads[row] = view

    def columns(self) -> dict[str, Any]:
        """The fields beside the image."""
        return {k: np.array(v, np.int64) if k == LABEL else v for k, v in self._values.items()}


def _int64(value: Any) -> int:
    number = operator.index(value)
    if not -_INT64 <= number < _INT64:
        msg = f"a label must fit in 64 bits; found {number}"
        raise ValueError(msg)
    return number
