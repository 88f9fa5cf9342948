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

from dali_feed.errors import DataLostError, StateError
from dali_feed.records.extents import Present, packed, unpacked
from dali_feed.records.source import Extents, Int64s, Snapshot


@dataclass(frozen=True, slots=True)
class Replay:
    """Which topic, and which of its offsets the samples of a set stood at, partition after partition.

    pin      of the topic's snapshot
    present  the offsets that have a sample, in the order of the samples
    """

    pin: Mapping[str, Any]
    present: Present

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

    def as_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return {"pin": dict(self.pin), "held": packed(self.present, _snapshot(self.pin).starts)}

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Replay:
        """What `as_json` gave. Raises KeyError, TypeError or ValueError where it is not that."""
        snapshot = _snapshot(described["pin"])
        return cls(described["pin"], unpacked(described["held"], snapshot.starts, snapshot.stops))

    def snapshot(self, title: str, counts: Int64s, pin: Mapping[str, Any] | None = None) -> Snapshot:
        """The topic's. `counts` are the samples of each shard.

        Raises StateError for a pin of anything else, DataLostError where the set has not as many samples as offsets.
        """
        own = _snapshot(self.pin)
        if (samples := int(counts.sum())) != len(self.present):
            msg = f"{title}: the set must hold {len(self.present)} records of its topic; found {samples} samples"
            raise DataLostError(msg)
        pinned = own if pin is None else _snapshot(pin)
        if pinned.fingerprint != own.fingerprint:
            msg = f"{title}: the pin must be of the stretch of {self.pin['topic']} that the set was packed of"
            raise StateError(msg)
        return replace(pinned, source=f"{title} of topic {self.pin['topic']}")

    def rows(self, partition: Int64s, position: Int64s) -> Int64s:
        """Which sample stood at each position, counted over all partitions, int64 (n,); -1 where none did."""
        present, rows = self.present, np.full(len(partition), -1, np.int64)
        first = np.concatenate([[0], np.cumsum(present.runs)])
        lengths = np.diff(present.before)
        for p in np.unique(partition).tolist():
            here = np.flatnonzero(partition == p)
            a, b = int(first[p]), int(first[p + 1])
            if a < b:
                run = np.searchsorted(present.start[a:b], position[here], side="right") - 1 + a
                inside = position[here] - present.start[run]
                fits = (run >= a) & (inside >= 0) & (inside < lengths[run])
                rows[here[fits]] = present.before[run[fits]] + inside[fits]
        return rows

    @property
    def ends(self) -> Int64s:
        """Behind the last offset of each partition, int64 (partitions,)."""
        return _snapshot(self.pin).stops

    def where(self, partition: int, position: int, names: tuple[str, ...], counts: Int64s) -> str:
        """`train[3]@41872 (train-000004.tar#17)`."""
        row = int(self.rows(np.array([partition]), np.array([position]))[0])
        where = f"{self.pin['topic']}[{partition}]@{position}"
        if row < 0:
            return where
        shard = int(np.searchsorted(np.cumsum(counts), row, side="right"))
        return f"{where} ({names[shard]}#{row - int(counts[:shard].sum())})"


def _columns(extents: Extents) -> tuple[Int64s, Int64s, Int64s]:
    return extents.partition, extents.start, extents.stop


def _snapshot(pin: Mapping[str, Any]) -> Snapshot:
    """The snapshot of a pin."""
    from dali_feed.external_sources.kafka.snapshot import pin_of

    if not isinstance(pin, Mapping) or "topic" not in pin:
        msg = "a set's pin must be what a snapshot of a Kafka topic gave"
        raise StateError(msg)
    return pin_of(str(pin["topic"]), pin).snapshot("")
