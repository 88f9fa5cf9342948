"""The order of a mixture: exact shares of every batch and lane, pure, and each part's samples once per pass."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.properties import examples

from dali_feed.errors import ConfigError
from dali_feed.external_sources import Mix
from dali_feed.plan.mixed import Apportioned, MixedPlan
from dali_feed.plan.order import Shuffle, resolve
from dali_feed.plan.state import made_for
from dali_feed.records.source import Mixture, unpack_ids, whole_shares
from dali_feed.testing import ScriptedSource

SHARES = st.lists(st.integers(0, 12), min_size=1, max_size=5).filter(any).map(tuple)


def plan(counts: list[int], weights: Any = None, lanes: int = 1, **options: Any) -> MixedPlan:
    """Of sources with so many records each; `options` are Mix's, and shuffle, epoch, seed, drop_last."""
    shuffle, epoch = options.pop("shuffle", True), options.pop("epoch", 0)
    seed, drop_last = options.pop("seed", 3), options.pop("drop_last", False)
    mixed = Mix([ScriptedSource([b"x"] * count, partitions=2) for count in counts], weights, **options)
    snapshot = mixed.snapshot()
    assert snapshot.mix is not None
    order = resolve(shuffle, snapshot)
    return MixedPlan(snapshot, snapshot.mix, order, seed=seed, epoch=epoch, lanes=lanes, drop_last=drop_last)


def ids(found: MixedPlan) -> list[list[int]]:
    """Of each lane."""
    return [found.ids(lane, 0, found.lane_length).tolist() for lane in range(found.lanes)]


@given(shares=SHARES, lanes=st.integers(1, 5), per_lane=st.integers(1, 9))
@examples(times=0.8)
def test_every_batch_has_its_shares(shares: tuple[int, ...], lanes: int, per_lane: int) -> None:
    """From the start each source is within one of its share; a batch within two, or one of two; whole ones exact."""
    dealt, batches = Apportioned(shares, lanes, 12 * per_lane), 12
    slots = np.stack([dealt.sources(lane, 0, batches * per_lane) for lane in range(lanes)], axis=1)
    one = (slots[:, :, None] == np.arange(len(shares))).astype(np.int64)
    counts = one.reshape(batches, per_lane * lanes, len(shares)).sum(axis=1)
    share = per_lane * lanes * np.asarray(shares) / sum(shares)
    since = counts.cumsum(axis=0) - np.arange(1, batches + 1)[:, None] * share
    assert np.abs(since).max() < 1
    assert np.abs(counts - share).max() < (1 + 1e-9 if sum(w > 0 for w in shares) <= 2 else 2)
    if (share == np.round(share)).all():
        assert (counts == share).all()
    of_lane = np.abs(one.cumsum(axis=0) - np.arange(1, len(one) + 1)[:, None, None] * np.asarray(shares) / sum(shares))
    assert of_lane.max() < (1 if sum(w > 0 for w in shares) <= 3 else 3)
    for lane in range(lanes):
        for count in (0, 1, len(one) // 2, len(one)):
            assert dealt.taken(lane, count).tolist() == one[:count, lane].sum(axis=0).tolist()


@pytest.mark.parametrize(
    ("shares", "lanes", "digest"),
    [
        ((7, 3), 1, "9f495387163b5388"),
        ((3, 2, 2, 2, 1, 4, 6, 2), 3, "782c4e6f1913e01f"),
        ((9, 1, 5, 0, 13), 4, "713d2d882fa07419"),
    ],
)
def test_golden_shares(shares: tuple[int, ...], lanes: int, digest: str) -> None:
    """No release may change whose slots are whose: these are pinned."""
    dealt = Apportioned(shares, lanes, 100)
    every = np.stack([dealt.sources(lane, 0, 100) for lane in range(lanes)])
    assert hashlib.sha256(every.astype("<i8").tobytes()).hexdigest()[:16] == digest


def test_long_after_the_period_counts_go_on() -> None:
    """Slots far behind the period's end are dealt, and counted, as those in it; each lane has exactly its part then."""
    dealt = Apportioned((3, 2, 2, 2, 1, 4, 6, 2), 3, 10**6)
    period = 22 * 3
    assert dealt.taken(1, 1000 * period).tolist() == [3000 * w for w in dealt.shares]
    far = np.bincount(dealt.sources(1, 0, 777), minlength=8)
    assert dealt.taken(1, 777).tolist() == far.tolist()
    assert (dealt.taken(1, 1000 * period + 777) - dealt.taken(1, 1000 * period)).tolist() == far.tolist()


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        ((0.7, 0.3), (7, 3)),
        ((1 / 3, 2 / 3), (1, 2)),
        ((3.0, 0.0, 1.0), (3, 0, 1)),
        ((1281167.0, 50000.0), (9624, 376)),
        ((1.0, 1e-9), (9999, 1)),
    ],
)
def test_weights_become_the_smallest_whole_numbers(weights: tuple[float, ...], shares: tuple[int, ...]) -> None:
    """Or parts of 10,000, where a weight above 0 is one at least."""
    assert whole_shares(weights) == shares


