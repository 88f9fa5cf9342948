"""What the tests of sources share: rows as dicts, bytes of values that must be there, how few reads they took."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from dali_feed.columns import Column, Image
from dali_feed.columns.columns import Columns
from dali_feed.columns.request import open_reader
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import Block, Extents, Source


def taken(view: memoryview | None) -> bytes:
    """A value as bytes; None fails the test."""
    assert view is not None, "the record has none"
    return bytes(view)


def plain(value: Any) -> Any:
    """A value of a block that stays when its memory goes back: views as bytes, arrays as lists."""
    if isinstance(value, memoryview):
        return bytes(value)
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def everything(source: Source) -> Extents:
    """All positions of a source, in the order of its partitions."""
    snapshot = source.snapshot()
    return Extents(np.arange(len(snapshot.names)), snapshot.starts, snapshot.stops)


def rows_of(block: Block) -> list[dict[str, Any]]:
    """Each row's values by name, None where it has none; {} of an absent one; {"fault": reason} of a bad one."""
    absent, columns = set(block.absent_rows()), list(block.values.items())
    found: list[dict[str, Any]] = []
    for k in range(len(block.ids)):
        if k in absent:
            found.append({})
        elif k in block.faults:
            found.append({"fault": block.faults[k].reason})
        else:
            found.append({name: plain(values[k]) for name, values in columns})
    return found


def rows(
    source: Source, *names: str, extents: Extents | None = None, stop: threading.Event | None = None
) -> list[dict[str, Any]]:
    """What records have of these names, of every position or of those in `extents`, as `rows_of` gives them.

    Without names it is what the columns of the source's preset are made of, by the names of the columns. No memory is
    kept.
    """
    members = Reads(source, *names).members
    pool = SlabPool(1 << 20)
    reader, lease = open_reader(source, members.values(), stop), pool.lease()
    try:
        block = reader.read(everything(source) if extents is None else extents, lease)
        block.values = {name: block.values[member] for name, member in members.items()}
        assert block.lease is lease
        return rows_of(block)
    finally:
        lease.release()
        reader.close()
        assert pool.leased == 0


def pictures(
    source: Source, extents: Extents | None = None, stop: threading.Event | None = None
) -> list[tuple[bytes | None, int | None, str | None]]:
    """Image, label and reason of every position, or of those in `extents`: what there is of them, by the preset.

    They are as the source gives them, before the columns: nothing is screened, and what is missing is None.
    """
    found = rows(source, extents=extents, stop=stop)
    labels = [row.get("label") for row in found]
    whole = [int(label) if isinstance(label, bytes | int | float) else label for label in labels]
    return [(row.get("image"), label, row.get("fault")) for row, label in zip(found, whole, strict=True)]


class Reads:
    """A reader of some names, or of what a source's preset is made of, that takes its leases of a pool of its own."""

    def __init__(self, source: Source, *names: str, stop: threading.Event | None = None) -> None:
        self.members = {name: name for name in names} or {
            name: source.image_of(column.member) if isinstance(column, Image) else column.member
            for name, column in source.preset.items()
        }
        self.pool, self.reader = SlabPool(), open_reader(source, self.members.values(), stop)

    def read(self, extents: Extents) -> Block:
        """A block, whose lease the caller may give back."""
        lease = self.pool.lease()
        try:
            block = self.reader.read(extents, lease)
        except BaseException:
            lease.release()
            raise
        block.values = {name: block.values[member] for name, member in self.members.items()}
        return block

    def first(self, count: int, partition: int = 0) -> Block:
        """Its first records."""
        return self.read(Extents.one(partition, 0, count))

    def close(self) -> None:
        """The reader's."""
        self.reader.close()


def columns_of(source: Source, columns: Mapping[str, Column] | None = None) -> Block:
    """All records as columns have them, those of the source's preset unless told."""
    made = Columns(source, columns)
    reader = open_reader(source, made.members, optional=made.optional)
    block = reader.read(everything(source), SlabPool().lease())
    made.settle(block)
    return made(block)


def reasons(block: Block) -> dict[int, str]:
    """Of each row that is a bad record why."""
    return {row: fault.reason for row, fault in block.faults.items()}


def read_sizes(patch: pytest.MonkeyPatch) -> list[int]:
    """The bytes that each read from now on asks for, in order."""
    sizes: list[int] = []
    real = os.preadv

    def recording(fd: int, views: Sequence[memoryview], at: int, flags: int = 0) -> int:
        got = real(fd, views, at, flags)  # what the page cache lacks raises here, and is read again
        sizes.append(len(views[0]))
        return got

    patch.setattr(os, "preadv", recording)
    return sizes
