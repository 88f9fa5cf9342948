"""What the tests of sources share: rows as tuples, bytes of payloads that must be there, how few reads they took."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from dali_feed.records.extents import Extents
from dali_feed.records.slabs import SlabPool


def taken(view: memoryview | None) -> bytes:
    """A payload as bytes; None, an absent position, fails the test."""
    assert view is not None, "the position is absent"
    return bytes(view)


def rows(
    source: Any, extents: Extents | None = None, stop: threading.Event | None = None
) -> list[tuple[Any, Any, Any]]:
    """(payload or None, label or None, fault or None) of every position, or of those in `extents`; no slab is kept."""
    snapshot = source.snapshot()
    if extents is None:
        extents = Extents(np.arange(len(snapshot.names)), snapshot.starts, snapshot.stops)
    pool = SlabPool(1 << 20)
    reader = source.reader(pool, stop)
    block = reader.read(extents)
    labels = block.fields["label"].tolist() if "label" in block.fields else [None] * len(block.ids)
    found = [
        (None if k in block.faults and not payload else payload, label, block.faults.get(k))
        for k, (payload, label) in enumerate(zip(map(taken, block.payloads), labels, strict=True))
    ]
    block.lease.release()
    reader.close()
    assert pool.leased == 0
    return found


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
