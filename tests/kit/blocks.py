"""What the tests of sources share: rows as dicts, bytes of values that must be there, how few reads they took."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

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
    members = {name: name for name in names} or {name: column.member for name, column in source.preset.items()}
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
