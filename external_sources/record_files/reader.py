"""Read whole records into slabs: one read for a run of neighbours, one for a lone record.

The law: a record whose checksum is wrong costs its own row; a file that is not what was indexed costs the read. What a
record holds is a view of the slab, but for a record that its file holds in parts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from dali_feed.errors import DaliFeedError
from dali_feed.external_sources.shard_reader import ShardFiles, Shards, room_for, runs_of
from dali_feed.records.passing import PassingOn
from dali_feed.records.source import LABEL, Block, Extents, Int64s, Slabs, unpack_ids
from dali_feed.storage.store import Store

__all__ = ["Files", "LabelledReader", "RecordReader", "RecordTable", "called"]

NO_LABEL = -1
_UNTOLD = {type(None): "none", memoryview: "bytes"}


@dataclass(frozen=True, slots=True)
class RecordTable(Shards):
    """Where the pieces of all records lie, int64 (rows,) each, as in `RecordIndex`."""

    at: Int64s
    size: Int64s


@dataclass(frozen=True, slots=True)
class Files:
    """What readers of one source share: its files, and what a piece holds (see `Framing.value`)."""

    name: str
    paths: tuple[str, ...]
    store: Store
    value: Callable[[memoryview], memoryview | str]


@contextmanager
def called(name: str) -> Iterator[None]:
    """What is shared with tar shards names their source in its errors; here it is another one."""
    try:
        yield
    except DaliFeedError as error:
        text = str(error)
        if "ShardSet" not in text:
            raise
        raise type(error)(text.replace("ShardSet", name)) from error.__cause__


class RecordReader(ShardFiles):
    """Gives the records' bytes, as payloads where they are images, and as members."""

    def __init__(
        self,
        files: Files,
        table: RecordTable,
        slabs: Slabs,
        stop: threading.Event,
        *,
        image: bool,
        members: tuple[str, ...],
    ) -> None:
        super().__init__(files.paths, table, slabs, stop, files.store)
        self._files, self._table = files, table
        self._image, self._members = image, members

    def read(self, extents: Extents) -> Block:
        """See `ShardFiles.read`."""
        with called(self._files.name):
            return super().read(extents)

    def _fill(self, block: Block) -> None:
        partition, position = unpack_ids(block.ids)
        row = self._table.base[partition] + position
        low = self._table.at[row]
        high = low + self._table.size[row]
        begins, ends = runs_of(partition, position, low, high)
        first = low[begins]
        sizes = high[ends - 1] - first
        room = room_for(block.lease, int(sizes.sum()))
        views, begin = [room(size) for size in sizes.tolist()], begins.tolist()
        self._fill_views(partition[begins].tolist(), views, first.tolist(), block.ids, begin, high)
        values: list[memoryview | None] = [None] * len(row)
        lows, highs, value = low.tolist(), high.tolist(), self._files.value
        for view, at, k0, k1 in zip(views, first.tolist(), begin, ends.tolist(), strict=True):
            for k in range(k0, k1):
                found = value(view[lows[k] - at : highs[k] - at])
                if isinstance(found, str):
                    block.faults[k] = found
                else:
                    values[k] = found
        self._check_read(partition)
        if self._image:
            block.payloads[:] = [memoryview(b"") if found is None else found for found in values]
        block.fields.update(dict.fromkeys(self._members, values))


class LabelledReader(PassingOn):
    """Gives the member that is the label as an int64 array, the field `label`."""

    def __init__(self, reader: Any, member: str) -> None:
        super().__init__(reader)
        self._member = member

    def read(self, extents: Extents) -> Block:
        """The source's block; a record without an integer for a label is a fault."""
        block: Block = self._reader.read(extents)
        found = np.full(len(block.ids), NO_LABEL, np.int64)
        for row, value in enumerate(block.fields.pop(self._member)):
            if row in block.faults:
                continue
            whole = isinstance(value, int | np.integer) or (isinstance(value, float) and value.is_integer())
            if whole and -(1 << 63) <= value < 1 << 63:
                found[row] = value
            else:
                told = repr(value) if isinstance(value, int | float) else _UNTOLD.get(type(value), "several values")
                block.faults[row] = f"the label {self._member!r} must be an integer of 64 bits; found {told}"
        block.fields[LABEL] = found
        return block
