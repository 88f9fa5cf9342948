"""Kafka records as rows of a block: the parts that are asked for, copied once.

Members are the value, the key, the timestamp and the headers, by name. `value`, `key` and `timestamp` (milliseconds
since 1970, int64) are those of the record; any other name is a header's, and `headers.NAME` is one whose name is
`value`, `key` or `timestamp`; of headers with one name the last counts. `headers.*` are all of them, as a dict, and
`headers[]` a list of (name, bytes), as they stand in the record. `record[]` is all of a record, as it is. `codec:NAME`
is what a codec makes of it (`codec.py`).

The law: whoever fills the rows fills the same arrays: Python through memoryviews of them, C by their addresses. A part
that a record lacks stays without a memory; it is no fault. A fault is a payload that lies elsewhere and cannot be had.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from confluent_kafka import Message

from dali_feed.external_sources.kafka.claims import CLAIM, Claims, claimed, weight_of
from dali_feed.external_sources.kafka.client import UNREADABLE, headers_of
from dali_feed.external_sources.kafka.codec import CODEC, Codec, decoded
from dali_feed.formats.format import Format
from dali_feed.records.extents import Int64s, pack_ids
from dali_feed.records.pieces import Pieces
from dali_feed.records.source import Block, Fault, Lease, Member

MOST = 4096  # rows of a stream's block
OWN = ("value", "key", "timestamp")
HEADER = "headers."
EVERY = "headers.*"  # a dict of all headers that a record has
PAIRS = "headers[]"  # all headers as they are, in order
WHOLE = "record[]"  # all that a record has, as it is
NONE = -1  # in the place of a memory: the record has no such part, or a null
_UNNAMED = "the names of its headers must be UTF-8; one is not; its producer must send another name"
_CHUNKS, _LARGE = 8, 64  # a slab is taken in so many chunks; a part above such a share of it has memory of its own


def in_full(name: str) -> str:
    """A member by what it is: a header by its full name."""
    return name if name in (*OWN, PAIRS, WHOLE) or name.startswith((HEADER, CODEC)) else HEADER + name


class WholeRecord(NamedTuple):
    """A record as it is. `timestamp` is in ms since 1970; 0: it has none."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp: int


class KafkaParts:
    """What of each record is copied, for the members that are asked for.

    members       name -> what it is, see `in_full`
    columns       what is copied as bytes, in the order of the cells: value, key, headers; behind them stand the
                  headers of a claim, where values that lie elsewhere are wanted: of records whose value is of no bytes
    value, key, timestamp  whether they are wanted
    headers       names of those that are copied
    every_header  whether all headers are kept, as a list
    whole         whether all of the record is kept, as an object
    coded         whether the codec is wanted
    claim         the headers of a claim, or none
    """

    def __init__(
        self,
        members: Sequence[str] = (),
        claims: Claims | None = None,
        codec: Codec | None = None,
        *,
        follow: bool = True,
    ) -> None:
        """Members by plain names; unless it is to `follow`, a value that lies elsewhere is taken as it is."""
        self.members = {name: in_full(name) for name in members}
        self.claims, self.codec = claims, codec
        wanted = dict.fromkeys(self.members.values())
        self.coded = coded = codec is not None and any(name.startswith(CODEC) for name in wanted)
        self.value, self.key = coded or "value" in wanted, coded or "key" in wanted
        self.timestamp = "timestamp" in wanted
        self.whole = WHOLE in wanted
        self.every_header = coded or not wanted.keys().isdisjoint((EVERY, PAIRS))
        self.headers = tuple(name.removeprefix(HEADER) for name in wanted if name.startswith(HEADER) and name != EVERY)
        names = (*(["value"] if self.value else []), *(["key"] if self.key else []), *map(HEADER.__add__, self.headers))
        self.columns = {name: column for column, name in enumerate(names)}
        self.claim = CLAIM if self.value and follow else ()

    @property
    def weigh(self) -> Callable[[Message], int]:
        """A function of a record: the bytes of its payload, wherever that lies."""
        return len if self.claims is None else weight_of


