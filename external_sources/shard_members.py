"""Members of tar samples: which suffixes there are, and any of them read in one go with the others of its sample.

The law of this file: no byte is copied twice, and none is read that was not asked for but what lies between members of
one sample that are read together.
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dali_feed.errors import ConfigError
from dali_feed.external_sources.checksums import compare, expected
from dali_feed.external_sources.member_source import MemberSource
from dali_feed.external_sources.shard_reader import FAR_BYTES, ShardFiles, Shards, foresee, runs_of
from dali_feed.external_sources.tar_index import TarIndex
from dali_feed.external_sources.topic_shards import Replay
from dali_feed.records.members import Member, alternatives
from dali_feed.records.pieces import Pieces
from dali_feed.records.source import Block, Coming, Int64s, Reader, Slabs, Snapshot, Source, unpack_ids
from dali_feed.storage.disk_cache import CachedStore
from dali_feed.storage.store import Store

__all__ = ["ShardMembers", "members_of"]

_NOTHING = memoryview(b"")
ALIGNED = 64  # bytes: of a cache line
_NO_IMAGE = "the sample has no image member"


def members_of(indexes: Sequence[TarIndex]) -> tuple[Member, ...]:
    """The suffixes of all samples, the most frequent first, then by name."""
    count: dict[bytes, int] = {}
    size: dict[bytes, int] = {}
    for index in indexes:
        for k, suffix in enumerate(index.suffixes):
            has = index.suffix == k
            count[suffix] = count.get(suffix, 0) + int(has.sum())
            size[suffix] = size.get(suffix, 0) + int(index.length[has].sum())
    samples = max(1, sum(map(len, indexes)))
    found = [
        Member(suffix.decode(errors="replace"), min(1.0, n / samples), round(size[suffix] / n))
        for suffix, n in count.items()
        if n
    ]
    return tuple(sorted(found, key=lambda member: (-member.share, member.name)))


@dataclass(frozen=True, slots=True)
class _MemberTable(Shards):
    """Where the members lie, int64 (members, rows); offset 0 says that a sample lacks one.

    `crc` is what `checksums.expected` says of each member.
    """

    at: Int64s
    size: Int64s
    crc: tuple[Int64s | None, ...]


class ShardMembers(MemberSource):
    """Samples of a ShardSet with the members that were asked for. See `records.members.Members.giving`."""

    def __init__(
        self,
        shards: Source,
        paths: tuple[str, ...],
        load: Callable[[], tuple[Shards, Sequence[TarIndex]]],
        store: Store,
        image: str | None,
        members: tuple[str, ...],
        *,
        check: bool = True,
        replay: Replay | None = None,
    ) -> None:
        super().__init__(shards, image, members)
        self._replay = replay
        self._paths, self._load, self._store, self._checks = paths, load, store, check
        self._table: _MemberTable | None = None
        self._loading = threading.Lock()

    def snapshot(self, pin: Mapping[str, Any] | None = None) -> Snapshot:
        """The ShardSet's, with the size of these members. ConfigError for a member that no sample has."""
        table = self._tabulated()  # first: it reads the indexes, of which the ShardSet then knows all it needs
        found = self._source.snapshot(pin)
        if self._replay is not None:  # an order depends on the size of a record, and is the topic's
            return found
        return replace(found, record_bytes=max(1, round(float(table.size.sum(axis=0).mean()))))

    def foresee(self, coming: Coming) -> None:
        """Where there is a cache: it evicts what is needed last. See `records.source.Foresees`."""
        if isinstance(self._store, CachedStore):
            table = self._tabulated()

            def spans(row: Int64s) -> tuple[Int64s, Int64s]:
                at, size = table.at[:, row], table.size[:, row]
                low = np.where(at > 0, at, np.iinfo(np.int64).max).min(axis=0)
                return np.where((at > 0).any(axis=0), low, 0), (at + size).max(axis=0)

            foresee(self._store, self._paths, table, coming, spans)

    def _opened(self, slabs: Slabs, stop: threading.Event) -> Reader:
        image, table = self._image is not None, self._tabulated()
        made = _MemberReader(self._paths, table, self._members, slabs, stop, self._store, image=image)
        return made if self._replay is None else self._replay.reader(made, table.counts)

    def _tabulated(self) -> _MemberTable:
        with self._loading:
            if self._table is None:
                shards, indexes = self._load()
                asked = (*(() if self._image is None else (self._image,)), *self._members)
                every = [_rows(name, indexes) for name in asked]
                self._table = _MemberTable(
                    shards.names,
                    shards.stamps,
                    shards.digests,
                    shards.counts,
                    shards.base,
                    at=np.stack([at for at, _ in every]),
                    size=np.stack([size for _, size in every]),
                    crc=tuple(expected(indexes, _suffixes(name)) if self._checks else None for name in asked),
                )
            return self._table


def _suffixes(name: str) -> list[bytes]:
    return [part.lower().encode() for part in alternatives(name)]


