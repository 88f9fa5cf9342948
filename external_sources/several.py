"""One reader over the readers of several sources: each opened when it is first asked, all filling the same lease."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dali_feed.errors import ClosedError, ConfigError
from dali_feed.records.gauges import Gauged, KafkaStats, merged
from dali_feed.records.source import Block, Coming, Extents, Int64s, Lease, Reader, Scales, Slabs, Source
from dali_feed.records.storage_stats import StorageStats, storage_of

__all__ = ["Kinds", "SeveralReader", "base_of", "once", "part_of"]


def base_of(counts: Sequence[int]) -> Int64s:
    """The first partition of each source here, int64, and the end of the last."""
    return np.concatenate([[0], np.cumsum(np.asarray(counts, np.int64))]).astype(np.int64)


def once(coming: Coming) -> Coming:
    """The same, worked out when it is first asked, for several who ask one after the other."""
    return functools.cache(coming)


def part_of(coming: Coming, base: Int64s, places: Sequence[int]) -> tuple[Extents, int]:
    """Of what will be read, that of the source which stands at these places, as it counts partitions itself."""
    extents, this = coming()
    which = np.searchsorted(base, extents.partition, side="right") - 1
    mine = np.isin(which, places)
    lengths = extents.lengths
    now = np.clip(this - (np.cumsum(lengths) - lengths), 0, lengths)  # an extent may be of this pass in part
    inner = Extents(extents.partition[mine] - base[which[mine]], extents.start[mine], extents.stop[mine])
    return inner, int(now[mine].sum())


@dataclass(slots=True)
class Kinds:
    """What each field's values are in the source that was read first; the others must agree. Shared by readers."""

    title: str
    _known: dict[str, tuple[str, str]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def check(self, name: str, values: Any, source: Source) -> None:
        """ConfigError that names both sources where the field is something else in this one."""
        kind = _told(values)
        with self._lock:
            first, of = self._known.setdefault(name, (kind, repr(source)))
        if kind != first:
            msg = (
                f"{self.title}: the field {name!r} must be of one kind in all sources; {of} has {first}, "
                f"{source!r} has {kind}. Make them the same (for a topic by codec=, for shards by label=), or "
                "give label=None"
            )
            raise ConfigError(msg)


def _told(values: Any) -> str:
    if not isinstance(values, np.ndarray):
        return "a list"
    shape = f" of shape {values.shape[1:]}" if values.ndim > 1 else ""
    return ("int64" if values.dtype.kind in "iu" else str(values.dtype)) + " numbers" + shape


class _Held:
    """The lease that inner readers fill together; who leased it outside gives it back, they do not."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self.slab_bytes = lease.slab_bytes

    @property
    def size(self) -> int:
        """Bytes that it holds now."""
        return self._lease.size

    def room(self, size: int) -> memoryview:
        """A writable view of `size` bytes that nobody else has."""
        return self._lease.room(size)

    def ahead(self, size: int) -> list[memoryview]:
        """Writable views of `size` bytes in all, or of fewer."""
        return self._lease.ahead(size)

    def back(self, views: list[memoryview], filled: int) -> None:
        """Those of them that nothing was put into, given back."""
        self._lease.back(views, filled)

    def release(self) -> None:
        """Nothing: the block's lease is given back as a whole."""


class _OneLease:
    """Slabs whose leases are all the one of the read under way."""

    def __init__(self, slabs: Slabs) -> None:
        self._slabs = slabs
        self.now: Lease | None = None

    def lease(self) -> Lease:
        return self._slabs.lease() if self.now is None else _Held(self.now)


class SeveralReader:
    """Records of several sources whose partitions stand one after another from `base` on, with these fields alone."""

    def __init__(
        self,
        sources: Sequence[Source],
        base: Int64s,
        fields: tuple[str, ...],
        kinds: Kinds,
        slabs: Slabs,
        stop: threading.Event | None,
    ) -> None:
        self._sources, self._base, self._fields, self._kinds = sources, base, fields, kinds
        self._slabs, self._one, self._stop = slabs, _OneLease(slabs), stop
        self._readers: dict[int, Reader] = {}
        self._times: int | None = None
        self._closed = False

    def read(self, extents: Extents) -> Block:
        """All records of `extents`, in their order; see `records.source.Reader`."""
        if self._closed:
            msg = f"{self._kinds.title}: this reader is closed; make another one"
            raise ClosedError(msg)
        which = np.searchsorted(self._base, extents.partition, side="right") - 1
        if ((which < 0) | (which >= len(self._sources))).any():
            msg = f"{self._kinds.title}: extents must lie inside the snapshot; found one that does not"
            raise ConfigError(msg)
        lengths = extents.lengths
        ends = np.cumsum(lengths)
        rows, lease = int(lengths.sum()), self._slabs.lease()
        whole = Block(extents.ids(), [None] * rows, {}, lease)
        self._one.now = lease
        try:
            for k in np.unique(which).tolist():
                mine = which == k
                asked = extents[mine]
                inner = Extents(asked.partition - self._base[k], asked.start, asked.stop)
                block = self._reader(k).read(inner)
                _put(whole, block, _rows(ends[mine], lengths[mine]), self._fields, self._kinds, self._sources[k])
        except BaseException:
            lease.release()
            raise
        finally:
            self._one.now = None
        return whole

    def close(self) -> None:
        """Close all that were opened. Safe to call twice."""
        self._closed = True
        for reader in self._readers.values():
            reader.close()

    @property
    def trouble(self) -> str:
        """The readers', where they have any."""
        return "; ".join(filter(None, (getattr(reader, "trouble", "") for reader in list(self._readers.values()))))

    def gauges(self) -> KafkaStats | None:
        """What readers of topics have measured; partitions have their numbers here."""
        parts = []
        for k, reader in list(self._readers.items()):
            found = reader.gauges() if isinstance(reader, Gauged) else None
            if found is not None:
                first = int(self._base[k])
                placed = tuple(replace(each, partition=each.partition + first) for each in found.partitions)
                parts.append(replace(found, partitions=placed))
        topics = ", ".join(dict.fromkeys(part.topic for part in parts))
        return replace(merged(parts), topic=topics) if parts else None

    def storage(self) -> tuple[StorageStats, ...]:
        """What readers of files have measured."""
        return storage_of(list(self._readers.values()))

    def fetch_times(self, times: int) -> None:
        """How much those fetch at once that can choose; see `records.source.Scales`."""
        self._times = times
        for reader in self._readers.values():
            if isinstance(reader, Scales):
                reader.fetch_times(times)

    def rest(self) -> None:
        """Let the readers look after themselves that have to."""
        for reader in self._readers.values():
            if (rest := getattr(reader, "rest", None)) is not None:
                rest()

    def _reader(self, k: int) -> Reader:
        reader = self._readers.get(k)
        if reader is None:
            reader = self._sources[k].reader(self._one, self._stop)
            if self._times is not None and isinstance(reader, Scales):
                reader.fetch_times(self._times)
            self._readers[k] = reader
        return reader


def _rows(ends: Int64s, lengths: Int64s) -> Int64s:
    """The rows of the runs that end there, int64."""
    first = np.cumsum(lengths) - lengths
    return np.asarray(np.arange(int(lengths.sum())) + np.repeat(ends - lengths - first, lengths), np.int64)


def _put(whole: Block, block: Block, rows: Int64s, fields: tuple[str, ...], kinds: Kinds, source: Source) -> None:
    """What a source gave becomes those rows of the whole."""
    places = rows.tolist()
    for place, payload in zip(places, block.payloads, strict=True):
        whole.payloads[place] = payload
    for row, reason in block.faults.items():
        whole.faults[places[row]] = reason
    count = len(whole.payloads)
    for name in fields:
        values = block.fields[name]
        kinds.check(name, values, source)
        if isinstance(values, np.ndarray):
            if name not in whole.fields:
                dtype = np.dtype(np.int64) if values.dtype.kind in "iu" else values.dtype
                whole.fields[name] = np.zeros((count, *values.shape[1:]), dtype)
            whole.fields[name][rows] = values
        elif len(places) == count:
            whole.fields[name] = values
        else:
            kept = whole.fields.setdefault(name, [None] * count)
            for place, value in zip(places, values, strict=True):
                kept[place] = value
