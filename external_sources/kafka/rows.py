"""Kafka records as rows of a block: the parts that are asked for, copied once.

Members are the value, the key, the timestamp and the headers, by name. `value`, `key` and `timestamp` (milliseconds
since 1970, int64) are those of the record; any other name is a header's, and `headers.NAME` is one whose name is
`value`, `key` or `timestamp`; of headers with one name the last counts. `headers.*` are all of them, as a dict, and
`headers[]` a list of (name, bytes), as they stand in the record. `codec:NAME` is what a codec makes of it (`codec.py`).

The law: whoever fills the rows fills the same arrays: Python through memoryviews of them, C by their addresses. A part
that a record lacks stays without a memory; it is no fault. A fault is a payload that lies elsewhere and cannot be had.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from confluent_kafka import KafkaError, Message

from dali_feed.external_sources.kafka.claims import Claims, value_of, weight_of
from dali_feed.external_sources.kafka.codec import CODEC, Codec, decoded
from dali_feed.formats.format import Format
from dali_feed.records.extents import Int64s, pack_ids
from dali_feed.records.pieces import Pieces
from dali_feed.records.source import Block, Fault, Lease, Member

__all__ = ["MOST", "OWN", "PAIRS", "Cells", "Event", "KafkaParts", "OffsetRun", "in_full", "topic_members"]

MOST = 4096  # rows of a stream's block
OWN = ("value", "key", "timestamp")
HEADER = "headers."
EVERY = "headers.*"  # a dict of all headers that a record has
PAIRS = "headers[]"  # all headers as they are, in order
NONE = -1  # in the place of a memory: the record has no such part, or a null
_CHUNKS, _LARGE = 8, 64  # a slab is taken in so many chunks; a part above such a share of it has memory of its own


def in_full(name: str) -> str:
    """A member by what it is: a header by its full name."""
    return name if name in (*OWN, PAIRS) or name.startswith((HEADER, CODEC)) else HEADER + name


class KafkaParts:
    """What of each record is copied, for the members that are asked for.

    members       name -> what it is, see `in_full`
    columns       what is copied as bytes, in the order of the cells: value, key, headers
    value, key, timestamp  whether they are wanted
    headers       names of those that are copied
    every_header  whether all headers are kept, as a list
    coded         whether the codec is wanted
    """

    def __init__(
        self,
        members: Sequence[str] = (),
        claims: Claims | None = None,
        codec: Codec | None = None,
        *,
        follow: bool = True,
    ) -> None:
        """Members by plain names.

        Args:
            members: their names.
            claims: where values may lie that are elsewhere; None: nobody said.
            codec: what makes the members `codec:NAME`.
            follow: whether a value that lies elsewhere is wanted; else the record is taken as it is.
        """
        self.members = {name: in_full(name) for name in members}
        self.claims, self.codec, self.follow = claims, codec, follow
        wanted = dict.fromkeys(self.members.values())
        self.coded = coded = codec is not None and any(name.startswith(CODEC) for name in wanted)
        self.value, self.key = coded or "value" in wanted, coded or "key" in wanted
        self.timestamp = "timestamp" in wanted
        self.every_header = coded or not wanted.keys().isdisjoint((EVERY, PAIRS))
        self.headers = tuple(name.removeprefix(HEADER) for name in wanted if name.startswith(HEADER) and name != EVERY)
        names = (*(["value"] if self.value else []), *(["key"] if self.key else []), *map(HEADER.__add__, self.headers))
        self.columns = {name: column for column, name in enumerate(names)}

    @property
    def weigh(self) -> Callable[[Message], int]:
        """A function of a record: the bytes of its payload, wherever that lies."""
        return len if self.claims is None else weight_of


class Event(NamedTuple):
    """What is no record: an error, or the end of a partition, and where."""

    error: KafkaError
    partition: int | None
    offset: int | None


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
        columns = len(parts.columns)
        numbers = np.zeros((3 * columns + 1, rows), np.int64)  # one array, of which C is told by one address
        self.cells, self.times = numbers[:-1].reshape(3, columns, rows), numbers[-1]
        self.cells[0] = NONE
        self.taken = np.zeros(rows, np.uint8)
        self.memories: list[memoryview] = []
        self.faults: dict[int, Fault] = {}
        self.count = self.size = 0
        self._places: list[tuple[int, int]] = []  # partition and offset of each row that `append` has filled
        self._numbers, self._step = memoryview(numbers.reshape(-1)), columns * rows
        self._there = memoryview(self.taken)
        self._first = {name: column * rows for name, column in parts.columns.items()}  # cell of its first row
        self._headers = {name: self._first[HEADER + name] for name in parts.headers}
        self._pairs: list[Any] | None = [()] * rows if parts.every_header else None
        self._memory, self._number, self._free, self._end = memoryview(b""), NONE, 1, 0  # the one in use; free bytes

    @property
    def full(self) -> bool:
        """Whether `append` has no row left."""
        return self.count == self.rows

    def take(self, row: int, message: Any) -> None:
        """Copy a record into its row; the message is confluent_kafka's, or anything that has its methods."""
        parts = self.parts
        if parts.value:
            if value := message.value():
                self._put(row, value)
            else:
                self._elsewhere(row, message)
        if parts.key:
            self._put(self._first["key"] + row, message.key())
        if (pairs := self._pairs) is not None or self._headers:
            headers = message.headers() or ()
            for name, text in headers:
                if (first := self._headers.get(name)) is not None:
                    self._put(first + row, text)  # the last one counts, as Kafka's lastHeader has it
            if pairs is not None:
                pairs[row] = headers
        if parts.timestamp:
            self.times[row] = message.timestamp()[1]
        self._there[row] = 1

    def append(self, partition: int, offset: int, message: Message) -> None:
        """Copy a record into the next row."""
        self.take(self.count, message)
        self._places.append((partition, offset))
        self.count += 1
        self.size += self.parts.weigh(message)

    def block(self, ids: Int64s | None = None) -> Block:
        """The rows, of these ids; None: those that `append` has filled."""
        rows = self.rows if ids is not None else self.count
        if ids is None:
            partitions, offsets = np.array(self._places, np.int64).reshape(-1, 2).T
            ids = pack_ids(partitions, offsets)
        there = self.taken[:rows].astype(bool)
        absent = None if there.all() else ~there
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
        if self._pairs is not None and what == EVERY:
            return [dict(pairs) for pairs in self._pairs[:rows]]
        if self._pairs is not None and what == PAIRS:
            return [list(pairs) for pairs in self._pairs[:rows]]
        of, at, size = self.cells[:, self.parts.columns[what], :rows]
        return Pieces(self.memories, of, at, size)

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

    def _elsewhere(self, row: int, message: Message) -> None:
        """Of a record that has an empty value, or none: what its claim says."""
        if not self.parts.follow:
            self._put(row, message.value())
            return
        found = value_of(self.parts.claims, message, self.lease)
        if isinstance(found, str):
            self.faults[row] = Fault("source", found, "value")
        elif found is not None:
            self._keep(row, found)