class Cells:
    """Rows that are being filled, of one block. Used by one thread.

    cells     int64 (3, columns, rows): of each part the memory it lies in, its first byte there, and its size
    times     int64 (rows,): timestamps
    taken     uint8 (rows,): 1 where there is a record
    memories  of the lease, by number
    faults    why the record of a row cannot be used
    count, size  rows that `append` has filled, and bytes of their payloads
    """

    def __init__(self, parts: KafkaParts, rows: int, lease: Lease) -> None:
        self.parts, self.rows, self.lease = parts, rows, lease
        columns = len(parts.columns) + len(parts.claim)
        numbers = np.zeros((3 * columns + 1, rows), np.int64)  # one array, of which C is told by one address
        self.cells, self.times = numbers[:-1].reshape(3, columns, rows), numbers[-1]
        self.cells[0] = NONE
        self.taken = np.zeros(rows, np.uint8)
        self.memories: list[memoryview] = []
        self.faults: dict[int, Fault] = {}
        self.count = self.size = 0
        self._places: list[tuple[int, int]] = []  # partition and offset of each row that `append` has filled
        self._numbers, self._step = numbers.reshape(-1).data, columns * rows
        self._there = self.taken.data
        self._first = {name: column * rows for name, column in parts.columns.items()}  # cell of its first row
        self._headers = {name: self._first[HEADER + name] for name in parts.headers}
        self._claim = {name: (len(parts.columns) + k) * rows for k, name in enumerate(parts.claim)}
        self._pairs: list[Any] | None = [()] * rows if parts.every_header else None
        self._records: list[WholeRecord | None] | None = [None] * rows if parts.whole else None
        self._memory, self._number, self._free, self._end = memoryview(b""), NONE, 1, 0  # the one in use; free bytes

    @property
    def full(self) -> bool:
        """Whether `append` has no row left."""
        return self.count == self.rows

    def take(self, row: int, message: Message) -> None:
        """Copy a record into its row."""
        parts = self.parts
        if parts.value:
            self._put(row, value := message.value())
            if value == b"" and self._claim:
                self._take_headers(row, message, self._claim)
        if parts.key:
            self._put(self._first["key"] + row, message.key())
        if self._headers:
            self._take_headers(row, message, self._headers)
        if self._pairs is not None:
            self._pairs[row] = self._all_headers(row, message)
        if parts.timestamp:
            self.times[row] = message.timestamp()[1]
        if self._records is not None:
            headers, key = list(self._all_headers(row, message)), message.key()
            time = max(0, message.timestamp()[1])
            self._records[row] = None if row in self.faults else WholeRecord(key, message.value(), headers, time)
        self._there[row] = 1

    def _take_headers(self, row: int, message: Message, wanted: Mapping[str, int]) -> None:
        for name, text in self._all_headers(row, message):
            if (first := wanted.get(name)) is not None:
                self._put(first + row, text)  # the last one counts, as Kafka's lastHeader has it

    def _all_headers(self, row: int, message: Message) -> Sequence[tuple[str, bytes | None]]:
        headers = headers_of(message)
        if headers is UNREADABLE:
            self.spoilt(row, _UNNAMED)
        return headers

    def spoilt(self, row: int, reason: str) -> None:
        """The record of a row cannot be read."""
        self.faults[row] = Fault("source", reason, "value")
        self._there[row] = 1

    def append(self, partition: int, offset: int, message: Message | str) -> None:
        """Copy a record into the next row; or why it cannot be read."""
        if isinstance(message, str):
            self.spoilt(self.count, message)
        else:
            self.take(self.count, message)
            self.size += self.parts.weigh(message)
        self._places.append((partition, offset))
        self.count += 1

    def block(self, ids: Int64s | None = None) -> Block:
        """The rows, of these ids; None: those that `append` has filled."""
        rows = self.rows if ids is not None else self.count
        if ids is None:
            partitions, offsets = np.array(self._places, np.int64).reshape(-1, 2).T
            ids = pack_ids(partitions, offsets)
        there = self.taken[:rows].astype(bool)
        absent = None if there.all() else ~there
        if self._claim:
            self._fetch_claims(rows)
        self.lease.unused(sum(map(len, self.memories)) - int(self.cells[2].sum()))
        values = {name: self._values(what, rows) for name, what in self.parts.members.items()}
        block = Block(ids, values, self.lease, self.faults, absent)
        if self.parts.codec is not None and self.parts.coded and self._pairs is not None:
            own = self._values("value", rows), self._values("key", rows), self._pairs
            block.values |= decoded(self.parts.codec, self.parts.members, block, *own)
        return block

    def _values(self, what: str, rows: int) -> Any:
        if what.startswith(CODEC):
            return None  # the codec's, which comes after the others
        if what == "timestamp":
            return self.times[:rows]
        if self._records is not None and what == WHOLE:
            return self._records[:rows]
        if self._pairs is not None and what == EVERY:
            return [dict(pairs) for pairs in self._pairs[:rows]]
        if self._pairs is not None and what == PAIRS:
            return [list(pairs) for pairs in self._pairs[:rows]]
        return self._pieces(self.parts.columns[what], rows)

    def _pieces(self, column: int, rows: int) -> Pieces:
        of, at, size = self.cells[:, column, :rows]
        return Pieces(self.memories or [memoryview(b"")], of, at, size)  # of parts that all are of no bytes

    def _fetch_claims(self, rows: int) -> None:
        """Values of no bytes whose record says that they lie elsewhere are read from there."""
        first = len(self.parts.columns)
        for row in np.flatnonzero(self.cells[0, first, :rows] >= 0).tolist():
            texts = (self._pieces(first + k, rows)[row] for k in range(len(CLAIM)))
            pairs = [(name, bytes(text)) for name, text in zip(CLAIM, texts, strict=True) if text is not None]
            payload = claimed(self.parts.claims, pairs, self.lease)
            if isinstance(payload, str):
                self.faults[row] = Fault("source", payload, "value")
                self.cells[0, 0, row] = NONE
            else:
                self._keep(row, payload)

    def _put(self, cell: int, data: bytes | None) -> None:
        """The bytes of a cell: copied behind those before them, into the same memory as far as it goes."""
        if data is None:
            self._numbers[cell] = NONE
            return
        size, first = len(data), self._free
        stop = first + size
        if stop > self._end:
            slab = self.lease.slab_bytes
            if size > slab // _LARGE:
                view = self.lease.room(size)
                view[:] = data
                self._keep(cell, view)
                return
            self._memory = self.lease.room(max(size, min(slab // _CHUNKS, size * self.rows)))
            self._number, self._end = len(self.memories), len(self._memory)
            self.memories.append(self._memory)
            first, stop = 0, size
        self._memory[first:stop] = data
        self._free = stop
        numbers, step = self._numbers, self._step
        numbers[cell], numbers[cell + step], numbers[cell + 2 * step] = self._number, first, size

    def _keep(self, cell: int, view: memoryview) -> None:
        """The bytes of a cell, which lie in the lease already."""
        self.cells.reshape(3, -1)[:, cell] = len(self.memories), 0, len(view)
        self.memories.append(view)


def topic_members(blocks: Sequence[Block], form: Format | None = None) -> tuple[Member, ...]:
    """Which members the records of some blocks have, and what a format finds in their values.

    The blocks have `record[]`. In the order value, key, timestamp, then headers by name.
    """
    sizes: dict[str, list[int]] = {}
    records = [record for block in blocks for record in cast("Any", block.values[WHOLE]) if record is not None]
    for record in records:
        there = {name: text for name, text in (("value", record.value), ("key", record.key)) if text is not None}
        hidden = form is not None
        named = {HEADER + name if hidden or name in OWN else name: text for name, text in record.headers}
        for name, text in {**there, "timestamp": b"", **named, **_inside(form, there.get("value"))}.items():
            sizes.setdefault(name, []).append(len(text or b""))
    order = {name: place for place, name in enumerate(OWN)}
    return tuple(
        Member(name, len(its) / len(records), round(sum(its) / len(its)))
        for name, its in sorted(sizes.items(), key=lambda item: (order.get(item[0], len(OWN)), item[0]))
    )


def _inside(form: Format | None, value: Any) -> dict[str, Any]:
    """What the format finds in a value; nothing where it cannot be parsed. A number or a list has no size."""
    if form is None or value is None:
        return {}
    try:
        known = form.members(bytes(value))
    except Exception:  # noqa: BLE001 - a format may raise anything; the record's reader will say so
        return {}
    return {name: each if isinstance(each, bytes | memoryview) else b"" for name, each in known.items()}
