"""The next epoch begins while this one ends: what it gives is the same, and what is not asked for leaves no trace."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.images import QUICK, broken_png, jpeg, labelled, padded, seen
from kit.limits import LONG
from kit.properties import examples
from kit.shelves import opened

from dali_feed.engines import choose
from dali_feed.errors import ClosedError, DaliFeedError
from dali_feed.external_sources import Mix
from dali_feed.feed import Feed
from dali_feed.feed.run import Pass
from dali_feed.options import BadRecords, Tuning
from dali_feed.plan.order import Shuffle
from dali_feed.testing.scripted import Abort, Corrupt, Gap, Item, ScriptedSource, Stall

AHEAD = replace(QUICK, next_epoch=True)
FAULTS = (Corrupt(), Gap(), (broken_png(), 0), Abort())


def _threads() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def ahead_of(feed: Feed) -> Pass:
    """The pass behind the epoch that has been given, once it has done of the next one what it may."""
    run = feed._positions.run
    assert run is not None
    while not (run.gate.rests or run.gate.over):
        time.sleep(0)
    return run


def faulty(count: int, *at: int, fault: Item | None = None) -> list[Item]:
    """Pictures, and faults at those places."""
    items = labelled(count)
    for k in at:
        items[k] = fault or Corrupt()
    return items


class Walker:
    """A feed and the loop over it, which does as it is told and says what it saw."""

    def __init__(self, source: Any, tuning: Tuning, **options: Any) -> None:
        self.feed = Feed(source, 4, tuning=tuning, bad=BadRecords(limit=5), **options)
        self.batches: Iterator[Any] | None = None
        self.states = [self.feed.state_dict()]

    def does(self, act: str, n: int) -> tuple[Any, ...]:
        """What was given, what was raised, and where the loop stands."""
        given: list[Any] = []
        raised = ""
        try:
            given = self._acts(act, n)
        except (DaliFeedError, StopIteration) as error:
            raised = type(error).__name__
        return act, given, raised, self.feed.state_dict(), self.feed.epoch, self.feed.batches_left

    def _acts(self, act: str, n: int) -> list[Any]:
        given: list[Any] = []
        match act:
            case "iter":
                self.batches = iter(self.feed)
            case "take" | "all":
                self.batches = self.batches or iter(self.feed)
                for _ in range(n if act == "take" else 99):
                    if (batch := next(self.batches, None)) is None:
                        self.batches = None
                        break
                    given.append(seen(batch))
            case "wait":
                if self.batches is None and self.feed._positions.run is not None:
                    ahead_of(self.feed)
            case "set_epoch":
                self.feed.set_epoch(n)
            case "save":
                self.states.append(self.feed.state_dict())
            case "load":
                self.feed.load_state_dict(self.states[n % len(self.states)])
            case "drop":
                self.batches = None
            case _:
                getattr(self.feed._positions, act)()
        return given


ACTS = ("iter", "take", "all", "all", "all", "wait", "set_epoch", "save", "load", "drop", "skip", "leave", "close")
WALKS = st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 4)), max_size=14)


@examples(times=0.5)
@given(
    acts=WALKS,
    bad=st.dictionaries(st.integers(0, 23), st.sampled_from(FAULTS), max_size=3),
    shuffle=st.sampled_from([False, True, Shuffle(4, 1), Shuffle(2, 3)]),
    lanes=st.sampled_from([1, 2]),
    drop_last=st.booleans(),
    prefetch=st.integers(1, 3),
    mixed=st.booleans(),
)
def test_whatever_the_loop_does_it_sees_the_same(
    acts: list[tuple[str, int]],
    bad: dict[int, Item],
    shuffle: Any,
    lanes: int,
    drop_last: bool,
    prefetch: int,
    mixed: bool,
) -> None:
    """Batches, errors and states are those of a feed that begins each epoch when it is asked for."""
    items = labelled(23)
    for k, fault in bad.items():
        items[k % 23] = fault

    def source() -> Any:
        one = ScriptedSource(items, partitions=2, extent=4, random_access=shuffle is True)
        return Mix([one, ScriptedSource(labelled(9), extent=4, name="other")], stop="all") if mixed else one

    options: dict[str, Any] = {"shuffle": shuffle, "lanes": lanes, "drop_last": drop_last}
    walkers = [Walker(source(), replace(tuning, prefetch=prefetch), **options) for tuning in (AHEAD, QUICK)]
    for act, n in acts:
        one, other = (walker.does(act, n) for walker in walkers)
        assert one == other
    for walker in walkers:
        walker.feed.close()
        assert walker.feed._slabs.leased == 0


@pytest.mark.parametrize("engine", ["host", "dali"])
def test_the_next_epoch_is_there_before_it_is_asked_for(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first batches are made, with either engine, and it goes on behind them as it would have begun."""
    monkeypatch.setattr(choose, "ON_CPU", engine)
    options: dict[str, Any] = {"shuffle": True, "bad": BadRecords(limit=None)}
    items = faulty(30, 3, 17, fault=(broken_png(), 0))
    with Feed(ScriptedSource(items), 4, tuning=QUICK, **options) as plain:
        wanted = [[seen(batch) for batch in plain] for _ in range(3)]
    with Feed(ScriptedSource(items), 4, tuning=replace(AHEAD, prefetch=1), **options) as feed:
        found = []
        for _ in range(3):
            found.append([seen(batch) for batch in feed])
            run = ahead_of(feed)
            assert run.supply.epoch == feed.epoch
            batches = iter(feed)
            assert feed._positions.run is run
            del batches
            feed.set_epoch(feed.epoch)
    assert found == wanted


