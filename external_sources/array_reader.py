"""Rows of arrays, read into slabs or, where they lie in memory, given as they are.

The law: a row's bytes are copied once on their way into a slab, by the kernel, and never where the array is in memory.
Files are read and not mapped: of a file that is cut while it is read the kernel says so, where a map ends the process.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.errors import ClosedError, DataLostError, SourceChangedError
from dali_feed.external_sources.array_layout import ArrayFile, RowForm
from dali_feed.external_sources.shard_reader import ShardFiles, Shards, runs_of
from dali_feed.records.arrays import Arrays
from dali_feed.records.pieces import Pieces
from dali_feed.records.source import Block, Extents, Int64s, Slabs, unpack_ids
from dali_feed.storage.local import LOCAL
from dali_feed.storage.store import Stamp

__all__ = ["ROW", "FileRows", "HeldArray", "HeldRows", "Wanted", "mapped_file"]

ROW = "row"


@dataclass(frozen=True, slots=True)
class HeldArray:
    """An array in memory; of a mapped file also its path, and what the file was."""

    array: NDArray[Any]
    file: tuple[str, Stamp] | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is read of each row.

    form    what a row is
    header  what stands before each payload, that it is an image; None: no payload is asked for
    fields  name -> member, `row` or `label`
    labels  int64, one for each row of all arrays, or None
    """

    form: RowForm
    header: bytes | None
    fields: dict[str, str]
    labels: Int64s | None

    def give(self, block: Block, rows: Int64s, pieces: Pieces) -> None:
        """Put the rows, numbered through all arrays, into the block; `pieces` are their bytes."""
        found: Any = Arrays(pieces, self.form.dtype, self.form.shape)
        if not self.form.shape and ROW in self.fields.values():
            found = pieces.together(self.form.size).view(self.form.dtype).reshape(-1)
        for name, member in self.fields.items():
            block.fields[name] = found if member == ROW else self.labels[rows]  # type: ignore[index]

    def rooms(self, block: Block) -> tuple[list[NDArray[np.uint8]], Pieces]:
        """Room for all rows, uint8 (rows, bytes) each, of which the last `form.size` bytes of each are to be filled.

        What stands before them is there. The pieces are the rows' own bytes.
        """
        head, size, count = self.header or b"", self.form.size, len(block.ids)
        stride = len(head) + size
        most = max(1, block.lease.slab_bytes // stride)
        rooms = [block.lease.room(min(most, count - k) * stride) for k in range(0, count, most)]
        arrays = [np.frombuffer(room, np.uint8).reshape(-1, stride) for room in rooms]
        nth = np.arange(count, dtype=np.int64)
        if self.header is not None:
            for array in arrays:
                array[:, : len(head)] = np.frombuffer(head, np.uint8)
            block.payloads[:] = [room[k : k + stride] for room in rooms for k in range(0, len(room), stride)]
        at = nth % most * stride + len(head)
        return arrays, Pieces(rooms, nth // most, at, np.full(count, size, np.int64))


class FileRows(ShardFiles):
    """Reads rows of files: one read for neighbours, one for a lone row."""

    told = "ArrayShards"

    def __init__(
        self,
        files: tuple[ArrayFile, ...],
        table: Shards,
        wanted: Wanted,
        slabs: Slabs,
        stop: threading.Event | None,
    ) -> None:
        super().__init__(tuple(file.path for file in files), table, slabs, stop, LOCAL)
        self._wanted = wanted
        self._at = np.array([file.at for file in files], np.int64)

    def _fill(self, block: Block) -> None:
        wanted, size = self._wanted, self._wanted.form.size
        partition, position = unpack_ids(block.ids)
        if wanted.header is None and ROW not in wanted.fields.values():
            wanted.give(block, self._shards.base[partition] + position, Pieces.none(len(partition)))
            return
        rooms, pieces = wanted.rooms(block)
        low = self._at[partition] + position * size
        for k, room in enumerate(rooms):
            first = k * len(rooms[0])
            part = slice(first, first + len(room))
            if wanted.header is None:
                # From 1 on: to runs_of a row that lies at 0 is one that is missing.
                begin, end = runs_of(partition[part], position[part], low[part] + 1, low[part] + 1 + size)
            else:
                begin, end = np.arange(len(room)), np.arange(1, len(room) + 1)
            views = [
                room[a:b, room.shape[1] - size :].reshape(-1).data
                for a, b in zip(begin.tolist(), end.tolist(), strict=True)
            ]
            rows = begin + first
            self._fill_rows(partition[rows].tolist(), views, low[rows].tolist(), block.ids, rows.tolist())
        self._check_read(partition)
        wanted.give(block, self._shards.base[partition] + position, pieces)

    def _fill_rows(
        self, shards: list[int], views: list[memoryview], at: list[int], ids: Int64s, rows: list[int]
    ) -> None:
        """As `_fill_views`, and a run that comes short is told by the row that the file ends in."""
        size = self._wanted.form.size
        try:
            self._fill_views(shards, views, at, ids, rows)
        except DataLostError:
            for shard, view, byte, row in zip(shards, views, at, rows, strict=True):
                held = self._file(shard).stamp().size
                if held < byte + len(view):
                    short = row + max(0, held - byte) // size
                    raise self._lost(ids[short], held) from None
            raise


class HeldRows:
    """Gives rows of arrays in memory: views, where they lie side by side and no image is made of them."""

    def __init__(
        self,
        arrays: tuple[HeldArray, ...],
        counts: Int64s,
        wanted: Wanted,
        slabs: Slabs,
        stop: threading.Event | None,
    ) -> None:
        self._arrays, self._counts, self._wanted, self._slabs = arrays, counts, wanted, slabs
        self._base = np.cumsum(counts) - counts
        self._plain = wanted.header is None and all(held.array.flags.c_contiguous for held in arrays)
        self._stop, self._closed = stop or threading.Event(), False

    def read(self, extents: Extents) -> Block:
        """All rows of `extents` in order; see `dali_feed.records.source.Reader`.

        Raises:
            ConfigError: an extent that leaves the arrays.
            SourceChangedError: the file of a `numpy.memmap` is not what it was.
            ClosedError: the reader is closed or the stop event is set.
        """
        if self._closed or self._stop.is_set():
            msg = "ArrayShards: this reader is closed, or its read was stopped; make another one"
            raise ClosedError(msg)
        extents.check_inside(self._counts, "ArrayShards")
        ids = extents.ids()
        block = Block(ids, [memoryview(b"")] * len(ids), {}, self._slabs.lease())
        try:
            self._fill(block, *unpack_ids(ids))
        except BaseException:
            block.lease.release()
            raise
        return block

    def close(self) -> None:
        """Nothing is open. Safe to call twice."""
        self._closed = True

    def _fill(self, block: Block, partition: Int64s, position: Int64s) -> None:
        wanted, size = self._wanted, self._wanted.form.size
        for part in np.unique(partition).tolist():
            mapped_file(self._arrays[part])
        if self._plain:
            memories = [_bytes(held.array) for held in self._arrays]
            pieces = Pieces(memories, partition, position * size, np.full(len(partition), size, np.int64))
        else:
            rooms, pieces = wanted.rooms(block)
            for k, room in enumerate(rooms):
                first = k * len(rooms[0])
                parts, rows = partition[first : first + len(room)], position[first : first + len(room)]
                for part in np.unique(parts).tolist():
                    here = np.flatnonzero(parts == part)
                    taken = np.ascontiguousarray(self._arrays[part].array[rows[here]])
                    room[here, room.shape[1] - size :] = taken.reshape(-1).view(np.uint8).reshape(len(here), size)
        wanted.give(block, self._base[partition] + position, pieces)


def _bytes(array: NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")


def mapped_file(held: HeldArray) -> None:
    """SourceChangedError where the file that an array is a map of is not what it was."""
    if held.file is None:
        return
    path, stamp = held.file
    try:
        found = stamp.change(Stamp.of(os.stat(path)))
    except OSError as error:
        found = str(error.strerror)
    if found:
        msg = f"{path}: a mapped file must stay as it is while it is read; {found}; map it again"
        raise SourceChangedError(msg)