@dataclass(slots=True)
class OffsetRun:
    """The offsets want..stop-1 of a partition are still to come; a record's row is its offset + shift.

    take      puts a record into its row; what is kept of it is copied
    cells     whose rows C may fill; None: all are filled by `take`
    received  bytes of the records that came
    end_seen  where the partition has ended too early, since the last record
    refused   the last offset that the broker said it does not have
    """

    partition: int
    want: int
    stop: int
    shift: int
    take: Callable[[int, Message], None]
    cells: Cells | None = None
    received: int = 0
    end_seen: int | None = None
    refused: int = -1


def topic_members(blocks: Sequence[Block], form: Format | None = None) -> tuple[Member, ...]:
    """Which members the records of some blocks have, and what a format finds in their values.

    The blocks have `value`, `key` and `headers[]`. In the order value, key, timestamp, then headers by name.
    """
    sizes: dict[str, list[int]] = {}
    records = 0
    for block in blocks:
        value, key, pairs = (block.values[name] for name in ("value", "key", PAIRS))
        for row in np.flatnonzero(block.usable()).tolist():
            records += 1
            there = {name: text for name, text in (("value", value[row]), ("key", key[row])) if text is not None}
            hidden = form is not None
            named = {HEADER + name if hidden or name in OWN else name: text for name, text in pairs[row]}
            for name, text in {**there, "timestamp": b"", **named, **_inside(form, there.get("value"))}.items():
                sizes.setdefault(name, []).append(len(text or b""))
    order = {name: place for place, name in enumerate(OWN)}
    return tuple(
        Member(name, len(its) / records, round(sum(its) / len(its)))
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
