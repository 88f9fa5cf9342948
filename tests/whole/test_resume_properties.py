"""Properties of plan and state over random sources: every sample once, one order at every world size, any position.

What a rank is given is computed here from the plan alone, as the feed deals it: rank r holds the lanes l with
l % R == r, and a batch takes equally many samples of each. No thread runs and nothing is decoded, so that many
sources can be tried; tests/contract/resume/test_resumes.py holds the feed itself to the same.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from kit.properties import examples

from dali_feed.errors import StateError
from dali_feed.feed import Feed
from dali_feed.plan import state as states
from dali_feed.plan.order import EpochPlan, Shuffle, resolve
from dali_feed.records.extents import pack_ids, unpack_ids
from dali_feed.records.source import Snapshot
from dali_feed.testing import ScriptedSource

QUICK = examples(times=1.2)


@dataclass(frozen=True)
class Run:
    """A source and how it is run; `share` is how many slots a global batch takes from each lane."""

    snapshot: Snapshot
    shuffle: bool | Shuffle
    seed: int
    epoch: int
    lanes: int
    share: int
    drop_last: bool

    @property
    def world_sizes(self) -> list[int]:
        """Those that divide the lanes."""
        return [size for size in range(1, self.lanes + 1) if self.lanes % size == 0]

    @property
    def plan(self) -> EpochPlan:
        """A new one each time: nothing can be carried over."""
        order = resolve(self.shuffle, self.snapshot)
        options: dict[str, Any] = {"seed": self.seed, "epoch": self.epoch, "lanes": self.lanes}
        return EpochPlan(self.snapshot, order, drop_last=self.drop_last, **options)

    @property
    def everything(self) -> list[int]:
        """Ids of all positions."""
        s = self.snapshot
        parts = [pack_ids(p, np.arange(a, b)) for p, (a, b) in enumerate(zip(s.starts, s.stops, strict=True))]
        return [int(n) for n in np.concatenate(parts)]

    def state(self, consumed: int) -> dict[str, Any]:
        """A state of `consumed` samples per lane, through JSON."""
        made = states.made_for(
            self.snapshot,
            resolve(self.shuffle, self.snapshot),
            seed=self.seed,
            lanes=self.lanes,
            drop_last=self.drop_last,
            sampler=None,
        )
        packed = states.pack(made, self.snapshot, epoch=self.epoch, consumed=consumed, info={})
        return dict(json.loads(json.dumps(packed)))

    def batches(self, rank: int, size: int, consumed: int = 0) -> list[list[list[int]]]:
        """What a rank gets from a position on: per batch, per lane of its own, the ids."""
        plan = self.plan
        full, rest = divmod(plan.lane_length - consumed, self.share)
        counts = [self.share] * full + ([rest] if rest and not self.drop_last else [])
        edges = (consumed + np.cumsum([0, *counts])).tolist()
        mine = range(rank, self.lanes, size)
        return [[plan.ids(lane, a, b).tolist() for lane in mine] for a, b in pairwise(edges)]

    def globally(self, size: int, consumed: int = 0) -> list[list[int]]:
        """Global batches of all ranks of a world size, lane by lane."""
        ranks = [self.batches(rank, size, consumed) for rank in range(size)]
        assert len({len(one) for one in ranks}) == 1, "ranks must give equally many batches"
        joined = []
        for parts in zip(*ranks, strict=True):
            lanes = [parts[lane % size][lane // size] for lane in range(self.lanes)]
            joined.append(list(chain.from_iterable(lanes)))
        return joined


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """Partitions of any length, empty ones too, cut anywhere; any order, lanes, share, seed and epoch."""
    lengths = draw(st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(any))
    starts = np.array([draw(st.integers(0, 2**39)) for _ in lengths], np.int64)
    snapshot = Snapshot(
        "random",
        tuple(f"p{n}" for n in range(len(lengths))),
        starts,
        starts + np.array(lengths, np.int64),
        extent=draw(st.integers(1, 12)),
        record_bytes=draw(st.sampled_from([1, 1000, 40_000_000, 10**9])),
        random_access=draw(st.booleans()),
        interleaved=draw(st.booleans()),
        fingerprint="f",
    )
    sizes = st.none() | st.integers(1, 9)
    shuffle = draw(st.booleans() | st.builds(Shuffle, sizes, sizes))
    return Run(
        snapshot,
        shuffle,
        seed=draw(st.integers(0, 2**64 - 1)),
        epoch=draw(st.integers(0, 2**32 - 1)),
        lanes=draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12])),
        share=draw(st.integers(1, 5)),
        drop_last=draw(st.booleans()),
    )


@QUICK
@given(runs())
def test_every_sample_once_but_for_the_stated_rule(run: Run) -> None:
    """With drop_last fewer than a global batch's samples are missing; else fewer than `lanes` slots are filled up."""
    given_ids = Counter(chain.from_iterable(run.globally(1)))
    everything = run.everything
    assert set(given_ids) <= set(everything)
    total, slots = len(everything), given_ids.total()
    if run.drop_last:
        assert max(given_ids.values(), default=1) == 1
        assert total - slots < run.lanes * run.share
    else:
        assert set(given_ids) == set(everything)
        assert slots - total < run.lanes
        least, most = min(given_ids.values()), max(given_ids.values())
        assert most - least <= 1
        assert least == slots // total


