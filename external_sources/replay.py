"""A set of shards that holds a topic's records, as that topic: its partitions, its offsets, its order.

The law: what a run gives depends on where its records stood in the topic, not on where they lie now. The snapshot is
the topic's own, fingerprint and pin too, so that orders and draws are the same, and a state of one goes on with the
other. An offset whose record is not in the set is absent, as one is that the topic has no record at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dali_feed.errors import ConfigError, DataLostError, StateError
from dali_feed.records.live import PassingOn
from dali_feed.records.pieces import Pieces
from dali_feed.records.present import Present, packed, unpacked
from dali_feed.records.source import Block, Extents, Int64s, Reader, Snapshot, unpack_ids

__all__ = ["Replay", "rows_of"]


@dataclass(frozen=True, slots=True)
class Replay:
    """Which topic, and which of its offsets the samples of a set stood at, partition after partition.

    pin   of the topic's snapshot
    held  the offsets that have a sample, in the order of the samples
    """

    pin: Mapping[str, Any]
    held: Present

    @classmethod
    def missing(cls, pin: Mapping[str, Any], runs: list[list[int]]) -> Replay:
        """Of a set that has all offsets of a pin's snapshot but `runs` of [partition, start, stop]."""
        snapshot = _snapshot(pin)
        starts, stops = snapshot.starts.tolist(), snapshot.stops.tolist()
        flags = [np.ones(stop - start, bool) for start, stop in zip(starts, stops, strict=True)]
        if snapshot.present is not None:  # what it never dealt is not in the set
            flags = [np.zeros_like(each) for each in flags]
            every = snapshot.present.positions(Extents(np.arange(len(starts)), *snapshot.numbers))
            for partition, start, stop in zip(*(each.tolist() for each in _columns(every)), strict=True):
                flags[partition][start - starts[partition] : stop - starts[partition]] = True
        for partition, start, stop in runs:
            flags[partition][start - starts[partition] : stop - starts[partition]] = False
        return cls(pin, Present.of_flags(starts, flags))

    def told(self) -> dict[str, Any]:
        """As plain JSON."""
        return {"pin": dict(self.pin), "held": packed(self.held, _snapshot(self.pin).starts)}

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Replay:
        """What `told` gave. Raises KeyError, TypeError or ValueError where it is not that."""
        snapshot = _snapshot(told["pin"])
        return cls(told["pin"], unpacked(told["held"], snapshot.starts, snapshot.stops))

    def snapshot(self, title: str, counts: Int64s, pin: Mapping[str, Any] | None = None) -> Snapshot:
        """The topic's. `counts` are the samples of each shard.

        Raises StateError for a pin of anything else, DataLostError where the set has not as many samples as offsets.
        """
        own = _snapshot(self.pin)
        if int(counts.sum()) != len(self.held):
            msg = f"{title}: the set must hold {len(self.held)} records of its topic; found {int(counts.sum())} samples"
            raise DataLostError(msg)
        asked = own if pin is None else _snapshot(pin)
        if asked.fingerprint != own.fingerprint:
            msg = f"{title}: the pin must be of the stretch of {self.pin['topic']} that the set was packed of"
            raise StateError(msg)
        return replace(asked, source=f"{title} of topic {self.pin['topic']}")

    def reader(self, made: Reader, counts: Int64s) -> Reader:
        """A reader of the topic's offsets, around one of the set's samples."""
        return _ReplayReader(made, self.held, counts)

    def where(self, partition: int, position: int, names: tuple[str, ...], counts: Int64s) -> str:
        """`train[3]@41872 (train-000004.tar#17)`."""
        row = int(rows_of(self.held, np.array([partition]), np.array([position]))[0])
        told = f"{self.pin['topic']}[{partition}]@{position}"
        if row < 0:
            return told
        shard = int(np.searchsorted(np.cumsum(counts), row, side="right"))
        return f"{told} ({names[shard]}#{row - int(counts[:shard].sum())})"


def rows_of(held: Present, partition: Int64s, position: Int64s) -> Int64s:
    """Which sample stood at each position, counted over all partitions, int64 (n,); -1 where none did."""
    found = np.full(len(partition), -1, np.int64)
    first = np.concatenate([[0], np.cumsum(held.runs)])
    lengths = np.diff(held.before)
    for p in np.unique(partition).tolist():
        here = np.flatnonzero(partition == p)
        a, b = int(first[p]), int(first[p + 1])
        if a < b:
            run = np.searchsorted(held.start[a:b], position[here], side="right") - 1 + a
            inside = position[here] - held.start[run]
            fits = (run >= a) & (inside >= 0) & (inside < lengths[run])
            found[here[fits]] = held.before[run[fits]] + inside[fits]
    return found


class _ReplayReader(PassingOn):
    """Reads samples where they lie, and gives them at their offsets."""

    def __init__(self, reader: Any, held: Present, counts: Int64s) -> None:
        super().__init__(reader)
        self._held, self._ends = held, np.cumsum(counts)
        self._counts = counts

    def read(self, extents: Extents) -> Block:
        """All positions of `extents`; see `dali_feed.records.source.Reader`."""
        ids = extents.ids()
        partition, position = unpack_ids(ids)
        if len(ids) and int(partition.max()) >= len(self._held.runs):
            msg = "ShardSet: extents must lie inside the snapshot; found one that does not"
            raise ConfigError(msg)
        rows = rows_of(self._held, partition, position)
        there = np.flatnonzero(rows >= 0)
        block = self._reader.read(self._lying(rows[there]))
        if len(there) == len(ids):
            return Block(ids, block.payloads, block.fields, block.lease, block.faults)
        payloads: list[memoryview | None] = [None] * len(ids)
        for row, payload in zip(there.tolist(), block.payloads, strict=True):
            payloads[row] = payload
        fields = {name: _spread(column, there, len(ids)) for name, column in block.fields.items()}
        faults = {int(there[row]): reason for row, reason in block.faults.items()}
        return Block(ids, payloads, fields, block.lease, faults)

    def _lying(self, rows: Int64s) -> Extents:
        """Where samples lie, in their order: runs of neighbours in a shard."""
        shard = np.searchsorted(self._ends, rows, side="right")
        index = rows - (self._ends - self._counts)[shard]
        begins = np.flatnonzero(np.diff(rows, prepend=-2) != 1)
        begins = np.union1d(begins, np.flatnonzero(np.diff(shard, prepend=-1)))
        ends = np.append(begins[1:], len(rows))[: len(begins)]
        return Extents(shard[begins], index[begins], index[begins] + (ends - begins))


def _spread(column: Any, there: Int64s, rows: int) -> Any:
    """A field with rows between those that are there."""
    if isinstance(column, Pieces):
        made = Pieces.none(rows)
        made.memories = column.memories
        made.of[there], made.at[there], made.size[there] = column.of, column.at, column.size
        return made
    if isinstance(column, np.ndarray):
        out = np.zeros((rows, *column.shape[1:]), column.dtype)
        out[there] = column
        return out
    found: list[Any] = [None] * rows
    for row, value in zip(there.tolist(), column, strict=True):
        found[row] = value
    return found


def _columns(extents: Extents) -> tuple[Int64s, Int64s, Int64s]:
    return extents.partition, extents.start, extents.stop


def _snapshot(pin: Mapping[str, Any]) -> Snapshot:
    """The snapshot of a pin."""
    from dali_feed.external_sources.kafka.snapshot import pin_of

    if not isinstance(pin, Mapping) or "topic" not in pin:
        msg = "a set's pin must be what a snapshot of a Kafka topic gave"
        raise StateError(msg)
    return pin_of(str(pin["topic"]), pin).snapshot("")
