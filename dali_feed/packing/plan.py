"""Which records go into which shard: decided before anything is written.

The law: a plan depends on the source's contents and the options alone, so that each shard can be written by itself, by
anybody, in any order, and again. A topic's partitions are never mixed in one shard: shards are runs of one partition,
in its order, and so a set's samples keep their offsets.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from dali_feed.columns.request import open_reader
from dali_feed.records.extents import Extents, Int64s
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import Block, Snapshot, Source

PIECE_BYTES = 8 << 20
MOST = 8192  # records of a read
PROBES, PROBED = 8, 8  # places, and records of each, that say how large samples become


@dataclass(frozen=True, slots=True)
class Plan:
    """A snapshot's records in one line, partition after partition, and where each shard begins.

    borders  int64 (shards + 1,): shard k has the records borders[k]..borders[k+1]-1 of the line
    """

    name: str
    borders: Int64s

    def __len__(self) -> int:
        return len(self.borders) - 1

    @property
    def records(self) -> int:
        """All of them."""
        return int(self.borders[-1])

    def shard(self, k: int) -> str:
        """The name of a shard's file."""
        return name_of(self.name, k, len(self))

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return {"name": self.name, "borders": self.borders.tolist()}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Plan:
        """What `to_json` gave. Raises KeyError, TypeError or ValueError where it is not that."""
        borders = np.array([int(border) for border in values["borders"]], np.int64)
        if len(borders) < 2 or borders[0] != 0 or (np.diff(borders) < 1).any():
            raise ValueError("borders must ascend from 0")
        return cls(str(values["name"]), borders)


def name_of(name: str, k: int, shards: int) -> str:
    """The file of shard k of a set: six digits, more where there are more."""
    width = max(6, len(str(shards - 1)))
    return f"{name}-{k:0{width}d}.tar"


def borders_of(snapshot: Snapshot, sample_bytes: float, shard_bytes: int) -> Int64s:
    """Where shards begin that are of about `shard_bytes`, and as many records each as can be."""
    first, last = snapshot.numbers
    counts = last - first
    runs = counts.tolist() if snapshot.interleaved else [int(counts.sum())]
    borders, base = [np.zeros(1, np.int64)], 0
    for records in runs:
        if records:
            shards = min(records, max(1, math.ceil(records * sample_bytes / shard_bytes)))
            borders.append(base + np.arange(1, shards + 1, dtype=np.int64) * records // shards)
            base += records
    return np.concatenate(borders)


def extents_of(snapshot: Snapshot, start: int, stop: int) -> Iterator[Extents]:
    """The positions of records start..stop-1 of the line, in runs that are read in one go."""
    first, last = snapshot.numbers
    ends = np.cumsum(last - first)
    step = min(MOST, max(1, PIECE_BYTES // snapshot.record_bytes))
    while start < stop:
        partition = int(np.searchsorted(ends, start, side="right"))
        end = min(stop, start + step, int(ends[partition]))
        low = int(last[partition] - (ends[partition] - start))
        yield snapshot.located(Extents.one(partition, low, low + end - start))
        start = end


def blocks(
    source: Source,
    names: Sequence[str],
    every: Iterable[Extents],
    stop: threading.Event | None = None,
    optional: Collection[str] = (),
) -> Generator[Block, None, None]:
    """A block with these names for each, by a reader of its own; its memory is gone when the next one comes."""
    pool = SlabPool()
    with closing(open_reader(source, names, stop, optional)) as reader:
        for extents in every:
            lease = pool.lease()
            try:
                block = reader.read(extents, lease)
                try:
                    yield block
                finally:
                    block.values.clear()
            finally:
                lease.release()


def probed(snapshot: Snapshot) -> Iterator[Extents]:
    """A few records, spread over the line."""
    total = int((snapshot.numbers[1] - snapshot.numbers[0]).sum())
    starts = np.unique(np.linspace(0, max(0, total - PROBED), PROBES).astype(np.int64))
    end = 0
    for start in starts.tolist():
        yield from extents_of(snapshot, max(start, end), min(total, start + PROBED))
        end = min(total, start + PROBED)
