"""plan: every sample once per epoch, any position restored by arithmetic and read alone, world size without effect."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.images import QUICK, labelled, text
from torchvision.transforms import v2

from dali_feed import BadRecords
from dali_feed.errors import ConfigError, SourceEmptyError
from dali_feed.feed import Feed
from dali_feed.plan.order import EpochPlan, Order, Shuffle, canonical, resolve
from dali_feed.records.extents import Extents, Present, pack_ids, unpack_ids
from dali_feed.records.source import Snapshot
from dali_feed.testing.scripted import Corrupt, Gap, ScriptedSource


def snapshot(
    *runs: tuple[int, int],
    extent: int = 4,
    record_bytes: int = 1000,
    random_access: bool = False,
    interleaved: bool = False,
    absent: frozenset[tuple[int, int]] | None = None,
) -> Snapshot:
    """A snapshot whose partitions hold positions start..stop-1, and which knows those that are `absent`."""
    starts, stops = (np.array([run[k] for run in runs], np.int64) for k in (0, 1))
    names = tuple(f"p{n}" for n in range(len(runs)))
    present = None
    if absent is not None:
        flags = [np.array([(p, k) not in absent for k in range(*run)], bool) for p, run in enumerate(runs)]
        present = Present.of_flags(starts.tolist(), flags)
    order = (extent, record_bytes, random_access, interleaved)
    return Snapshot("a-source", names, starts, stops, *order, "f", present=present)


def all_ids(snap: Snapshot) -> list[int]:
    """Ids of all records, partition by partition."""
    ends = zip(*(column.tolist() for column in snap.numbers), strict=True)
    return [k for p, (a, b) in enumerate(ends) for k in snap.located(Extents.one(p, a, b)).ids().tolist()]


@dataclass(frozen=True)
class Case:
    """A plan and what it was made from."""

    snap: Snapshot
    order: Order
    args: dict[str, Any]

    @property
    def plan(self) -> EpochPlan:
        """A new plan each time: nothing can be carried over."""
        return EpochPlan(self.snap, self.order, **self.args)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Partitions with any start, empty ones too, any holes; any extent, window, lanes; fewer samples than lanes."""
    runs = draw(st.lists(st.tuples(st.integers(0, 2**39), st.integers(0, 40)), min_size=1, max_size=6))
    if not any(n for _, n in runs):
        runs.append((3, 1))
    positions = [(p, k) for p, (start, n) in enumerate(runs) for k in range(start, start + n)]
    absent = frozenset(draw(st.lists(st.sampled_from(positions), max_size=len(positions) - 1)))
    snap = snapshot(
        *((start, start + n) for start, n in runs),
        interleaved=draw(st.booleans()),
        absent=absent if draw(st.booleans()) else None,
    )
    order = Order(draw(st.booleans()), draw(st.integers(1, 12)), draw(st.integers(1, 6)))
    args = {
        "seed": draw(st.integers(0, 2**64 - 1)),
        "epoch": draw(st.integers(0, 1000)),
        "lanes": draw(st.integers(1, 9)),
        "drop_last": draw(st.booleans()),
    }
    return Case(snap, order, args)


def dealt(plan: EpochPlan) -> list[list[int]]:
    """What each lane gives."""
    return [plan.ids(lane, 0, plan.lane_length).tolist() for lane in range(plan.lanes)]