def _rows(name: str, indexes: Sequence[TarIndex]) -> tuple[Int64s, Int64s]:
    found = [index.member(_suffixes(name)) for index in indexes]
    at, size = (np.concatenate(each) for each in zip(*found, strict=True))
    if not at.any():
        there = [member.name for member in members_of(indexes)]
        near = difflib.get_close_matches(name, there, n=1)
        cure = f"Did you mean {near[0]!r}?" if near else "`dali-feed inspect` lists them"
        msg = f"member {name!r}: no sample has it; found {', '.join(there[:8])}. {cure}"
        raise ConfigError(msg)
    return at, size


class _MemberReader(ShardFiles):
    """Reads the members of neighbours with one pread, those that lie far from each other one by one."""

    def __init__(
        self,
        paths: tuple[str, ...],
        table: _MemberTable,
        members: tuple[str, ...],
        slabs: Slabs,
        stop: threading.Event,
        store: Store,
        *,
        image: bool,
    ) -> None:
        super().__init__(paths, table, slabs, stop, store)
        self._table, self._members, self._image = table, members, image

    def _fill(self, block: Block) -> None:
        partition, position = unpack_ids(block.ids)
        row = self._table.base[partition] + position
        at, size = self._table.at[:, row], self._table.size[:, row]
        there = at > 0
        low = np.where(there, at, np.iinfo(np.int64).max).min(axis=0)
        high = (at + size).max(axis=0)
        none = ~there.any(axis=0)
        low[none] = 0
        far = (high - low - size.sum(axis=0) > FAR_BYTES) & ~none
        together = np.where(far, 0, low), np.where(far, 0, high)
        begin, end = runs_of(partition, position, *together)
        read = together[0][begin] > 0
        memories, of, base = self._read_runs(block, partition, low, high, begin[read], end[read])
        members = [
            Pieces(memories, np.where(has, of, -1), np.where(has, offset - base, 0), length)
            for has, offset, length in zip(there, at, size, strict=True)
        ]
        for k in np.flatnonzero(far).tolist():
            for pieces, offset, length in zip(members, at[:, k].tolist(), size[:, k].tolist(), strict=True):
                if offset:
                    pieces[k] = self._whole(int(partition[k]), block.lease.room(length), offset, block.ids, k)
        self._given(block, members)
        self._check_read(partition)
        names = (*(("the image",) if self._image else ()), *(f"member {name!r}" for name in self._members))
        for what, pieces, crc in zip(names, members, self._table.crc, strict=True):
            if crc is not None:
                compare(pieces, crc[row], block.faults, what)

    def _read_runs(
        self, block: Block, partition: Int64s, low: Int64s, high: Int64s, begin: Int64s, end: Int64s
    ) -> tuple[list[memoryview], Int64s, Int64s]:
        """Read runs of rows: the memories that they lie in, and of each row which of them, and the byte it begins at.

        A memory is a slab full of runs, each from a multiple of ALIGNED on: lone members of one size then lie at one
        distance from each other, though the labels behind them have one digit or three.
        """
        first = low[begin]
        sizes = high[end - 1] - first
        run = np.searchsorted(begin, np.arange(len(partition)), side="right") - 1  # a row of no run may be given any
        if not len(begin):
            return [], run, run
        stops = np.cumsum(-(-sizes // ALIGNED) * ALIGNED)
        starts = np.concatenate([[0], stops[:-1]])
        memories, views, of, a = list[memoryview](), list[memoryview](), np.empty_like(begin), 0
        while a < len(begin):
            b = max(a + 1, int(np.searchsorted(stops, starts[a] + block.lease.slab_bytes, side="right")))
            memory = block.lease.room(int(starts[b - 1] - starts[a] + sizes[b - 1]))
            starts[a:b] -= starts[a]
            views += [
                memory[at:upto] for at, upto in zip(starts[a:b].tolist(), (starts + sizes)[a:b].tolist(), strict=True)
            ]
            of[a:b] = len(memories)
            memories.append(memory)
            a = b
        self._fill_views(partition[begin].tolist(), views, first.tolist(), block.ids, begin.tolist())
        return memories, of[run], (first - starts)[run]

    def _given(self, block: Block, members: list[Pieces]) -> None:
        if self._image:
            block.payloads[:] = [_NOTHING if view is None else view for view in members[0]]
            block.faults.update(dict.fromkeys(np.flatnonzero(members[0].missing).tolist(), _NO_IMAGE))
        block.fields.update(zip(self._members, members[1:] if self._image else members, strict=True))

    def _whole(self, shard: int, view: memoryview, at: int, ids: Int64s, row: int) -> memoryview:
        """`view`, filled; DataLostError where the shard ends before."""
        if len(view):
            got = self._read(self._file(shard), view, at, ids, row)
            if got < len(view):
                raise self._lost(ids[row], at + got)
        return view
