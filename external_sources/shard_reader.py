"""Read samples of tar shards into slabs: one pread for a run of neighbours, one for a lone sample.

The law: a sample that lacks a member or whose label is no number costs its own row; a shard
that is not what was indexed, before the first of a block's reads or after the last, costs the read. No byte
is copied twice: payloads are views of the slab that the kernel wrote.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.errors import (
    ClosedError,
    DaliFeedError,
    DataLostError,
    FormatError,
    SourceChangedError,
    SourceError,
    SourceNotFoundError,
)
from dali_feed.external_sources.checksums import compare
from dali_feed.formats.json_text import loads
from dali_feed.records.source import Block, Coming, Extents, Int64s, Lease, Slabs, unpack_ids
from dali_feed.records.storage_stats import StorageStats, in_all, storage_of
from dali_feed.storage.disk_cache import CachedStore
from dali_feed.storage.store import File, Stamp, Store

__all__ = [
    "FAR_BYTES",
    "ShardFiles",
    "ShardReader",
    "ShardTable",
    "Shards",
    "check_shard",
    "foresee",
    "gone",
    "room_for",
    "runs_of",
]

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
        return in_all((*self._left, *own, *storage_of(list(self._open.values()))))

    def _let_go(self, file: File) -> None:
        self._left = in_all((*self._left, *storage_of([file])))
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


def foresee(
    store: CachedStore,
    paths: tuple[str, ...],
    table: Shards,
    coming: Coming,
    spans: Callable[[Int64s], tuple[Int64s, Int64s]],
) -> None:
    """Tell a store what will be read: of each row's bytes `spans` says from and up to where, 0 for none."""
    extents, this = coming()
    partition, position = unpack_ids(extents.ids())
    low, high = spans(table.base[partition] + position)
    there = low > 0
    size = (high - low)[there]
    store.foresee(paths, table.stamps, partition[there], low[there], size, int(there[:this].sum()))


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
