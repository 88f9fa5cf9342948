"""Whoever runs a dataset: our feed and torch's own loader answer the same calls alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kit.images import QUICK, labelled

from dali_feed.errors import ClosedError, StateError
from dali_feed.feed import Feed
from dali_feed.loader.loader import AnyFeed
from dali_feed.loader.torch_run import TorchFeed
from dali_feed.testing.scripted import ScriptedSource


def _ours() -> AnyFeed:
    return Feed(ScriptedSource(labelled(10)), 2, shuffle=True, seed=3, tuning=QUICK)


def _torchs() -> AnyFeed:
    return TorchFeed(
        list(range(10)),
        2,
        shuffle=True,
        sampler=None,
        batch_sampler=None,
        drop_last=False,
        seed=3,
        lanes=None,
        rank=0,
        world_size=1,
        options={},
    )


@pytest.fixture(params=[_ours, _torchs], ids=["ours", "torch"])
def feed(request: pytest.FixtureRequest) -> Iterator[AnyFeed]:
    """A feed of five batches of two."""
    made: AnyFeed = request.param()
    yield made
    made.close()


def _take(batches: Any, count: int) -> None:
    for _ in range(count):
        batches.take(None, lambda batch: batch)


def test_a_run_is_counted_alike(feed: AnyFeed) -> None:
    """Lengths, the batches left, the epoch and what a state holds, at each turn of a run."""
    told = []

    def tell() -> None:
        state = feed.state_dict()
        told.append((feed.epoch, feed.batches_left, state["epoch"], state["consumed"]))

    tell()
    batches = iter(feed)
    tell()
    _take(batches, 2)
    assert len(batches) == 3
    tell()
    _take(iter(feed), 1)  # the pass before was left; a look at the next epoch, dropped
    tell()
    list(feed)
    tell()
    feed.set_epoch(5)
    tell()
    assert told == [(0, 5, 0, 0), (0, 5, 0, 0), (0, 3, 0, 4), (1, 5, 1, 2), (2, 5, 2, 0), (5, 5, 5, 0)]
    assert (len(feed), feed.stats().batches) == (5, 8)
    assert (feed.batch_size, feed.rank, feed.world_size) == (2, 0, 1)
    feed.commit()
    assert feed.describe()


def test_a_state_is_restored_or_refused_alike(feed: AnyFeed) -> None:
    """It goes on where it was taken; one of another seed leaves the pass under way as it is."""
    batches = iter(feed)
    _take(batches, 3)
    state = feed.state_dict()
    other = {**state, "made_for": {**state["made_for"], "seed": 4}}
    with pytest.raises(StateError, match="seed: the state has 4, this loader 3"):
        feed.load_state_dict(other)
    _take(batches, 1)
    assert feed.state_dict()["consumed"] == 8
    feed.load_state_dict(state)
    assert (feed.batches_left, len(list(feed))) == (2, 2)
    with pytest.raises(ClosedError, match="has ended this pass"):
        _take(batches, 1)


def test_what_make_raises_ends_the_pass_and_does_not_count(feed: AnyFeed) -> None:
    """The batch was never given, and none behind it may come in its place."""
    batches = iter(feed)
    _take(batches, 2)

    def fails(batch: Any) -> Any:
        raise KeyError(batch)

    with pytest.raises(KeyError):
        batches.take(None, fails)
    assert feed.state_dict()["consumed"] == 4
    with pytest.raises(ClosedError, match="has ended this pass"):
        _take(batches, 1)
    assert len(list(feed)) == 5