@QUICK
@given(runs())
def test_global_batches_are_the_same_at_every_world_size(run: Run) -> None:
    """Whatever number of ranks divides the lanes; and all ranks give equally many batches of equal size."""
    wanted = run.globally(1)
    for size in run.world_sizes:
        assert run.globally(size) == wanted
        ranks = [run.batches(rank, size) for rank in range(size)]
        for batch in zip(*ranks, strict=True):
            assert len({sum(map(len, lanes)) for lanes in batch}) == 1


@QUICK
@given(runs(), st.data())
def test_restored_anywhere_the_suffix_follows(run: Run, data: st.DataObject) -> None:
    """A state after any batch, loaded at any world size, gives the batches that were left."""
    whole = run.globally(1)
    done = data.draw(st.integers(0, len(whole)))
    size = data.draw(st.sampled_from(run.world_sizes))
    state = run.state(sum(map(len, whole[:done])) // run.lanes)
    plan = run.plan
    states.compare(states.check(state, 2**32), run.state(0)["made_for"], run.snapshot, plan.lane_length)
    assert run.globally(size, state["consumed"]) == whole[done:]


@QUICK
@given(runs(), st.integers(1, 5), st.data())
def test_restored_with_another_batch_size_the_line_goes_on(run: Run, share: int, data: st.DataObject) -> None:
    """A position is samples per lane: in batches of any size each lane goes on where it stood."""
    whole = run.globally(1)
    done = data.draw(st.integers(0, len(whole)))
    consumed = sum(map(len, whole[:done])) // run.lanes
    other = replace(run, share=share, drop_last=False)
    assume(other.plan.lane_length == run.plan.lane_length)
    for lane in range(run.lanes):
        rest = [n for batch in other.batches(lane, run.lanes, consumed) for n in batch[0]]
        assert rest == run.plan.ids(lane, consumed, run.plan.lane_length).tolist()


@QUICK
@given(runs(), st.data())
def test_progress_counts_what_was_given(run: Run, data: st.DataObject) -> None:
    """The figure per partition is that of the ids themselves, at any position."""
    plan, partitions = run.plan, len(run.snapshot.names)
    consumed = data.draw(st.integers(0, plan.lane_length))
    ids = [plan.ids(lane, 0, consumed) for lane in range(run.lanes)]
    partition, _ = unpack_ids(np.concatenate(ids))
    assert plan.given(consumed, partitions).tolist() == np.bincount(partition, minlength=partitions).tolist()


CHANGES: dict[str, Any] = {
    "source": "another fingerprint",
    "seed": 7,
    "lanes": 1000,
    "shuffle": "neither",
    "extent": 99_999,
    "window": 99_999,
    "drop_last": "neither",
    "sampler": "0123456789abcdef",
}


@QUICK
@given(runs(), st.sets(st.sampled_from(sorted(CHANGES)), min_size=1))
def test_a_refusal_lists_exactly_what_differs(run: Run, changed: set[str]) -> None:
    """Each difference is told with what the state has and what is here, and nothing else is."""
    assume(run.seed != CHANGES["seed"])
    state = run.state(0)
    made = dict(state["made_for"])
    state["made_for"] |= {name: CHANGES[name] for name in changed}
    with pytest.raises(StateError) as caught:
        states.compare(state, made, run.snapshot, run.plan.lane_length)
    told = str(caught.value).partition("; ")[2]
    wanted = [
        f"{name}: the state has {CHANGES[name]!r}, this loader {made[name]!r}" for name in made if name in changed
    ]
    assert all(line in told for line in wanted)
    assert told.count(": the state has") == len(wanted)


@examples(times=0.3)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=3).filter(any), st.sampled_from([1, 2, 4]), st.booleans())
def test_the_feed_promises_what_the_plan_holds(lengths: list[int], lanes: int, drop_last: bool) -> None:
    """len() of a feed is the plan's number of batches, at every world size."""
    source = ScriptedSource([b"x"] * sum(lengths), partitions=len(lengths))
    run = Run(source.snapshot(), True, 3, 0, lanes, 2, drop_last)
    for size in run.world_sizes:
        with Feed(
            source, 2 * lanes // size, shuffle=True, seed=3, lanes=lanes, world_size=size, drop_last=drop_last
        ) as feed:
            assert len(feed) == len(run.globally(size))
