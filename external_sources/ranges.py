"""Records of files, or members of them, read by byte ranges: one read for a run of neighbours, one for a lone record.

The law: a file that is not what was indexed, before the first of a block's reads or after the last, costs the read. No
byte is copied twice: what is given are views of the memory that the kernel wrote. None is read that was not asked for
but what lies between members of one record, or between neighbours, that are read together.

A dense lease gets the rows of each member side by side, in the order that was asked for: a batch is a slice of them.
"""

from __future__ import annotations

import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple

import numpy as np

from dali_feed.errors import (
    ConfigError,
    DaliFeedError,
    DataLostError,
    SourceChangedError,
    SourceError,
    SourceNotFoundError,
)
from dali_feed.native import library as native
from dali_feed.records.gauges import StorageStats, storage_of
from dali_feed.records.pieces import Pieces
from dali_feed.records.source import Block, Fault, Int64s, Lease, RowReader
from dali_feed.storage.store import File, FileOf, FileReads, LocalFile, Stamp, Store
from dali_feed.storage.striping import StripedFile

RUN_BYTES = 4 << 20  # half a slab: two runs fill one, and none needs a map of its own
FAR_BYTES = 64 << 10
ALIGNED = 64  # bytes: of a cache line
MANY, SMALL = 32, 32 << 10  # reads, and their mean bytes, of which Python's time would be more than the kernel's
NONE = -1  # of a member that a record lacks, and of a checksum that nobody knows
_NOWHERE = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class FileTable:
    """All records of all files, file after file: row base[p] + k is record k of file p.

    kind     of source, as messages name it
    stamps   what each file was when it was indexed
    digests  of what each file's index says
    counts   records of each, int64 (files,); `base` the row that each begins at
    """

    kind: str
    paths: tuple[str, ...]
    stamps: tuple[Stamp, ...]
    digests: tuple[str, ...]
    counts: Int64s
    base: Int64s

    def located(self, rows: Int64s) -> tuple[Int64s, Int64s]:
        """File and place in it of each row, int64 (n,) each."""
        file = np.searchsorted(self.base + self.counts, rows, side="right")
        return file, rows - self.base[file]


@dataclass(frozen=True, slots=True)
class Spans:
    """Where members of all records lie in their files.

    names     of the members
    at, size  int64 (members, rows); `at` -1: a record lacks one
    crc       CRC-32 of each member's bytes, int64 (rows,), -1 where nobody knows; None: of none is it known
    """

    names: tuple[str, ...]
    at: Int64s
    size: Int64s
    crc: tuple[Int64s | None, ...]

    def of(self, row: Int64s, file: Int64s, position: Int64s) -> tuple[Int64s, Int64s]:
        """`at` and `size` of rows, which are those `position`s in those files; int64 (members, n) each."""
        del file, position
        return self.at[:, row], self.size[:, row]

    @classmethod
    def one(cls, name: str, at: Int64s, size: Int64s) -> Spans:
        """Of one member, without checksums."""
        return cls((name,), at[None], size[None], (None,))


@dataclass(frozen=True, slots=True)
class EvenSpans:
    """Where records of one size lie, one behind the other: the first of each file at `first`, int64 (files,)."""

    names: tuple[str, ...]
    first: Int64s
    bytes: int

    @property
    def crc(self) -> tuple[None, ...]:
        """None is known."""
        return (None,) * len(self.names)

    def of(self, row: Int64s, file: Int64s, position: Int64s) -> tuple[Int64s, Int64s]:
        """See `Spans.of`."""
        at = (self.first[file] + position * self.bytes)[None][: len(self.names)]  # where labels alone are read: none
        return at, np.full(at.shape, self.bytes, np.int64)


def _bounds(at: Int64s, size: Int64s) -> tuple[Int64s, Int64s]:
    """From and up to which byte the members of each row lie; -1 where it has none."""
    low = np.where(at >= 0, at, _NOWHERE).min(axis=0, initial=_NOWHERE)
    low[low == _NOWHERE] = NONE
    return low, (at + size).max(axis=0, initial=NONE)


