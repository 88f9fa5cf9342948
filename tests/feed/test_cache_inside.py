"""Insides that contract/feed/test_cache.py needs not: they go with what they test."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
from kit.cached_feeds import feed, scripted
from kit.images import labelled

from dali_feed import Cache
from dali_feed.errors import ClosedError
from dali_feed.records.live import PassingOn
from dali_feed.records.source import Block, Extents
from dali_feed.testing.scripted import ScriptedSource, Stall

CACHES = {
    "bytes": Cache("1MB"),
    "few bytes": Cache(20_000),
    "pixels": Cache("1MB", pixels=True),
    "few pixels": Cache(50_000, pixels=True),
}


def test_another_snapshot_is_another_cache() -> None:
    """What was kept of a source as it was is not given of the source as it is."""
    source = scripted()
    with feed(source, CACHES["bytes"]) as made:
        for _ in made:
            pass
        cache = made._machine.cache
        assert cache is not None
        snapshot = source.snapshot()
        cache.begin(snapshot)
        assert cache.stats().records
        cache.begin(replace(snapshot, fingerprint="another"))
        assert not cache.stats().records


def test_what_cannot_be_copied_is_not_kept() -> None:
    """A value of a type that nobody knows is read every time."""

    class Odd(ScriptedSource):
        def reader(self, *given: Any) -> Any:
            return OddReader(super().reader(*given))

    class OddReader(PassingOn):
        def read(self, extents: Extents) -> Block:
            block: Block = self._reader.read(extents)
            block.fields["odd"] = [object() for _ in block.payloads]
            return block

    with feed(Odd(labelled(8)), CACHES["bytes"]) as made:
        for _ in range(2):
            for batch in made:
                assert len(batch.fields["odd"]) == 8
        assert made.stats().cache.records == 0  # type: ignore[union-attr]


def test_a_payload_that_is_read_again_ends_with_the_pass() -> None:
    """A source that hangs while a dead letter's record is read anew does not hold up close()."""
    source, free = scripted(), threading.Event()
    with feed(source, CACHES["pixels"]) as made:
        for _ in made:
            pass
        partition: list[Any] = source._items[1]
        cache = made._machine.cache
        assert cache is not None
        at = next(k for k, item in enumerate(partition) if isinstance(item, tuple))
        partition[at] = Stall(free, then=partition[at])
        ended = []

        def read() -> None:
            with pytest.raises(ClosedError):
                cache.payload((1 << 40) | at, None)
            ended.append(True)

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
    thread.join(20)
    assert ended
