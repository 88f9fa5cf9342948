"""Insides that contract/feed/test_feed.py needs not: they go with what they test."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable

import pytest
from kit.images import Seen, jpeg, labelled, seen

from dali_feed.errors import ClosedError
from dali_feed.feed import Batch, Feed
from dali_feed.feed.reading import ReadPool, ReadTask
from dali_feed.options import Tuning
from dali_feed.plan.order import canonical
from dali_feed.records.slabs import SlabPool
from dali_feed.testing.scripted import ScriptedSource, Stall

pytestmark = pytest.mark.usefixtures("each_engine")


def _all(batches: Iterable[Batch]) -> list[Seen]:
    return [seen(batch) for batch in batches]


def test_a_stalled_read_holds_back_nothing_before_it() -> None:
    """All batches that can be dealt are handed over while a later read waits, also where a batch spans windows."""
    held = threading.Event()
    items = labelled(24)
    items[12] = Stall(held, then=(jpeg(12), 12))
    for batch_size in (3, 4, 5):
        source = ScriptedSource(items, extent=6)
        held.clear()
        with Feed(source, batch_size, tuning=Tuning(threads=1, readers=1, prefetch=2)) as feed:
            feed._planning._snapshot = dataclasses.replace(
                feed.snapshot, record_bytes=8 << 20
            )  # each read is an extent
            batches = iter(feed)
            for _ in range(12 // batch_size):
                batches.take(30)
            with pytest.raises(TimeoutError):
                batches.take(0.05)
            held.set()
            assert len(_all(batches)) == -(-24 // batch_size) - 12 // batch_size


def test_a_read_that_is_asked_for_after_close_is_an_error_and_no_wait() -> None:
    """Where a thread outlives close(), because a read does, it ends with what it asks for next."""
    source = ScriptedSource(labelled(4))
    pool = ReadPool(source, SlabPool(), 1)
    task = ReadTask(canonical(source.snapshot(), 4), lambda: 0)
    pool.close()
    pool.request(task)
    with pytest.raises(ClosedError, match="after close"):
        task.take()