class RangeReader(RowReader):
    """Reads the members of neighbours with one pread, those that lie far from each other one by one.

    table   of all files, and `store` how their bytes are read
    spans   where what is read lies
    finish  makes the block's values of what was read, a `Pieces` per member of the spans; None: they are the values
    locate  the row of the table at each partition and position, -1 for a position that holds no record; None: a
            partition is a file, a position a record's number in it
    """

    def __init__(
        self,
        table: FileTable,
        store: Store,
        spans: Spans | EvenSpans,
        stop: threading.Event | None = None,
        *,
        finish: Callable[[Block, list[Pieces]], None] | None = None,
        locate: Callable[[Int64s, Int64s], Int64s] | None = None,
        ends: Int64s | None = None,
    ) -> None:
        super().__init__(table.kind, table.counts if ends is None else ends, stop)
        self._table, self._store, self._spans = table, store.metered(), spans
        self._finish, self._locate = finish, locate
        self._open: OrderedDict[int, File] = OrderedDict()
        self._left: tuple[StorageStats, ...] = ()  # what the files measured that are closed

    def close(self) -> None:
        """Close all files. Safe to call twice."""
        while self._open:
            self._let_go(self._open.popitem()[1])
        super().close()

    def storage(self) -> tuple[StorageStats, ...]:
        """What its files have measured, or their store for this reader, where they do."""
        meter = self._store.meter
        own = () if meter is None else (meter.stats(),)
        return storage_of(list(self._open.values()), self._left, own)

    def _fill(self, block: Block, partition: Int64s, position: Int64s) -> None:
        if self._locate is None:
            file, row = partition, self._table.base[partition] + position
            at, size = self._spans.of(row, file, position)
        else:
            row = self._locate(partition, position)
            gone = row < 0
            block.absent = gone if gone.any() else None
            row = row.clip(0)
            file, position = self._table.located(row)
            at, size = self._spans.of(row, file, position)
            at, size = np.where(gone, NONE, at), np.where(gone, 0, size)
        try:
            if block.lease.dense:
                members = self._read_dense(_Rows(block.lease, row, file), at, size)
            else:
                members = self._read_apart(_Rows(block.lease, row, file, *_bounds(at, size)), position, at, size)
        finally:
            self._keep(sum(each.kept for each in self._open.values()))
        for k in np.flatnonzero(np.bincount(file)).tolist():
            if k in self._open:  # what was closed was looked at then
                self._check(k, self._open[k])
        for nth, (name, pieces, crc) in enumerate(zip(self._spans.names, members, self._spans.crc, strict=True)):
            block.values[name] = pieces
            for k, reason in () if crc is None else wrong_crc(name, pieces, crc[row]):
                opened = self._file(int(file[k]))
                if isinstance(opened, StripedFile):
                    reason += f"; it lies in {', '.join(opened.files(int(at[nth, k]), int(size[nth, k])))}"  # noqa: PLW2901
                block.faults.setdefault(k, Fault("source", reason, name))
        if self._finish is not None:
            self._finish(block, members)

    def _read_dense(self, rows: _Rows, at: Int64s, size: Int64s) -> list[Pieces]:
        """All rows of a member side by side, and one member behind the other, in one memory."""
        has = at >= 0
        length = size if has.all() else np.where(has, size, 0)
        sums = -(-length.sum(axis=1) // ALIGNED) * ALIGNED
        to = (np.cumsum(sums) - sums)[:, None] + np.cumsum(length, axis=1) - length
        room = rows.lease.room(int(sums.sum()))
        # Record by record, as they lie in their files where they are read in order: then nobody has to sort them.
        file = rows.file if len(at) == 1 else np.repeat(rows.file, len(at))
        wanted = FileRows(file, at.T.ravel(), length.T.ravel(), to.T.ravel(), room)
        there = np.flatnonzero(wanted.size)
        wanted = wanted if len(there) == len(file) else wanted.taken(there)
        for k in fill_rows(self._store, self._file, wanted, self._stop).tolist():  # short, stopped, or an error
            (view,) = wanted.taken(np.array([k])).views()
            self._lone(rows, int(there[k]) // len(at), view, int(wanted.at[k]))
        evens = [int(its[0]) if len(its) and (its == its[0]).all() else 0 for its in length]
        return [
            Pieces([room], each - 1, its, sizes, lent=True, even=even)
            for each, its, sizes, even in zip(has.astype(np.int64), to, length, evens, strict=True)
        ]

    def _read_apart(self, rows: _Rows, position: Int64s, at: Int64s, size: Int64s) -> list[Pieces]:
        """Where neighbours lie in one read's memory, as they lie in their file."""
        file, low, high = rows.file, rows.low, rows.high
        far = (high - low - size.sum(axis=0) > FAR_BYTES) & (low >= 0)
        together = np.where(far, NONE, low), np.where(far, NONE, high)
        begin, end = runs_of(file, position, *together)
        read = together[0][begin] >= 0
        memories, of, base = self._read_runs(rows, begin[read], end[read])
        members = [
            Pieces(memories, np.where(has, of, NONE), np.where(has, offset - base, 0), length)
            for has, offset, length in zip(at >= 0, at, size, strict=True)
        ]
        for k in np.flatnonzero(far).tolist():
            for pieces, offset, length in zip(members, at[:, k].tolist(), size[:, k].tolist(), strict=True):
                if offset >= 0:
                    pieces[k] = self._lone(rows, k, rows.lease.room(length), offset)
        return members

    def _read_runs(self, rows: _Rows, begin: Int64s, end: Int64s) -> tuple[list[memoryview], Int64s, Int64s]:
        """Read runs of rows: the memories that they lie in, and of each row which of them, and the byte it begins at.

        A memory is a slab full of runs, each from a multiple of ALIGNED on: lone members of one size then lie at one
        distance from each other, though the labels behind them have one digit or three.
        """
        first = rows.low[begin]
        sizes = rows.high[end - 1] - first
        run = np.searchsorted(begin, np.arange(len(rows.file)), side="right") - 1  # a row of no run may be given any
        if not len(begin):
            return [], run, run
        memories, of, starts = rooms_of(rows.lease, sizes)
        for k, memory in enumerate(memories):
            its = slice(*np.searchsorted(of, [k, k + 1]).tolist())
            self._fill_room(
                rows, FileRows(rows.file[begin[its]], first[its], sizes[its], starts[its], memory), begin[its]
            )
        return memories, of[run], (first - starts)[run]

    def _fill_room(self, rows: _Rows, wanted: FileRows, begin: Int64s) -> None:
        """Fill a memory from bytes of files, each piece with rows from `begin` on."""
        if len(begin) >= MANY and wanted.size.sum() <= SMALL * len(begin):
            late = fill_rows(self._store, self._file, wanted, self._stop)
        else:
            late = wanted.read(self._store, self._file, self._stop)
        for k in late.tolist():
            # Short, stopped, or an error, of which the careful way tells.
            row, at = int(begin[k]), int(wanted.at[k])
            (view,) = wanted.taken(np.array([k])).views()
            got = self._read(rows, row, view, at)
            if got < len(view):
                row += int(np.argmax(rows.high[row:] > at + got))
                raise self._lost(rows, row, at + got)

    def _lone(self, rows: _Rows, row: int, view: memoryview, at: int) -> memoryview:
        """`view`, filled; DataLostError where the file ends before."""
        if len(view):
            got = self._read(rows, row, view, at)
            if got < len(view):
                raise self._lost(rows, row, at + got)
        return view

    def _read(self, rows: _Rows, row: int, view: memoryview, at: int) -> int:
        """Fill `view` from byte `at` of the row's file; return how many bytes there were."""
        self._check_stop()
        try:
            return self._file(int(rows.file[row])).read(view, at)
        except OSError as error:
            what = f"{error.strerror} (errno {error.errno})"
            msg = f"{self._where(rows, row)}: the shard must be readable; found: {what}; check the disk"
            raise SourceError(msg) from error

    def _check(self, k: int, file: File) -> None:
        _check(self._table.paths[k], self._table.stamps[k], file.stamp(), self._table.kind)

    def _file(self, k: int) -> File:
        file = self._open.get(k)
        if file is not None:
            self._open.move_to_end(k)
            return file
        path = self._table.paths[k]
        try:
            file = self._store.open(path, self._stop)
        except SourceNotFoundError as error:
            raise gone(path) from error
        try:
            self._check(k, file)
            if self._pool is not None and self._pool.most is not None and file.kept > self._pool.most:
                rule = f"Tuning(memory={self._pool.most}): must hold a shard that is unpacked in memory"
                raise ConfigError(f"{rule}; {path} takes {file.kept} bytes. Give more, or write smaller shards")
        except DaliFeedError:
            file.close()
            raise
        self._open[k] = file
        if len(self._open) > self._store.most_open:
            oldest, old = self._open.popitem(last=False)
            try:
                self._check(oldest, old)  # this block may have read it
            finally:
                self._let_go(old)
        return file

    def _let_go(self, file: File) -> None:
        self._left = storage_of([file], self._left)
        file.close()

    def _where(self, rows: _Rows, row: int) -> str:
        k = int(rows.file[row])
        return f"{self._table.paths[k]}#{int(rows.row[row] - self._table.base[k])}"

    def _lost(self, rows: _Rows, row: int, byte: int) -> DataLostError:
        where = self._where(rows, row)
        return DataLostError(
            f"{where}: the shard ends at byte {byte}, before the end of the sample; fetch the shard again"
        )


@dataclass(frozen=True, slots=True)
class _Rows:
    """What is read: of each row of a block its row in the table, its file, and from and up to which byte it lies.

    low, high  of rows that are not read one by one
    """

    lease: Lease
    row: Int64s
    file: Int64s
    low: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    high: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))