def test_a_schedule_is_a_function_of_the_epoch() -> None:
    """Weights jump, or go in equal steps, and stay at the last ones."""
    table = ((0, (1.0, 0.0)), (4, (0.5, 0.5)))
    jumps, steps = Mixture(table), Mixture(table, linear=True)
    assert [jumps.shares(epoch) for epoch in (0, 3, 4, 9)] == [(1, 0), (1, 0), (1, 1), (1, 1)]
    assert [steps.shares(epoch) for epoch in (0, 1, 2, 4, 9)] == [(1, 0), (7, 1), (3, 1), (1, 1), (1, 1)]
    lengths = [plan([60, 60], {0: [1, 0], 4: [1, 1]}, epoch=epoch).lane_length for epoch in (0, 4)]
    assert lengths == [60, 120]


@pytest.mark.parametrize("lanes", [1, 2, 4])
@pytest.mark.parametrize("shuffle", [True, Shuffle(3, 2), False], ids=["uniform", "windows", "in order"])
def test_by_default_nothing_comes_twice(lanes: int, shuffle: Any) -> None:
    """The epoch ends before the first source would begin again; of that one less than a lane's sample is left."""
    found = plan([40, 200], [0.5, 0.5], lanes, shuffle=shuffle)
    every = [sample for lane in ids(found) for sample in lane]
    assert len(set(every)) == len(every)
    of = Counter((unpack_ids(np.asarray(every))[0] // 2).tolist())
    assert abs(of[0] - of[1]) <= 1
    assert 40 - 2 * lanes < of[0] <= 40


def test_with_all_each_comes_and_smaller_ones_begin_again_otherwise() -> None:
    """Every record of every source comes; a second pass over the small one has another order, and is turn 1."""
    found = plan([10, 40], [1, 1], stop="all")
    (every,) = ids(found)
    assert len(every) == 80
    small = [sample for sample in every if unpack_ids(np.asarray(sample))[0] < 2]
    passes = [small[k : k + 10] for k in range(0, 40, 10)]
    assert all(sorted(one) == sorted(passes[0]) for one in passes)
    assert len({tuple(one) for one in passes}) == 4
    ((strand, _), (large, _)) = found.strands(0, 0)
    bounds = strand.bounds(0).tolist()
    assert bounds == [0, 10, 20, 30, 40]
    assert [strand.window(0, a, a + 10).turn for a in bounds[:-1]] == [0, 1, 2, 3]
    assert len({strand.window(0, a, a + 10).at for a in bounds[:-1]} | {large.window(0, 0, 40).at}) == 5
    assert sorted(large.ids(0, 0, 40).tolist()) == sorted(set(every) - set(small))


def test_windows_of_any_pass_have_places_of_their_own() -> None:
    """By which it is known: of two sources that begin again hundreds of times, in each of two lanes."""
    found = plan([2, 3], [1, 1], 2, samples=4000)
    places = [
        strand.window(lane, a, b).at
        for lane in range(2)
        for strand, _ in found.strands(lane, 0)
        for a, b in itertools.pairwise(strand.bounds(lane).tolist())
    ]
    assert len(places) > 1000
    assert len(set(places)) == len(places)
    assert {type(place) for place in places} == {int}


def test_an_epoch_of_so_many_samples() -> None:
    """`samples` divide among the lanes: one more each, or with drop_last none."""
    assert plan([10, 10], samples=101, lanes=2).lane_length == 51
    assert plan([10, 10], samples=101, lanes=2, drop_last=True).lane_length == 50
    with pytest.raises(ConfigError, match="an epoch must have at least one sample for each of lanes=4"):
        plan([10, 10], samples=3, lanes=4, drop_last=True)


def test_order_is_pure_and_of_seed_and_epoch() -> None:
    """The same again; another one of another epoch and seed, of each source."""
    first = ids(plan([30, 50], lanes=2))
    assert ids(plan([30, 50], lanes=2)) == first
    for other in (plan([30, 50], lanes=2, epoch=1), plan([30, 50], lanes=2, seed=4)):
        assert ids(other) != first
    halves = plan([30, 30])
    a, b = (strand.ids(0, 0, 30) & 0xFFFF for strand, _ in halves.strands(0, 0))
    assert a.tolist() != b.tolist(), "sources of one size have orders of their own"


def test_positions_are_counted_by_partition() -> None:
    """`given` is what the first slots of every lane were of, also inside a window and after a second pass."""
    found = plan([7, 30], [2, 3], 2, stop="all", shuffle=Shuffle(2, 2))
    for consumed in (0, 1, 5, found.lane_length // 2, found.lane_length):
        given_ids = np.array([sample for lane in range(2) for sample in found.ids(lane, 0, consumed)], np.int64)
        wanted = np.bincount(unpack_ids(given_ids)[0], minlength=4)
        assert found.dealt(consumed, 4).dtype == np.int64
        assert found.dealt(consumed, 4).tolist() == wanted.tolist()


def test_a_state_has_the_window_of_each_part() -> None:
    """What is mixed with what depends on it, so a state goes on with no other."""
    parts = [ScriptedSource([b"x"] * 40, extent=extent) for extent in (4, 8)]
    snapshot = Mix(parts).snapshot()
    windows = [
        made_for(snapshot, resolve(shuffle, snapshot), seed=0, lanes=1, drop_last=False, sampler=None)["window"]
        for shuffle in (Shuffle(window=3), False)
    ]
    assert windows == [[3, 3], [256, 128]]
