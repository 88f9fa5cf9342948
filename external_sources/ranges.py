"""Records of files, or members of them, read by byte ranges: one read for a run of neighbours, one for a lone record.

The law: a file that is not what was indexed, before the first of a block's reads or after the last, costs the read. No
byte is copied twice: what is given are views of the slab that the kernel wrote. None is read that was not asked for but
what lies between members of one record that are read together.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from dali_feed.errors import (
    ClosedError,
    DaliFeedError,
    DataLostError,
    SourceChangedError,
    SourceError,
    SourceNotFoundError,
)
from dali_feed.external_sources.request import MemberReader
from dali_feed.external_sources.tar import compare
from dali_feed.records.gauges import StorageStats, storage_of
from dali_feed.records.pieces import Pieces
from dali_feed.records.source import Block, Int64s, Slabs, unpack_ids
from dali_feed.storage.store import File, Stamp, Store

__all__ = ["FileReader", "FileTable", "RangeReader", "Spans", "check_file", "runs_of"]

RUN_BYTES = 4 << 20  # half a slab: two runs fill one, and none needs a map of its own
FAR_BYTES = 64 << 10
ALIGNED = 64  # bytes: of a cache line
_NOTHING = memoryview(b"")
_NOWHERE = np.iinfo(np.int64).max
_NO_IMAGE = "the sample has no image member"


@dataclass(frozen=True, slots=True)
class FileTable:
    """All records of all files, file after file: row base[p] + k is record k of file p.

    `stamps` are what each file was when it was indexed.
    """

    names: tuple[str, ...]
    stamps: tuple[Stamp, ...]
    digests: tuple[str, ...]
    counts: Int64s
    base: Int64s


@dataclass(frozen=True, slots=True)
class Spans(FileTable):
    """Where members of the records lie, int64 (members, rows); `at` 0 says that a record lacks one.

    `crc` is what `tar.expected` says of each member.
    """

    at: Int64s
    size: Int64s
    crc: tuple[Int64s | None, ...]


def _bounds(at: Int64s, size: Int64s) -> tuple[Int64s, Int64s]:
    """From and up to which byte the members of each row lie; 0 where it has none."""
    low = np.where(at > 0, at, _NOWHERE).min(axis=0)
    low[low == _NOWHERE] = 0
    return low, (at + size).max(axis=0)


class FileReader(MemberReader):
    """What readers of shards share: files that are what they were, and reads that end where they should."""

    told = "ShardSet"  # whose reader it is, in messages

    def __init__(
        self, paths: tuple[str, ...], table: FileTable, slabs: Slabs, stop: threading.Event | None, store: Store
    ) -> None:
        super().__init__(self.told, table.counts, slabs, stop)
        self._paths, self._shards, self._store = paths, table, store.metered()
        self._open: OrderedDict[int, File] = OrderedDict()
        self._left: tuple[StorageStats, ...] = ()  # what the files measured that are closed

    def close(self) -> None:
        """Close all files. Safe to call twice."""
        self._closed = True
        while self._open:
            self._let_go(self._open.popitem()[1])

    def storage(self) -> tuple[StorageStats, ...]:
        """What its files have measured, or their store for this reader, where they do."""
        meter = self._store.meter
        own = () if meter is None else (meter.stats(),)
        return storage_of(list(self._open.values()), self._left, own)

    def _let_go(self, file: File) -> None:
        self._left = storage_of([file], self._left)
        file.close()

    def _check_read(self, partition: Int64s) -> None:
        """The shards that a block came from are still what they were."""
        for shard in np.unique(partition).tolist():
            if shard in self._open:
                _check(self._paths[shard], self._shards.stamps[shard], self._open[shard].stamp(), self.told)

    def _read(self, file: File, view: memoryview, at: int, ids: Int64s, row: int) -> int:
        """Fill `view` from byte `at`; return how many bytes there were."""
        if self._stop.is_set():
            msg = f"{self.told}: the read was stopped"
            raise ClosedError(msg)
        try:
            return file.read(view, at)
        except OSError as error:
            found = f"{error.strerror} (errno {error.errno})"
            msg = f"{self._where(ids[row])}: the shard must be readable; found: {found}; check the disk"
            raise SourceError(msg) from error

    def _fill_views(
        self,
        shards: list[int],
        views: list[memoryview],
        at: list[int],
        ids: Int64s,
        rows: list[int],
        highs: Int64s | None = None,
    ) -> None:
        """Fill views from bytes of shards, each with rows from `rows` on; `highs`: where each row of the block ends.

        Raises:
            DataLostError: a shard ends before a row does, the first of its view where `highs` is not known.
        """
        counts = self._store.fill(self._file, shards, views, at, self._stop)
        for k, (got, view) in enumerate(zip(counts, views, strict=True)):
            if got == len(view):
                continue
            # Short, stopped, or an error, of which the careful way tells.
            got, row = self._read(self._file(shards[k]), view, at[k], ids, rows[k]), rows[k]  # noqa: PLW2901
            if got < len(view):
                row += 0 if highs is None else int(np.argmax(highs[row:] > at[k] + got))
                raise self._lost(ids[row], at[k] + got)

    def _file(self, shard: int) -> File:
        file = self._open.get(shard)
        if file is not None:
            self._open.move_to_end(shard)
            return file
        path = self._paths[shard]
        try:
            file = self._store.open(path, self._stop)
        except SourceNotFoundError as error:
            raise gone(path) from error
        try:
            _check(path, self._shards.stamps[shard], file.stamp(), self.told)
        except DaliFeedError:
            file.close()
            raise
        self._open[shard] = file
        if len(self._open) > self._store.most_open:
            oldest, old = self._open.popitem(last=False)
            try:
                # This block may have read it.
                _check(self._paths[oldest], self._shards.stamps[oldest], old.stamp(), self.told)
            finally:
                self._let_go(old)
        return file

    def _where(self, sample: np.int64) -> str:
        partition, position = unpack_ids(np.asarray(sample))
        return f"{self._paths[int(partition)]}#{int(position)}"

    def _lost(self, sample: np.int64, byte: int) -> DataLostError:
        msg = (
            f"{self._where(sample)}: the shard ends at byte {byte}, before the end of the sample; fetch the shard again"
        )
        return DataLostError(msg)


class RangeReader(FileReader):
    """Reads the members of neighbours with one pread, those that lie far from each other one by one.

    members  the names of `table`'s members, behind the image where there is one
    image    whether the first of them is the payload
    """

    def __init__(
        self,
        paths: tuple[str, ...],
        table: Spans,
        members: tuple[str, ...],
        slabs: Slabs,
        stop: threading.Event | None,
        store: Store,
        *,
        image: bool,
    ) -> None:
        super().__init__(paths, table, slabs, stop, store)
        self._table, self._members, self._image = table, members, image

    def _fill(self, block: Block, partition: Int64s, position: Int64s) -> None:
        row = self._table.base[partition] + position
        at, size = self._table.at[:, row], self._table.size[:, row]
        there, (low, high) = at > 0, _bounds(at, size)
        far = (high - low - size.sum(axis=0) > FAR_BYTES) & (low > 0)
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
        self._compare(block, row, members)

    def _compare(self, block: Block, row: Int64s, members: list[Pieces]) -> None:
        """A fault for each row whose bytes are not those of its checksums."""
        for what, pieces, crc in zip(self._named(), members, self._table.crc, strict=True):
            if crc is not None:
                compare(pieces, crc[row], block.faults, what)

    def _named(self) -> tuple[str, ...]:
        """What the members are called in faults."""
        return (*(("the image",) if self._image else ()), *(f"member {name!r}" for name in self._members))

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
        self._fill_views(partition[begin].tolist(), views, first.tolist(), block.ids, begin.tolist(), high)
        return memories, of[run], (first - starts)[run]

    def _given(self, block: Block, members: list[Pieces]) -> None:
        if self._image:
            missing = np.flatnonzero(members[0].missing).tolist()
            block.payloads[:] = members[0].views()
            for row in missing:
                block.payloads[row] = _NOTHING
            block.faults.update(dict.fromkeys(missing, _NO_IMAGE))
        block.fields.update(zip(self._members, members[1:] if self._image else members, strict=True))

    def _whole(self, shard: int, view: memoryview, at: int, ids: Int64s, row: int) -> memoryview:
        """`view`, filled; DataLostError where the shard ends before."""
        if len(view):
            got = self._read(self._file(shard), view, at, ids, row)
            if got < len(view):
                raise self._lost(ids[row], at + got)
        return view


def check_file(store: Store, path: str, stamp: Stamp, told: str = "ShardSet") -> None:
    """SourceChangedError where the file at `path` is not what it was; DataLostError where there is none."""
    try:
        _check(path, stamp, store.stamp(path), told)
    except SourceNotFoundError as error:
        raise gone(path) from error


def _check(path: str, stamp: Stamp, now: Stamp, told: str) -> None:
    if changed := stamp.change(now):
        msg = f"{path}: a shard must not change after it was indexed; {changed}; make a new {told} to read it as it is"
        raise SourceChangedError(msg)


def gone(path: str) -> DataLostError:
    """Of a shard that was there."""
    return DataLostError(f"{path}: a shard must not be removed while it is read; the file is gone; put it back")


def runs_of(partition: Int64s, position: Int64s, low: Int64s, high: Int64s) -> tuple[Int64s, Int64s]:
    """Begin and end of the rows that each read takes in: neighbours with little between them, up to RUN_BYTES."""
    gap = low[1:] - high[:-1]
    joined = (np.diff(partition) == 0) & (np.diff(position) == 1) & (low[1:] > 0) & (low[:-1] > 0)
    joined &= (gap >= 0) & (gap <= 4096 + (high - low)[1:] // 4)
    borders = np.concatenate([[0], np.flatnonzero(~joined) + 1, [len(low)]]) if len(low) else np.zeros(1, np.int64)
    begins, ends = borders[:-1], borders[1:]
    if (((high[ends - 1] - low[begins]) <= RUN_BYTES) | (ends - begins == 1)).all():
        return begins, ends
    cut: list[int] = []
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        while end - begin > 1 and high[end - 1] - low[begin] > RUN_BYTES:
            cut.append(begin)
            begin += max(1, int(np.searchsorted(high[begin:end], low[begin] + RUN_BYTES, side="right")))  # noqa: PLW2901
        if begin < end:
            cut.append(begin)
    return np.asarray(cut, np.int64), np.asarray([*cut[1:], len(low)], np.int64)
