"""Webdataset-style tar shards: many images and their labels in few large files.

A shard is a partition and a sample's index in it is its position. Samples are found through an index of
byte ranges (`tar_index`), so any record costs one read, and neighbours are read in one go.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.checks import paths_of
from dali_feed.errors import (
    ClosedError,
    ConfigError,
    DaliFeedError,
    DataLostError,
    FormatError,
    SourceChangedError,
    SourceEmptyError,
    SourceError,
    SourceNotFoundError,
)
from dali_feed.external_sources import tar as tar_index
from dali_feed.external_sources.replay import Replay
from dali_feed.external_sources.request import MemberSource, forms_of, with_formats
from dali_feed.external_sources.tar import TarIndex, compare, expected
from dali_feed.formats.format import Format
from dali_feed.formats.json_text import loads
from dali_feed.formats.named import format_of
from dali_feed.records.gauges import StorageStats, storage_of
from dali_feed.records.pieces import Pieces
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import (
    Block,
    Extents,
    Int64s,
    Lease,
    Member,
    Reader,
    Slabs,
    Snapshot,
    Source,
    alternatives,
    unpack_ids,
)
from dali_feed.storage.paths import shown, unique_names
from dali_feed.storage.sets import SetStore, store_for
from dali_feed.storage.store import File, Stamp, Store, read_at, sizes_and_times

__all__ = ["ShardFiles", "ShardSet", "Shards", "check_shard", "gone", "room_for", "runs_of"]


# Read samples of tar shards into slabs: one pread for a run of neighbours, one for a lone sample.
#
# The law: a sample that lacks a member or whose label is no number costs its own row; a shard
# that is not what was indexed, before the first of a block's reads or after the last, costs the read. No byte
# is copied twice: payloads are views of the slab that the kernel wrote.


RUN_BYTES = 4 << 20  # half a slab: two runs fill one, and none needs a map of its own
FAR_BYTES = 64 << 10
NO_LABEL = -1


@dataclass(frozen=True, slots=True)
class Shards:
    """All samples of all shards, shard after shard: row base[p] + k is sample k of shard p.

    `stamps` are what each shard was when it was indexed.
    """

    names: tuple[str, ...]
    stamps: tuple[Stamp, ...]
    digests: tuple[str, ...]
    counts: Int64s
    base: Int64s


@dataclass(frozen=True, slots=True)
class ShardTable(Shards):
    """Where images and labels lie. Offset 0 says that a sample lacks the member.

    `label` is the suffix and, for JSON, the key of labels; `image_crc`, `label_crc` are what `checksums.expected` says.
    """

    image: Int64s
    image_bytes: Int64s
    label: tuple[str, str] | None
    label_at: Int64s
    label_bytes: Int64s
    image_crc: Int64s | None = None
    label_crc: Int64s | None = None

    def spans(self, row: Int64s) -> tuple[NDArray[np.bool_], Int64s, Int64s]:
        """What to read of each sample, from and up to: the image, and its label with it unless that lies far off."""
        image, size = self.image[row], self.image_bytes[row]
        label, label_size = self.label_at[row], self.label_bytes[row]
        low, high = np.minimum(image, label), np.maximum(image + size, label + label_size)
        near = (label > 0) & (high - low - size - label_size <= FAR_BYTES)
        return near, np.where(near, low, image), np.where(near, high, image + size)


class ShardFiles:
    """What readers of shards share: files that are what they were, and reads that end where they should."""

    told = "ShardSet"  # whose reader it is, in messages

    def __init__(
        self, paths: tuple[str, ...], table: Shards, slabs: Slabs, stop: threading.Event | None, store: Store
    ) -> None:
        self._paths = paths
        self._shards = table
        self._slabs = slabs
        self._stop = stop or threading.Event()
        self._store = store.metered()
        self._open: OrderedDict[int, File] = OrderedDict()
        self._closed = False
        self._left: tuple[StorageStats, ...] = ()  # what the files measured that are closed

    def read(self, extents: Extents) -> Block:
        """All samples of `extents` in order; see `dali_feed.records.source.Reader`.

        Raises:
            ConfigError: an extent that leaves the snapshot.
            SourceChangedError: a shard is not what it was when it was indexed.
            DataLostError: a shard ends before a sample does, or is gone.
            ClosedError: the reader is closed or the stop event is set.
        """
        if self._closed:
            msg = f"{self.told}: this reader is closed; make another one"
            raise ClosedError(msg)
        extents.check_inside(self._shards.counts, self.told)
        ids = extents.ids()
        lease = self._slabs.lease()
        block = Block(ids, [memoryview(b"")] * len(ids), {}, lease)
        try:
            self._fill(block)
        except BaseException:
            lease.release()
            raise
        return block

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

    def _fill(self, block: Block) -> None:
        """Read all rows of a block."""
        raise NotImplementedError

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

    def _far(self, file: File, size: int, at: int, ids: Int64s, row: int) -> bytes:
        text = bytearray(size)
        got = self._read(file, memoryview(text), at, ids, row)
        if got < size:
            raise self._lost(ids[row], at + got)
        return bytes(text)

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


class ShardReader(ShardFiles):
    """Reads rows of the table into slabs: one pread for a run of neighbours, one for a lone sample."""

    def __init__(
        self, paths: tuple[str, ...], table: ShardTable, slabs: Slabs, stop: threading.Event | None, store: Store
    ) -> None:
        super().__init__(paths, table, slabs, stop, store)
        self._table = table

    def _fill(self, block: Block) -> None:
        table = self._table
        partition, position = unpack_ids(block.ids)
        row = table.base[partition] + position
        image, size = table.image[row], table.image_bytes[row]
        label, label_size = table.label_at[row], table.label_bytes[row]
        near, low, high = table.spans(row)
        begins, ends = runs_of(partition, position, low, high)
        there = low[begins] > 0  # else no image member: nothing to read
        begins, ends = begins[there], ends[there]
        sizes = high[ends - 1] - low[begins]
        room = room_for(block.lease, int(sizes.sum()))
        views, begin, first = [room(size) for size in sizes.tolist()], begins.tolist(), low[begins].tolist()
        self._fill_views(partition[begins].tolist(), views, first, block.ids, begin, high)
        images, images_end = image.tolist(), (image + size).tolist()
        labels, labels_end, with_image = label.tolist(), (label + label_size).tolist(), near.tolist()
        texts: list[bytes] = [b""] * len(row)
        payloads = block.payloads
        for view, at, k0, k1 in zip(views, first, begin, ends.tolist(), strict=True):
            for k in range(k0, k1):
                payloads[k] = view[images[k] - at : images_end[k] - at]
                if with_image[k]:
                    texts[k] = view[labels[k] - at : labels_end[k] - at].tobytes()
                elif labels[k]:
                    file = self._file(int(partition[k]))
                    texts[k] = self._far(file, labels_end[k] - labels[k], labels[k], block.ids, k)
        for k in np.flatnonzero(image == 0).tolist():
            block.faults[k] = "the sample has no image member"
        self._check_read(partition)
        if table.image_crc is not None:
            compare(payloads, table.image_crc[row], block.faults)
        if table.label_crc is not None:
            compare(texts, table.label_crc[row], block.faults, "the label")
        if table.label is not None:
            block.fields["label"] = _labels(texts, labels, table.label, block.faults)


def check_shard(store: Store, path: str, stamp: Stamp, told: str = "ShardSet") -> None:
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


def room_for(lease: Lease, total: int) -> Callable[[int], memoryview]:
    """Where the runs of a block go: one after the other in one piece of memory if a slab holds them all."""
    if total > lease.slab_bytes:
        return lease.room
    rest = lease.room(total)

    def room(size: int) -> memoryview:
        nonlocal rest
        view, rest = rest[:size], rest[size:]
        return view

    return room


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


def _labels(texts: list[bytes], offsets: list[int], kind: tuple[str, str], faults: dict[int, str]) -> Int64s:
    """The label of each row, int64; a row without one gets NO_LABEL and, if nothing else is wrong, a fault."""
    found = [NO_LABEL] * len(texts)
    for k, text in enumerate(texts):
        if k in faults:
            continue
        if not offsets[k]:
            faults[k] = f"the sample has no .{kind[0]} member for its label"
            continue
        try:
            found[k] = _label(text, kind)
        except ValueError as error:
            faults[k] = str(error)
    return np.array(found, np.int64)


def _label(text: bytes, kind: tuple[str, str]) -> int:
    """The label in a member; ValueError says why there is none."""
    suffix, key = kind
    value: Any
    if suffix == "cls":
        try:
            value = int(text) if b"_" not in text else None  # to Python 1_0 is a number too
        except ValueError:
            value = None
        if value is None:
            msg = f"the label must be decimal text; found {text[:40]!r}"
            raise ValueError(msg)
    else:
        try:
            record = loads(text)
        except FormatError as error:
            msg = f"the .json member with the label cannot be parsed: {error}"
            raise ValueError(msg) from error
        value = record.get(key) if isinstance(record, dict) else None
        if not isinstance(value, int) or isinstance(value, bool):
            msg = f"the label must be an integer under the key {key!r} of the .json member; found {str(value)[:40]!r}"
            raise ValueError(msg)
    if not -(1 << 63) <= value < 1 << 63:
        msg = "the label must fit in 64 bits"
        raise ValueError(msg)
    return int(value)


# Members of tar samples: which suffixes there are, and any of them read in one go with the others of its sample.
#
# The law of this file: no byte is copied twice, and none is read that was not asked for but what lies between members
# of one sample that are read together.


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


EXTENT_BYTES = 8 << 20
INDEX_THREADS = 8
IMAGE_SUFFIXES = ("jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff", "gif", "avif", "ppm", "pgm")
_ENDINGS = {"json": "json", "npy": "npy", "msgpack": "msgpack", "mp": "msgpack"}
_LOADING = threading.Lock()  # of the module, so that a ShardSet can be pickled


class ShardSet:
    """Images and labels in tar files.

    shards     one pattern or path, or a sequence of them. Patterns may hold `*`, `?`, `[..]`, `{a,b}` and
               ranges like `{0000..0099}`. One pattern's files are sorted by name; a sequence keeps its order.
               `NAME.dfset` is all of a set that `dali-feed pack` wrote; of a topic's records, as that topic
    image      suffixes of the image member; where a sample has several, the first in this list counts
    label      "cls" (a member with decimal text), "json" (a member whose key "label" is an integer), "json:KEY",
               None (no label field), or "auto": what the first sample has, cls before json
    index_dir  where indexes are kept; None: beside each shard, else in the user's cache
    storage_options  of the file system, where shards are addresses such as s3://bucket/train-{0000..0099}.tar: what
               obstore takes for it, with secrets as `FromEnv` and `FromFile`. Shown nowhere; see docs/remote.md
    format     what members hold, for `columns=`: suffix -> format, {"meta": "json"}; those that end in json, npy,
               msgpack or mp have it already. A member is then `json:body.label` too; see docs/formats.md
    check      compare what is read with its checksum, where `dali-feed pack` wrote the shard: a record that differs is
               a bad one

    Raises:
        ConfigError: an argument has a value that is not allowed, or a shard is named twice.
        SourceNotFoundError: a pattern matches nothing, or a named file is not there.
    """

    def __init__(
        self,
        shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        image: Sequence[str] = IMAGE_SUFFIXES,
        label: str | None = "auto",
        index_dir: str | os.PathLike[str] | None = None,
        format: Mapping[str, Format | str] | None = None,  # noqa: A002  what users call it
        check: bool = True,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(image, str) or not isinstance(image, Iterable) or not image or not all(map(str, image)):
            msg = f"ShardSet: image must be a non-empty sequence of suffixes such as ('jpg', 'png'); found {image!r}"
            raise ConfigError(msg)
        known = label in (None, "auto", "cls", "json") or (str(label).startswith("json:") and str(label)[5:])
        if not known:
            msg = f"ShardSet: label must be 'auto', 'cls', 'json', 'json:KEY' or None; found {label!r}"
            raise ConfigError(msg)
        patterns = paths_of("ShardSet: shards", shards)
        if not patterns:
            msg = "ShardSet: shards must name at least one file; found an empty sequence"
            raise ConfigError(msg)
        self._store = store_for(patterns, storage_options)
        self._paths = tuple(itertools.chain.from_iterable(self._store.matches(p) for p in patterns))
        if len(set(self._paths)) < len(self._paths):
            twice = next(p for p in self._paths if self._paths.count(p) > 1)
            msg = f"ShardSet: each shard may be named once; found {twice} twice; remove one of the two"
            raise ConfigError(msg)
        self._names = unique_names(self._paths)
        self._title = f"ShardSet({', '.join(map(shown, patterns[:3]))}{', ...' if len(patterns) > 3 else ''})"
        self._image = tuple(s.lower().lstrip(".").encode() for s in image)
        self._label, self._checked = label, check
        self._index_dir = index_dir
        self._forms = {name.lower(): form for name, form in forms_of(format, None, self._title).items()}
        self._table: ShardTable | None = None
        self._replay = _replay(self._store, patterns)

    def __repr__(self) -> str:
        return self._title

    def __getstate__(self) -> dict[str, Any]:
        """Without the index: another process, perhaps on another machine, looks at its own files."""
        return self.__dict__ | {"_table": None}

    @property
    def paths(self) -> tuple[str, ...]:
        """The shard files in partition order."""
        return self._paths

    @property
    def replays(self) -> bool:
        """Whether its partitions and positions are those of a topic that it was packed of."""
        return self._replay is not None

    @property
    def store(self) -> Store:
        """How their bytes are read."""
        return self._store

    @property
    def fields(self) -> tuple[str, ...]:
        """('label',) or (); label="auto" needs the index to know."""
        if self._label == "auto":
            return ("label",) if self._load().label else ()
        return ("label",) if self._label else ()

    def snapshot(self, pin: Mapping[str, Any] | None = None) -> Snapshot:
        """All samples of all shards. Indexes the shards where that has not been done.

        Raises:
            ConfigError: a pin is given, which only a source that changes has.
            SourceChangedError: a shard is not what it was when this ShardSet indexed it.
            DataLostError: it is gone.
            SourceError: a shard cannot be indexed (`tar_index.build` lists how); SourceEmptyError: no sample at all.
        """
        if pin is not None and self._replay is None:
            msg = f"{self._title}: shards are fixed by their files and take no pin; found {dict(pin)!r}"
            raise ConfigError(msg)
        known = self._table
        table = self._load()
        if known is not None:
            self._check(known)
        if self._replay is not None:
            return self._replay.snapshot(self._title, table.counts, pin)
        sizes = [stamp.size for stamp in table.stamps]
        per_sample = sum(sizes) / int(table.counts.sum())
        digest = hashlib.sha256()
        for name, size, count, index in zip(table.names, sizes, table.counts, table.digests, strict=True):
            digest.update(f"{name}\0{size}\0{count}\0{index}\n".encode(errors="surrogateescape"))
        return Snapshot(
            source=self._title,
            names=table.names,
            starts=np.zeros(len(table.counts), np.int64),
            stops=table.counts.copy(),
            extent=max(1, round(EXTENT_BYTES / per_sample)),
            record_bytes=max(1, round(float(table.image_bytes.mean()))),
            random_access=self._store.random_access,
            interleaved=False,
            fingerprint=digest.hexdigest(),
        )

    def members(self) -> tuple[Member, ...]:
        """The suffixes of the samples' files, the most frequent first."""
        return members_of(self._indexed()[1])

    def form_of(self, member: str) -> Format | None:
        """The format of a suffix: the one that was given, else by how the suffix ends; None where it has none."""
        known = self._forms.get(member.lower())
        ending = member.lower().rpartition(".")[2]
        return format_of(_ENDINGS[ending]) if known is None and ending in _ENDINGS else known

    def giving(self, image: str | None, members: tuple[str, ...]) -> Source:
        """The same samples with other members; see `records.members`."""
        return with_formats(self._giving, self.form_of, image, members)

    def _giving(self, image: str | None, members: tuple[str, ...]) -> Source:
        return ShardMembers(
            self, self._paths, self._indexed, self._store, image, members, check=self._checked, replay=self._replay
        )

    def reader(self, slabs: Slabs | None = None, stop: threading.Event | None = None) -> Reader:
        """A reader for one thread; see `dali_feed.records.source.Source`."""
        table = self._load()
        made = ShardReader(self._paths, table, SlabPool() if slabs is None else slabs, stop, self._store)
        return made if self._replay is None else self._replay.reader(made, table.counts)

    def file_stamps(self) -> bytes:
        """See `records.source.Stamped`."""
        return sizes_and_times(self._load().stamps)

    def where(self, partition: int, position: int) -> str:
        """`train-0007.tar#118`; of a topic's records `train[3]@41872 (train-0007.tar#118)`."""
        if self._replay is not None:
            return self._replay.where(partition, position, self._names, self._load().counts)
        return f"{self._names[partition]}#{position}"

    def _load(self) -> ShardTable:
        with _LOADING:
            if self._table is None:
                self._table = self._tabulated(self._indexes())
            return self._table

    def _indexes(self) -> list[tar_index.TarIndex]:
        with ThreadPoolExecutor(min(INDEX_THREADS, len(self._paths)), "dali-feed-index") as pool:
            return list(pool.map(lambda path: tar_index.load(path, self._index_dir, self._store), self._paths))

    def _indexed(self) -> tuple[ShardTable, list[tar_index.TarIndex]]:
        """The table, and the indexes that it was made of; they are kept on disk and not in memory."""
        with _LOADING:
            indexes, known = self._indexes(), self._table
            table = self._table = self._tabulated(indexes) if known is None else known
        if known is not None:
            self._check(known)
        return table, indexes

    def _check(self, table: ShardTable) -> None:
        """Check that the shards are what they were when they were indexed, before a fingerprint of them is given."""
        with ThreadPoolExecutor(min(INDEX_THREADS, len(self._paths)), "dali-feed-index") as pool:
            for _ in pool.map(partial(check_shard, self._store), self._paths, table.stamps):
                pass

    def _tabulated(self, indexes: list[tar_index.TarIndex]) -> ShardTable:
        counts = np.array([len(index) for index in indexes], np.int64)
        if not counts.any():
            msg = f"{self._title}: shards must hold samples; found none in {len(indexes)} file(s) like {self._paths[0]}"
            raise SourceEmptyError(msg)
        label = self._label_of(indexes)
        images = [index.member(self._image) for index in indexes]
        wanted = [label[0].encode()] if label else []
        labels = [index.member(wanted) for index in indexes]
        return ShardTable(
            names=self._names,
            stamps=tuple(index.stamp for index in indexes),
            digests=tuple(index.digest for index in indexes),
            counts=counts,
            base=np.cumsum(counts) - counts,
            image=np.concatenate([i[0] for i in images]),
            image_bytes=np.concatenate([i[1] for i in images]),
            label=label,
            label_at=np.concatenate([i[0] for i in labels]),
            label_bytes=np.concatenate([i[1] for i in labels]),
            image_crc=expected(indexes, self._image) if self._checked else None,
            label_crc=expected(indexes, wanted) if self._checked and wanted else None,
        )

    def _label_of(self, indexes: list[tar_index.TarIndex]) -> tuple[str, str] | None:
        """Suffix and key of the labels; for "auto" the first sample decides."""
        if self._label is None:
            return None
        if self._label != "auto":
            suffix, _, key = self._label.partition(":")
            return suffix, key or "label"
        shard = next(k for k, index in enumerate(indexes) if len(index))
        index = indexes[shard]
        if index.member([b"cls"])[0][0]:
            return "cls", ""
        at, size = (int(column[0]) for column in index.member([b"json"]))
        if not at:
            return None
        file = self._store.open(self._paths[shard])
        try:
            found = json.loads(read_at(file, size, at))
        except (ValueError, RecursionError):
            return "json", "label"  # the reader of such a sample says what is wrong with it
        finally:
            file.close()
        return ("json", "label") if isinstance(found, dict) and "label" in found else None


def _replay(store: Store, patterns: Sequence[str]) -> Replay | None:
    """The topic that a set was packed of."""
    told = store.replay(patterns) if isinstance(store, SetStore) else None
    try:
        return None if told is None else Replay.of(told)
    except (KeyError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        msg = f"{patterns[0]}: the topic of a set must be what `dali-feed pack` wrote; found {what}"
        raise DataLostError(msg) from error