@settings(deadline=None)
@given(cases())
def test_every_sample_once(case: Case) -> None:
    """Without the pad, which repeats the line's beginning, or the drop, each sample is dealt exactly once."""
    lanes = dealt(case.plan)
    assert {len(lane) for lane in lanes} == {case.plan.lane_length}
    given_ids, want = sorted(chain.from_iterable(lanes)), sorted(all_ids(case.snap))
    total, n = len(want), case.args["lanes"]
    if case.args["drop_last"]:
        assert len(given_ids) == total // n * n
        assert len(set(given_ids)) == len(given_ids)
        assert set(given_ids) <= set(want)
    else:
        assert len(given_ids) == -(-total // n) * n
        rounds = len(given_ids) // total
        counts = [given_ids.count(i) for i in want]
        assert min(counts) == rounds
        assert max(counts) <= rounds + 1
        assert set(given_ids) == set(want)


class Counted(EpochPlan):
    """Counts how often a lane's windows are worked out."""

    times = 0

    def bounds(self, lane: int) -> Any:
        """See `EpochPlan.bounds`."""
        self.times += 1
        return super().bounds(lane)


@settings(deadline=None)
@given(cases(), st.integers(1, 7))
def test_repeats_are_known_by_their_places(case: Case, step: int) -> None:
    """Without them each sample stands once. Asked batch by batch a plan looks for them once, where some can be."""
    plan = Counted(case.snap, case.order, **case.args)
    lanes, kept = range(plan.lanes), list[int]()
    steps = [(at, min(at + step, plan.lane_length)) for at in range(0, plan.lane_length, step)]
    repeated = [np.concatenate([plan.repeated(lane, *span) for span in steps] or [np.empty(0, bool)]) for lane in lanes]
    times = plan.times
    for lane, flags in zip(lanes, repeated, strict=True):
        kept += plan.ids(lane, 0, plan.lane_length)[~flags].tolist()
    assert len(kept) == len(set(kept)) == plan.lanes * plan.lane_length - plan.repeats
    assert times <= sum(flags.any() for flags in repeated)


@settings(deadline=None)
@given(cases())
def test_pad_and_drop(case: Case) -> None:
    """Lanes end to end are the line of one lane, padded with its own beginning, or, with drop_last, ending early."""
    plain = Order(case.order.shuffled, 1 if case.order.shuffled else case.order.extent, 1)  # windows mix larger extents
    (line,) = dealt(EpochPlan(case.snap, plain, **(case.args | {"lanes": 1, "drop_last": False})))
    lanes = list(chain.from_iterable(dealt(EpochPlan(case.snap, plain, **case.args))))
    assert lanes == (line * (len(lanes) // len(line) + 1))[: len(lanes)]


@settings(deadline=None)
@given(cases())
def test_windows_partition_each_lane(case: Case) -> None:
    """Windows lie end to end in a lane, hold `window` extents or fewer, and deal each of their rows once."""
    plan = case.plan
    for lane in range(plan.lanes):
        edges = plan.bounds(lane)
        assert edges[0] == 0
        assert edges[-1] == plan.lane_length
        assert plan.lane_length == 0 or (np.diff(edges) > 0).all()
        for first, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            if first == stop:
                continue
            window = plan.window(lane, first, stop)
            assert (window.at, len(window)) == (lane * plan.lane_length + first, stop - first)
            assert len(window.ends) <= case.order.window
            assert (window.extents.lengths > 0).all()
            assert (
                0 < np.diff(window.ends, prepend=0).min() <= np.diff(window.ends, prepend=0).max() <= case.order.extent
            )
            assert window.ends[-1] == len(window)
            assert set(window.ends) <= set(np.cumsum(window.extents.lengths))
            ids = window.extents.ids()
            if window.order is not None:
                np.testing.assert_array_equal(np.sort(window.order), np.arange(len(window)))
                ids = ids[window.order]
            np.testing.assert_array_equal(plan.ids(lane, first, stop), ids)


@settings(deadline=None)
@given(cases(), st.data())
def test_restored_position_equals_the_suffix(case: Case, data: st.DataObject) -> None:
    """A plan that is asked from position k on gives what the whole gives there; so does any slice of it."""
    plan = case.plan
    lane = data.draw(st.integers(0, plan.lanes - 1))
    whole = plan.ids(lane, 0, plan.lane_length)
    first = data.draw(st.integers(0, plan.lane_length))
    stop = data.draw(st.integers(first, plan.lane_length))
    again = case.plan  # nothing is carried over
    np.testing.assert_array_equal(again.ids(lane, first, plan.lane_length), whole[first:])
    np.testing.assert_array_equal(again.ids(lane, first, stop), whole[first:stop])


def test_windows_mix_samples() -> None:
    """Extents of a window are mixed sample by sample: neighbours of the line are rarely neighbours of the order."""
    plan = EpochPlan(snapshot((0, 4000), extent=100), Order(True, 100, 10), seed=0, epoch=0)
    (lane,) = dealt(plan)
    assert sum(abs(np.diff(lane)) == 1) < 20
    # the k-th window still holds the k-th ten extents of the line, so a reader reads ten extents per thousand
    assert all(len({i // 100 for i in lane[k : k + 1000]}) == 10 for k in range(0, 4000, 1000))


def test_unshuffled_topics_take_partitions_in_turn() -> None:
    """shuffle=False on an interleaved source takes an extent of each partition in turn, and drops out who is done."""
    snap = snapshot((10, 15), (0, 0), (0, 2), (7, 14), interleaved=True)
    (ids,) = dealt(EpochPlan(snap, Order(False, 2, 3), seed=0, epoch=0))
    partition, position = unpack_ids(np.array(ids))
    assert list(zip(partition.tolist(), position.tolist(), strict=True)) == [
        *((0, 10), (0, 11), (2, 0), (2, 1), (3, 7), (3, 8)),
        *((0, 12), (0, 13), (3, 9), (3, 10), (0, 14), (3, 11), (3, 12), (3, 13)),
    ]


@settings(deadline=None)
@given(cases(), st.data())
def test_explicit_indices(case: Case, data: st.DataObject) -> None:
    """Indices name samples of the canonical line, repeats included, and come in the order given."""
    line = case.snap.located(canonical(case.snap, case.snap.extent)).ids()
    picked = data.draw(st.lists(st.integers(0, len(line) - 1), min_size=1, max_size=50))
    plan = EpochPlan(case.snap, case.order, seed=1, epoch=1, indices=np.array(picked))
    assert dealt(plan) == [line[picked].tolist()]
    lanes = EpochPlan(case.snap, case.order, seed=1, epoch=1, indices=np.array(picked), lanes=3)
    assert list(chain.from_iterable(dealt(lanes)))[: len(picked)] == line[picked].tolist()


@pytest.mark.parametrize(
    ("shuffle", "random_access", "record_bytes", "expected"),
    [
        (True, True, 100_000, Order(True, 1, 1024)),  # single records are cheap: a uniform permutation
        (True, True, 1_000_000, Order(True, 1, 256)),  # ... of which no more than 256 MB are in memory
        (True, True, 10**10, Order(True, 1, 1)),  # ... or one
        (True, False, 100_000, Order(True, 320, 8)),  # else extents of the source's size, 256 MB of them
        (True, False, 10**8, Order(True, 320, 1)),
        (False, True, 100_000, Order(False, 320, 4)),  # in order: about 1,024 records at a time
        (False, False, 2_000_000, Order(False, 320, 1)),
        (Shuffle(), True, 100_000, Order(True, 1, 1024)),
        (Shuffle(extent=64), True, 100_000, Order(True, 64, 40)),
        (Shuffle(window=5), False, 100_000, Order(True, 320, 5)),
        (Shuffle(extent=1), False, 100_000, Order(True, 1, 1024)),
        (Shuffle(extent=2, window=3), False, 0, Order(True, 2, 3)),
    ],
)
def test_defaults(shuffle: bool | Shuffle, random_access: bool, record_bytes: int, expected: Order) -> None:
    """resolve() fills in what Shuffle's docstring says."""
    snap = snapshot((0, 10), extent=320, record_bytes=record_bytes, random_access=random_access)
    assert resolve(shuffle, snap) == expected


@pytest.mark.parametrize(
    ("shuffle", "extents", "window"),
    [
        (True, (320, 50), 8),  # 256 MB of the largest
        (True, (1, 1), 1024),  # or as many records
        (False, (320, 50), 4),
        (Shuffle(window=5), (320, 50), 5),
    ],
)
def test_defaults_of_parts(shuffle: bool | Shuffle, extents: tuple[int, ...], window: int) -> None:
    """Of a source made of several each part keeps its own extents, and a window has as many of either."""
    parts = tuple(snapshot((0, 10), extent=extent, record_bytes=100_000) for extent in extents)
    orders = tuple(Order(shuffle is not False, extent, window) for extent in extents)
    assert resolve(shuffle, replace(parts[0], parts=parts)) == replace(orders[0], parts=orders)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "8"])
@pytest.mark.parametrize("name", ["extent", "window"])
def test_shuffle_refuses(name: str, value: object) -> None:
    """Sizes that are no positive ints are refused by name, with what was found."""
    with pytest.raises(ConfigError, match=rf"Shuffle\({name}=\.\.\.\): must be an int of at least 1") as error:
        Shuffle(**{name: value})  # type: ignore[arg-type]
    assert repr(value) in str(error.value)


def test_empty_sources_and_samplers() -> None:
    """An epoch of nothing is a SourceEmptyError that names the source."""
    for snap, indices in ((snapshot((5, 5), (0, 0)), None), (snapshot((0, 3)), np.empty(0, np.int64))):
        with pytest.raises(SourceEmptyError, match="a-source"):
            EpochPlan(snap, Order(False, 2, 2), seed=0, epoch=0, indices=indices)


def test_holes_that_are_known_change_which_and_not_how() -> None:
    """A partition of six records among holes is dealt as one of six records without holes, each under its position."""
    there = [11, 12, 15, 20, 21, 29]
    absent = frozenset((0, k) for k in range(10, 30) if k not in there)
    for order in (Order(True, 1, 4), Order(True, 2, 2), Order(False, 4, 1)):
        plain, holed = snapshot((0, 6)), snapshot((10, 30), absent=absent)
        ((a,), (b,)) = (dealt(EpochPlan(snap, order, seed=3, epoch=1)) for snap in (plain, holed))
        assert b == [there[k] for k in a]
    assert len(holed) == 6
    assert holed.positions == 20


def test_a_hundred_million_samples() -> None:
    """A plan of a large topic costs memory and work by extents alone, and far positions are as near as the first."""
    snap = snapshot(*((0, 10**7) for _ in range(10)), extent=10_000, interleaved=True)
    plan = EpochPlan(snap, Order(True, 10_000, 8), seed=0, epoch=0, lanes=8)
    edges = plan.bounds(7)
    tail = plan.ids(7, plan.lane_length - 5, plan.lane_length)
    assert len(edges) == 10_000 // 8 // 8 + 2
    np.testing.assert_array_equal(tail, plan.ids(7, int(edges[-2]), plan.lane_length)[-5:])


@settings(deadline=None)
@given(cases(), st.data())
def test_progress_counts_what_was_given(case: Case, data: st.DataObject) -> None:
    """The figure per partition is that of the ids themselves, at any position."""
    plan, partitions = case.plan, len(case.snap.names)
    consumed = data.draw(st.integers(0, plan.lane_length))
    partition, _ = unpack_ids(np.concatenate([plan.ids(lane, 0, consumed) for lane in range(plan.lanes)]))
    assert plan.dealt(consumed, partitions).tolist() == np.bincount(partition, minlength=partitions).tolist()


FAULTS = {0: Gap(), 10: Corrupt(), 11: Gap(), 12: Corrupt("torn"), 17: (text(), 1), 35: Gap()}


def test_restoring_reads_nothing_before_the_window() -> None:
    """Each lane reads the window it stood in at most once, and nothing that came before it."""
    items: list[Any] = [FAULTS.get(n, item) for n, item in enumerate(labelled(37, sizes=True))]
    options: dict[str, Any] = {"transform": v2.RandomResizedCrop(16), "shuffle": Shuffle(3, 2), "tuning": QUICK}
    options |= {"lanes": 2, "bad": BadRecords(limit=None)}
    with Feed(ScriptedSource(items, partitions=2, extent=3), 2, **options) as feed:
        plan = feed.plan
        assert isinstance(plan, EpochPlan)
        batches = iter(feed)
        for _ in range(9):
            next(batches)
        state = json.loads(json.dumps(feed.state_dict()))
    assert state["consumed"] == 9
    source = ScriptedSource(items, partitions=2, extent=3)
    with Feed(source, 2, **options) as other:
        other.load_state_dict(state)
        assert source.reads == []
        list(other)
    may = []
    for lane in range(2):
        bounds = plan.bounds(lane).tolist()
        first = max(edge for edge in bounds if edge <= 9)
        may += plan.ids(lane, first, bounds[-1]).tolist()
    read = [n for p, a, b in source.reads for n in pack_ids(p, np.arange(a, b)).tolist()]
    assert sorted(read) == sorted(may)
    assert len(read) < 37