def test_what_is_dropped_leaves_no_trace() -> None:
    """Bad records of an epoch that is not asked for are not counted, reported or kept, and its reads are given back."""
    kept = opened()
    source = ScriptedSource(faulty(24, 1, 2, 20))
    with Feed(source, 4, tuning=AHEAD, bad=BadRecords(limit=3, dead_letter=kept)) as feed:
        list(feed)
        ahead_of(feed)
        stats = feed.stats()
        assert (stats.bad, stats.batches, len(stats.recent_bad), len(kept.letters)) == (3, 6, 3, 3)
        feed.set_epoch(5)
        assert feed._slabs.leased == 0
        stats = feed.stats()
        assert (stats.bad, stats.batches, len(stats.recent_bad), len(kept.letters)) == (3, 6, 3, 3)
        list(feed)
        stats = feed.stats()
        assert (stats.bad, stats.batches, len(kept.letters)) == (6, 12, 6)


@pytest.mark.parametrize("fault", [Corrupt(), (broken_png(), 0), Gap()], ids=["screened", "decoded", "absent"])
def test_what_is_asked_for_is_counted_once(fault: Item) -> None:
    """Over three epochs counts and dead letters are those of a feed that begins nothing ahead."""
    told = []
    for tuning in (AHEAD, QUICK):
        kept = opened()
        source = ScriptedSource(faulty(24, 0, 9, 23, fault=fault))
        with Feed(source, 4, tuning=tuning, bad=BadRecords(limit=3, dead_letter=kept)) as feed:
            for _ in range(3):
                list(feed)
            stats = feed.stats()
            counts = stats.samples, stats.batches, stats.bad, stats.absent
            told.append((*counts, stats.recent_bad, sorted(letter.where for letter in kept.letters)))
    assert told[0] == told[1]


def test_no_more_is_done_than_promised() -> None:
    """Of an epoch that nobody asks for the first window of each lane is read, and `prefetch` batches are made."""
    source = ScriptedSource(labelled(64), random_access=True)
    options: dict[str, Any] = {"shuffle": Shuffle(1, 8), "lanes": 2}
    with Feed(source, 4, tuning=Tuning(threads=1, prefetch=3), **options) as feed:
        list(feed)
        run = ahead_of(feed)
        assert (len(source.reads) - 64, len(run._out)) == (16, 3)


def test_the_memory_holds_both_epochs() -> None:
    """Windows of the next epoch are read in the memory that those of this one have given back."""
    items: list[Item] = [(padded(jpeg(n), 100_000), n) for n in range(48)]
    tuning = Tuning(threads=1, prefetch=1, memory=3 << 20)
    with Feed(ScriptedSource(items, extent=8), 4, tuning=tuning, shuffle=Shuffle(8, 1)) as feed:
        for _ in range(3):
            list(feed)
            ahead_of(feed)
        assert 1 << 20 < feed._slabs.peak <= tuning.memory_bytes


