"""What a feed tells a source of its plan, and shards behind a cache of pieces."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from images import QUICK, Seen, jpeg, labelled, padded, seen
from member_shards import shards

from dali_feed.columns import Image, Text
from dali_feed.errors import ConfigError
from dali_feed.external_sources import DiskCache, ShardSet
from dali_feed.feed import Feed
from dali_feed.feed.foresight import lanes_here
from dali_feed.plan.order import Shuffle
from dali_feed.plan.shares import Shares
from dali_feed.records.source import Coming
from dali_feed.storage.cached import CachedStore
from dali_feed.storage.contract import Opened
from dali_feed.storage.local import LOCAL, LocalStore
from dali_feed.testing import assert_resumes_anywhere
from dali_feed.testing.scripted import ScriptedSource
from dali_feed.testing.shards import write_shards


class Told(ScriptedSource):
    """A source that keeps what it is told."""

    def foresee(self, coming: Coming) -> None:
        """Kept."""
        extents, this = coming()
        self.told = extents.ids().tolist(), this


def taken(source: Told, since: int = 0) -> list[int]:
    """Ids in the order in which they were read."""
    return [(p << 40) | k for p, start, stop in source.reads[since:] for k in range(start, stop)]


@pytest.mark.parametrize("shuffle", [True, False, Shuffle(extent=3, window=2)])
def test_a_source_is_told_what_will_be_read(shuffle: Any) -> None:
    """The rest of this epoch in the order of its reads, from the middle on too, and then the whole next one."""
    source = Told(labelled(31), partitions=2, extent=3, random_access=shuffle is True)
    with Feed(source, 4, shuffle=shuffle, lanes=1, tuning=QUICK) as feed:
        for epoch in range(2):
            before = len(source.reads)
            batches = iter(feed)
            told, this = source.told
            state = None
            for n, _ in enumerate(batches):
                state = feed.state_dict() if (epoch, n) == (1, 2) else state
            assert taken(source, before) == told[:this]
            if epoch:
                assert before_told[1] == told[:this]  # noqa: F821  of the epoch before
            before_told = told[:this], told[this:]
        assert state is not None
        feed.load_state_dict(state)
        before = len(source.reads)
        list(feed)
        told, this = source.told
        assert this <= 31
        assert set(taken(source, before)) <= set(told[:this])


def test_a_sampler_is_not_asked_before_its_time() -> None:
    """Of an order that a sampler gives this epoch alone is told."""
    source = Told(labelled(8))
    asked = []

    class Sampler:
        def __iter__(self) -> Any:
            asked.append(1)
            return iter([3, 1, 2])

    with Feed(source, 3, sampler=Sampler(), tuning=QUICK) as feed:
        list(feed)
    assert (source.told, asked) == (([3, 1, 2], 3), [1])


def test_ranks_of_a_machine_are_told_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """They share its disk: the lanes of all its ranks, and of no other's."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert [lanes_here(Shares.of(1, rank, 4, 8)) for rank in range(4)] == [[0, 1, 4, 5]] * 2 + [[2, 3, 6, 7]] * 2
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    assert lanes_here(Shares.of(1, 1, 2, 4)) == [1, 3]


class Counting(LocalStore):
    """The local store, and how many reads came to it."""

    reads = 0

    def fill(
        self,
        file_of: Callable[[int], Opened],
        files: Sequence[int],
        views: Sequence[memoryview],
        at: Sequence[int],
        stop: threading.Event,
    ) -> list[int]:
        """Noted."""
        Counting.reads += len(views)
        return LOCAL.fill(file_of, files, views, at, stop)


def counted(source: ShardSet) -> ShardSet:
    """The source with reads counted beneath its cache."""
    store = source._store
    assert isinstance(store, CachedStore)
    store._below = Counting()
    Counting.reads = 0
    return source


def epochs(source: Any, **options: Any) -> list[Seen]:
    """Two epochs."""
    with Feed(source, 4, shuffle=True, tuning=QUICK, **options) as feed:
        return [seen(batch) for _ in range(2) for batch in feed]