def rooms_of(lease: Lease, sizes: Int64s) -> tuple[list[memoryview], Int64s, Int64s]:
    """Room for pieces of these sizes, at least one: memories, as full as slabs go, which of them each is in, and where.

    Each begins at a multiple of ALIGNED.
    """
    stops = np.cumsum(-(-sizes // ALIGNED) * ALIGNED)
    starts = np.concatenate([[0], stops[:-1]])
    memories, of, a = list[memoryview](), np.empty(len(sizes), np.int64), 0
    while a < len(sizes):
        b = max(a + 1, int(np.searchsorted(stops, starts[a] + lease.slab_bytes, side="right")))
        memory = lease.room(int(starts[b - 1] - starts[a] + sizes[b - 1]))
        starts[a:b] -= starts[a]
        of[a:b] = len(memories)
        memories.append(memory)
        a = b
    return memories, of, starts


def wrong_crc(name: str, values: Iterable[memoryview | None], crc: Int64s) -> Iterator[tuple[int, str]]:
    """The rows whose bytes are not those of their CRC-32, and what is said of each."""
    for row, (view, known) in enumerate(zip(values, crc.tolist(), strict=True)):
        if known != NONE and view is not None and (now := zlib.crc32(view)) != known:
            reason = f"member {name!r} is not what was packed: its CRC-32 is {now:08x}, and the index has {known:08x}"
            yield row, f"{reason}; fetch the shard again, or pack it again"


def check_file(store: Store, path: str, stamp: Stamp, kind: str) -> None:
    """SourceChangedError where the file at `path` is not what it was; DataLostError where there is none."""
    try:
        _check(path, stamp, store.stamp(path), kind)
    except SourceNotFoundError as error:
        raise gone(path) from error


def _check(path: str, stamp: Stamp, now: Stamp, kind: str) -> None:
    if changed := stamp.change(now):
        msg = f"{path}: a shard must not change after it was indexed; {changed}; make a new {kind} to read it as it is"
        raise SourceChangedError(msg)


def gone(path: str) -> DataLostError:
    """Of a shard that was there."""
    return DataLostError(f"{path}: a shard must not be removed while it is read; the file is gone; put it back")


def runs_of(partition: Int64s, position: Int64s, low: Int64s, high: Int64s) -> tuple[Int64s, Int64s]:
    """Begin and end of the rows that each read takes in: neighbours with little between them, up to RUN_BYTES."""
    gap = low[1:] - high[:-1]
    joined = (np.diff(partition) == 0) & (np.diff(position) == 1) & (low[1:] >= 0) & (low[:-1] >= 0)
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


# Rows of files, read to where they belong: neighbours by one read, thousands of rows by one call of C.
#
# The law: a row's bytes are those of its file, or it is among the late ones; which rows the page cache
# had changes when they come, never what they are. What it has not is left to the store, which knows its disks.


CALL_BYTES = 16 << 20  # of one call, between which `stop` is heard


class FileRows(NamedTuple):
    """Row k is the `size[k]` bytes from byte `at[k]` of the file `file[k]`, and goes to `room[to[k]:]`.

    file, at, size, to  int64 (n,)
    """

    file: Int64s
    at: Int64s
    size: Int64s
    to: Int64s
    room: memoryview

    def views(self) -> list[memoryview]:
        """Where each goes."""
        return [self.room[a:b] for a, b in zip(self.to.tolist(), (self.to + self.size).tolist(), strict=True)]

    def taken(self, rows: Int64s) -> FileRows:
        """Those rows, in that order."""
        return FileRows(self.file[rows], self.at[rows], self.size[rows], self.to[rows], self.room)

    def read(self, store: Store, file_of: FileOf, stop: threading.Event) -> Int64s:
        """Have the store read all; gives the rows that did not come whole, int64."""
        counts = store.fill(FileReads(file_of, self.file.tolist(), self.views(), self.at.tolist(), stop))
        return np.flatnonzero(self.size != np.array(counts, np.int64))


def fill_rows(store: Store, file_of: FileOf, rows: FileRows, stop: threading.Event) -> Int64s:
    """Read all rows, in any order; gives those that did not come whole, int64, of which `File.read` says more.

    `file_of` is as in `Store.fill`.
    """
    late = _at_once(store, file_of, rows, stop)
    if len(late) and not stop.is_set():
        late = late[rows.taken(late).read(store, file_of, stop)]
    return late


def _at_once(store: Store, file_of: FileOf, rows: FileRows, stop: threading.Event) -> Int64s:
    """Read what mounted files have in the page cache, and long runs of neighbours; gives the rows that did not come.

    Where there are no loops in C none comes.
    """
    late, out = list[Int64s](), np.frombuffer(rows.room, np.uint8)
    for files, order in _calls(rows, store.most_open):
        fds = np.full(files[-1] + 1, -1, np.int32)
        for k in () if stop.is_set() else files:
            file = file_of(k)
            if isinstance(file, LocalFile) and _is_plain(file):
                fds[k] = file.fds[0]
        begun = perf_counter()
        filled = native.fill(fds, rows.file, rows.at, rows.size, rows.to, out, order)
        if filled is None:
            return np.arange(len(rows.file))
        late.append(filled.late)
        if store.meter is not None:
            store.meter.alike(filled.reads, perf_counter() - begun, filled.bytes)
    return np.sort(np.concatenate([np.zeros(0, np.int64), *late]))


def _is_plain(file: LocalFile) -> bool:
    """Whether it is one file, whose page cache can be asked, and which nobody else counts or reads ahead of."""
    return file.at_once and not file.ahead and file.meter is None


def _calls(rows: FileRows, most_open: int) -> Iterator[tuple[list[int], Int64s | None]]:
    """The files of each call, no more than may be open, and its rows as they lie in them; None: all, as they are."""
    files = np.flatnonzero(np.bincount(rows.file))
    place = (rows.file << 44) + rows.at
    order = None if (place[1:] >= place[:-1]).all() else np.argsort(place)
    if 0 < len(files) <= most_open and rows.size.sum() <= CALL_BYTES:
        yield files.tolist(), order
        return
    line = np.arange(len(place)) if order is None else order
    nth, ends = np.searchsorted(files, rows.file[line]) // most_open, np.cumsum(rows.size[line]) // CALL_BYTES
    for part in np.split(line, np.flatnonzero(np.diff(nth) + np.diff(ends)) + 1):
        if len(part):
            yield np.flatnonzero(np.bincount(rows.file[part])).tolist(), part
