"""One shard: the records of the plan's k-th stretch, as a tar file and its index.

The law: its bytes are a function of (plan, k) alone. Who writes it, when, beside what others, shows nowhere.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dali_feed.errors import ClosedError, ConfigError
from dali_feed.external_sources.index_bytes import index_bytes
from dali_feed.packing.contents import Contents, Sample
from dali_feed.packing.plan import Plan, extents_of, probed
from dali_feed.packing.tar import TarWriter
from dali_feed.records.source import Reader, Snapshot, unpack_id
from dali_feed.records.tally import Tally

__all__ = ["Made", "ShardMaker", "sample_bytes"]

Advance = Callable[[int, int], None]  # records and bytes that have come since
_BLOCK = 512


@dataclass(frozen=True, slots=True)
class Made:
    """A shard that was written.

    size, samples, sha256  of the tar file
    index    the bytes of its index
    tally    what became of its records
    missing  positions of a topic that have no sample, as runs [partition, start, stop]
    """

    size: int
    samples: int
    sha256: str
    index: bytes
    tally: Tally
    missing: list[list[int]]


class ShardMaker:
    """Makes shards, one after the other, with a reader of its own. For one thread."""

    def __init__(self, contents: Contents, snapshot: Snapshot, plan: Plan, stop: threading.Event) -> None:
        self._contents, self._snapshot, self._plan, self._stop = contents, snapshot, plan, stop
        self._reader: Reader | None = None

    def make(self, k: int, write: Callable[[bytes], object], advance: Advance = lambda *_: None) -> Made:
        """Give `write` the bytes of shard k, in order.

        Raises:
            ClosedError: the stop event is set.
            ConfigError: two of its samples have one key.
            SourceError: records cannot be read.
        """
        if self._reader is None:
            self._reader = self._contents.source.reader(None, self._stop)
        digest = hashlib.sha256()

        def put(data: bytes) -> None:
            digest.update(data)
            write(data)

        tar, tally = TarWriter(put), Tally()
        keys: set[str] | None = None if self._contents.keys.unique else set()
        missing = _Missing() if self._snapshot.interleaved else None
        start, stop = self._plan.borders[k : k + 2].tolist()
        number = start
        for extents in extents_of(self._snapshot, start, stop):
            if self._stop.is_set():
                msg = "pack: it was stopped"
                raise ClosedError(msg)
            block = self._reader.read(extents)
            before = tar.size
            try:
                for row, sample in enumerate(self._contents.samples(block, number)):
                    if isinstance(sample, Sample):
                        if keys is not None:
                            if sample.key in keys:
                                raise _twice(sample.key, self._plan.shard(k))
                            keys.add(sample.key)
                        tar.add(*sample)
                        tally.records += 1
                        tally.size += sum(len(data) for _, data in sample.files)
                        continue
                    sample_id = int(block.ids[row])
                    if missing is not None:
                        missing.add(*unpack_id(sample_id))
                    if sample is None:
                        tally.absent += 1
                    else:
                        tally.fail(sample, self._contents.source.where(*unpack_id(sample_id)))
                number += len(block.ids)
                advance(len(block.ids), tar.size - before)
            finally:
                block.payloads.clear()
                block.lease.release()
        index = tar.finish()
        runs = [] if missing is None else missing.runs
        return Made(tar.size, len(tar), digest.hexdigest(), index_bytes(index), tally, runs)

    def close(self) -> None:
        """Close its reader. Safe to call twice."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


class _Missing:
    """Positions, put together into runs as they come."""

    def __init__(self) -> None:
        self.runs: list[list[int]] = []

    def add(self, partition: int, position: int) -> None:
        last = self.runs[-1] if self.runs else None
        if last is not None and last[0] == partition and last[2] == position:
            last[2] += 1
        else:
            self.runs.append([partition, position, position + 1])


def sample_bytes(contents: Contents, snapshot: Snapshot) -> tuple[float, str]:
    """Bytes of a sample in a tar file, the mean of a few; and the suffix that most payloads would have.

    The mean size of the source's records is taken where none of the few can be written.
    """
    reader = contents.source.reader(None, None)
    sizes: list[int] = []
    kinds: list[str] = []
    number = 0
    try:
        for extents in probed(snapshot):
            block = reader.read(extents)
            try:
                kind = contents.kind_of(block)
                kinds += [] if kind is None else [kind]
                made = [sample for sample in contents.samples(block, number) if isinstance(sample, Sample)]
                sizes += [sum(_BLOCK - len(data) // -_BLOCK * _BLOCK for _, data in sample.files) for sample in made]
                number += len(block.ids)
            finally:
                block.payloads.clear()
                block.lease.release()
    finally:
        reader.close()
    mean = float(np.mean(sizes)) if sizes else snapshot.record_bytes + 2.0 * _BLOCK
    return mean, max(sorted(set(kinds)), key=kinds.count, default=contents.fallback)


def _twice(key: str, shard: str) -> ConfigError:
    msg = f'{shard}: no two samples of a shard may have one key; found {key!r} twice; give keys="number"'
    return ConfigError(msg)