def test_a_sampler_is_asked_when_its_epoch_begins() -> None:
    """It may have a state of its own: nothing is begun ahead of it."""
    asked = []

    class Sampler:
        def __iter__(self) -> Iterator[int]:
            asked.append(1)
            return iter([3, 1, 2])

        def __len__(self) -> int:
            return 3

    with Feed(ScriptedSource(labelled(8)), 1, sampler=Sampler(), tuning=AHEAD) as feed:
        list(feed)
        assert (len(asked), feed._positions.run, feed._slabs.leased) == (1, None, 0)


def _first_of_both(order: Shuffle) -> tuple[int, int]:
    """A seed, and a record that is in the first window of the epochs 0 and 1."""
    for seed in range(100):
        with Feed(ScriptedSource(labelled(64), extent=4), 4, shuffle=order, seed=seed) as feed:
            windows = [set(feed._epochs.planning.foreseen(epoch).ids(0, 0, 4).tolist()) for epoch in (0, 1)]
        if both := windows[0] & windows[1]:
            return seed, min(both)
    raise AssertionError


def test_an_error_found_ahead_is_met_in_its_time() -> None:
    """It ends no pass before its own, and what is mended until then is no error."""
    order = Shuffle(4, 1)
    seed, at = _first_of_both(order)
    source = ScriptedSource(labelled(64), extent=4)
    with Feed(source, 4, shuffle=order, seed=seed, tuning=AHEAD) as feed:
        batches = iter(feed)
        next(batches)
        whole, source._items[0][at] = source._items[0][at], Abort()
        assert len(list(batches)) == 15
        assert feed._positions.run is None or ahead_of(feed).gate.over
        source._items[0][at] = whole
        assert len([seen(batch) for batch in feed]) == 16


def test_what_hangs_ahead_holds_nothing_else() -> None:
    """A source that does not answer the next epoch's first read keeps neither this epoch's batches nor close()."""
    order, free = Shuffle(4, 1), threading.Event()
    seed, at = _first_of_both(order)
    free.set()
    items = labelled(64)
    items[at] = Stall(free, then=(jpeg(at), at))
    source = ScriptedSource(items, extent=4)
    with Feed(source, 4, shuffle=order, seed=seed, tuning=AHEAD) as feed:
        batches = iter(feed)
        next(batches)
        free.clear()
        assert len(list(batches)) == 15
        while len(source.reads) == 16:
            time.sleep(0)
    assert "dali_feed-feed" not in _threads()
    assert feed._slabs.leased == 0


def test_threads_that_share_a_pass() -> None:
    """Each batch goes to one of them, all come to its end, and the next epoch begins behind it."""
    with Feed(ScriptedSource(labelled(24)), 2, tuning=AHEAD) as feed:
        for epoch in (1, 2):
            taken: list[int] = []

            def take(batches: Iterator[Any] = iter(feed), taken: list[int] = taken) -> None:  # noqa: B008
                taken.extend(sample for batch in batches for sample in batch.ids.tolist())

            with ThreadPoolExecutor(3) as pool:
                for done in [pool.submit(take) for _ in range(3)]:
                    done.result(LONG)
            assert sorted(taken) == list(range(24))
            assert feed.epoch == epoch


def test_a_thread_that_waits_in_a_pass_that_another_ends() -> None:
    """It is told so, in the words of people, and the newer pass goes on."""
    stall = threading.Event()
    with Feed(ScriptedSource([Stall(stall), *labelled(7)]), 2, tuning=QUICK) as feed, ThreadPoolExecutor(2) as pool:
        for end in (lambda: iter(feed), feed.close):
            older = iter(feed)
            waits = pool.submit(next, older)
            while not older._run._noted._under_way:
                time.sleep(0)
            newer = end()
            with pytest.raises(ClosedError, match="another thread has ended this pass while this one waited"):
                waits.result(LONG)
            if newer is not None:
                again = pool.submit(next, newer)
                stall.set()
                assert len(again.result(LONG)) == 2
                assert len(list(newer)) == 3
                stall.clear()
