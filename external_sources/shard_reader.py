"""Read samples of tar shards into slabs: one pread for a run of neighbours, one for a lone sample.

The law: a sample that lacks a member or whose label is no number costs its own row; a shard
that is not what was indexed, before the first of a block's reads or after the last, costs the read. No byte
is copied twice: payloads are views of the slab that the kernel wrote.
"""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dali_feed.errors import (
    ClosedError,
    ConfigError,
    DataLostError,
    SourceChangedError,
    SourceError,
    SourceNotFoundError,
)
from dali_feed.external_sources.stamps import Stamp
from dali_feed.external_sources.tar_index import open_shard
from dali_feed.records.source import Block, Extents, Int64s, Lease, Slabs, unpack_ids

__all__ = ["FAR_BYTES", "ShardFiles", "ShardReader", "ShardTable", "Shards", "check_shard", "room_for", "runs_of"]

RUN_BYTES = 4 << 20  # half a slab: two runs fill one, and none needs a map of its own
FAR_BYTES = 64 << 10
OPEN_FILES = 128
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

    `label` is the suffix and, for JSON, the key of labels.
    """

    image: Int64s
    image_bytes: Int64s
    label: tuple[str, str] | None
    label_at: Int64s
    label_bytes: Int64s


class ShardFiles:
    """What readers of shards share: files that are what they were, and reads that end where they should."""

    told = "ShardSet"  # whose reader it is, in messages

    def __init__(self, paths: tuple[str, ...], table: Shards, slabs: Slabs, stop: threading.Event | None) -> None:
        self._paths = paths
        self._shards = table
        self._slabs = slabs
        self._stop = stop or threading.Event()
        self._open: OrderedDict[int, int] = OrderedDict()
        self._closed = False

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
        table = self._shards
        shards = len(table.counts)
        inside = (extents.partition >= 0) & (extents.partition < shards) & (extents.start >= 0)
        if not (inside & (extents.stop <= table.counts[extents.partition.clip(0, shards - 1)])).all():
            msg = f"{self.told}: extents must lie inside the snapshot; found one that does not"
            raise ConfigError(msg)
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
            os.close(self._open.popitem()[1])

    def _fill(self, block: Block) -> None:
        """Read all rows of a block."""
        raise NotImplementedError

    def _check_read(self, partition: Int64s) -> None:
        """The shards that a block came from are still what they were."""
        for shard in np.unique(partition).tolist():
            if shard in self._open:
                _check(self._paths[shard], self._shards.stamps[shard], os.fstat(self._open[shard]), self.told)

    def _read(self, fd: int, view: memoryview, at: int, ids: Int64s, row: int) -> int:
        """Fill `view` from byte `at`; return how many bytes there were."""
        if self._stop.is_set():
            msg = f"{self.told}: the read was stopped"
            raise ClosedError(msg)
        try:
            got = more = os.preadv(fd, (view,), at)
            while more and got < len(view):  # a read may come short before the end of a file
                got += (more := os.preadv(fd, (view[got:],), at + got))
        except OSError as error:
            found = f"{error.strerror} (errno {error.errno})"
            msg = f"{self._where(ids[row])}: reading the shard gave: {found}; check the disk"
            raise SourceError(msg) from error
        return got

    def _fill_views(
        self, shards: list[int], views: list[memoryview], at: list[int], ids: Int64s, rows: list[int]
    ) -> None:
        """Fill each view from a byte of a shard; DataLostError, of the row that it begins with, where that ends before.

        Written out: of a few KB each, what Python does for one read costs more than the read.
        """
        opened, stopped, preadv = self._open, self._stop.is_set, os.preadv
        for shard, view, byte, row in zip(shards, views, at, rows, strict=True):
            fd = opened.get(shard)
            if fd is None:
                fd = self._file(shard)
            try:
                got = -1 if stopped() else preadv(fd, (view,), byte)
            except OSError:
                got = -1
            if got != len(view):  # short, stopped, or an error, of which the careful way tells
                got = self._read(fd, view, byte, ids, row)
                if got < len(view):
                    raise self._lost(ids[row], byte + got)

    def _far(self, fd: int, size: int, at: int, ids: Int64s, row: int) -> bytes:
        text = bytearray(size)
        got = self._read(fd, memoryview(text), at, ids, row)
        if got < size:
            raise self._lost(ids[row], at + got)
        return bytes(text)

    def _file(self, shard: int) -> int:
        fd = self._open.get(shard)
        if fd is not None:
            self._open.move_to_end(shard)
            return fd
        path = self._paths[shard]
        try:
            fd = open_shard(path)
        except SourceNotFoundError as error:
            raise _gone(path) from error
        try:
            _check(path, self._shards.stamps[shard], os.fstat(fd), self.told)
        except SourceChangedError:
            os.close(fd)
            raise
        self._open[shard] = fd
        if len(self._open) > OPEN_FILES:
            oldest, old = self._open.popitem(last=False)
            try:
                # This block may have read it.
                _check(self._paths[oldest], self._shards.stamps[oldest], os.fstat(old), self.told)
            finally:
                os.close(old)
        return fd

    def _where(self, sample: np.int64) -> str:
        partition, position = unpack_ids(np.asarray(sample))
        return f"{self._paths[int(partition)]}#{int(position)}"

    def _lost(self, sample: np.int64, byte: int) -> DataLostError:
        msg = f"{self._where(sample)}: the shard ends at byte {byte}, before the sample does; fetch the shard again"
        return DataLostError(msg)


class ShardReader(ShardFiles):
    """Reads rows of the table into slabs: one pread for a run of neighbours, one for a lone sample."""

    def __init__(self, paths: tuple[str, ...], table: ShardTable, slabs: Slabs, stop: threading.Event | None) -> None:
        super().__init__(paths, table, slabs, stop)
        self._table = table

    def _fill(self, block: Block) -> None:
        table = self._table
        partition, position = unpack_ids(block.ids)
        row = table.base[partition] + position
        image, size = table.image[row], table.image_bytes[row]
        label, label_size = table.label_at[row], table.label_bytes[row]
        # What to read of each sample: the image, and its label with it unless that lies far off.
        low, high = np.minimum(image, label), np.maximum(image + size, label + label_size)
        near = (label > 0) & (high - low - size - label_size <= FAR_BYTES)
        low, high = np.where(near, low, image), np.where(near, high, image + size)
        begins, ends = runs_of(partition, position, low, high)
        room = room_for(block.lease, int((high[ends - 1] - low[begins]).sum()))
        shards, lows, highs, labels = partition.tolist(), low.tolist(), high.tolist(), label.tolist()
        images, images_end = image.tolist(), (image + size).tolist()
        labels_end, with_image = (label + label_size).tolist(), near.tolist()
        texts: list[bytes] = [b""] * len(row)
        payloads = block.payloads
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            at = lows[begin]
            if not at:  # no image member: nothing to read
                continue
            fd = self._file(shards[begin])
            view = room(highs[end - 1] - at)
            got = self._read(fd, view, at, block.ids, begin)
            if got < len(view):
                short = next(k for k in range(begin, end) if highs[k] > at + got)
                raise self._lost(block.ids[short], at + got)
            for k in range(begin, end):
                payloads[k] = view[images[k] - at : images_end[k] - at]
                if with_image[k]:
                    texts[k] = view[labels[k] - at : labels_end[k] - at].tobytes()
                elif labels[k]:
                    texts[k] = self._far(fd, labels_end[k] - labels[k], labels[k], block.ids, k)
        for k in np.flatnonzero(image == 0).tolist():
            block.faults[k] = "the sample has no image member"
        self._check_read(partition)
        if table.label is not None:
            block.fields["label"] = _labels(texts, labels, table.label, block.faults)


def check_shard(path: str, stamp: Stamp, told: str = "ShardSet") -> None:
    """SourceChangedError where the file at `path` is not what it was; DataLostError where there is none."""
    try:
        status = os.stat(path)
    except FileNotFoundError as error:
        raise _gone(path) from error
    except OSError as error:
        msg = f"{path}: a shard must be readable; found: {error.strerror} (errno {error.errno})"
        raise SourceError(msg) from error
    _check(path, stamp, status, told)


def _check(path: str, stamp: Stamp, status: os.stat_result, told: str) -> None:
    if changed := stamp.change(Stamp.of(status)):
        msg = f"{path}: a shard must not change after it was indexed; {changed}; make a new {told} to read it as it is"
        raise SourceChangedError(msg)


def _gone(path: str) -> DataLostError:
    return DataLostError(f"{path}: a shard must stay while it is read; the file is gone; put it back")


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
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
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
