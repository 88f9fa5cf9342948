"""Readers that adapt: where the climb goes, when an interval is measured, and that no batch depends on any of it."""

from __future__ import annotations

import logging
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.images import labelled
from torchvision.transforms import v2

from dali_feed import BadRecords, DataLoader, Shuffle, Tuning, sync
from dali_feed.feed import reading
from dali_feed.feed.meter import FeedClock, Meter
from dali_feed.feed.reading import LONGEST, MOST_READERS, Climb, Interval, Steering
from dali_feed.testing import ScriptedSource
from dali_feed.testing.scripted import Corrupt, Gap

LINEAR = {n: 100.0 * n for n in range(1, 9)}  # samples per second by the number of readers


def second(rate: float, needed: float) -> Interval:
    """What a loop that takes `needed` samples a second sees of a source that gives `rate`."""
    return Interval(1.0, max(0.0, 1 - rate / needed), int(min(rate, needed)))


def climbed(rates: dict[int, float], needed: list[float]) -> list[int]:
    """The number of readers after each interval."""
    climb, seen = Climb(), []
    for each in needed:
        climb.next(second(rates[climb.readers], each))
        seen.append(climb.readers)
    return seen


@given(st.lists(st.builds(Interval, st.floats(0.01, 10), st.floats(0, 20), st.integers(0, 99)), max_size=400))
def test_whatever_it_sees_it_stays_within_bounds_and_changes_become_rare(seen: list[Interval]) -> None:
    """Bounds hold after each interval; each way rests 8, 16, ... intervals, and a change is one reader."""
    climb, at, changes = Climb(), 2, 0
    for each in seen:
        why = climb.next(each)
        assert bool(why) == (climb.readers != at)
        assert abs(climb.readers - at) <= 1 <= climb.readers <= MOST_READERS
        at, changes = climb.readers, changes + bool(why)
    rests = sum(8 * (2**k - 1) <= len(seen) for k in range(1, 7)) + len(seen) // LONGEST + 1
    assert changes <= 6 * (rests + MOST_READERS)


@pytest.mark.parametrize(
    ("rates", "needed", "ends", "most"),
    [
        ({1: 100, 2: 200, 3: 290, 4: 380, 5: 385, 6: 385}, 1000, 4, 5),  # each pays up to the fourth
        ({1: 300, 2: 400, 3: 250}, 1000, 2, 3),  # a third gets in their way
        ({1: 400, 2: 300, 3: 250}, 1000, 1, 3),  # the second does already
        (LINEAR, 30, 1, 1),  # a slow loop needs no more than one
        (LINEAR, 10_000, 8, 8),
        (LINEAR, 205, 2, 2),  # it hardly waits
    ],
)
def test_it_goes_where_readers_pay(rates: dict[int, float], needed: float, ends: int, most: int) -> None:
    """And stays there, but for a trial now and then."""
    seen = climbed(rates, [needed] * 300)
    assert max(seen) == most
    assert seen[100:].count(ends) >= 190


def test_a_loop_that_becomes_fast_gets_its_readers_back_and_one_that_comes_and_goes_does_not_swing() -> None:
    """Ten quiet intervals, then hungry ones; and five of each in turn for a thousand: few changes."""
    assert climbed(LINEAR, [30.0] * 10 + [500.0] * 40)[-1] == 5
    seen = climbed(LINEAR, [30.0 if n // 5 % 2 == 0 else 190.0 for n in range(1000)])
    assert sum(a != b for a, b in pairwise(seen)) <= 24


def test_an_interval_has_its_seconds_its_batches_and_no_change_in_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is judged alone, nor the interval of the first connections; a change is logged once."""
    now, clock, meter = [0.0], FeedClock(), Meter()
    monkeypatch.setattr(sync, "monotonic", lambda: now[0])
    steering, chosen = Steering(meter), []
    with caplog.at_level(logging.INFO, "dali_feed"):
        for at, batches in [(2.0, 50), (3.0, 50), (6.0, 54), (7.0, 55), (10.0, 65), (14.5, 70)]:
            clock.past.clear()
            clock.past.append(("source", now[0], at))
            meter.loop.wait(now[0], at, clock, first=False)
            now[0], meter.batches, meter.samples = at, batches, 10 * batches
            chosen.append(steering.look())
    # too short, the first, too few batches, judged, with the change in it, judged
    assert chosen == [None, None, None, 3, None, 2]
    assert [message.partition(":")[0] for message in caplog.messages] == ["readers 2 -> 3", "readers 3 -> 2"]


def chaos(climb: Climb, seen: Interval) -> str:
    """A climb without sense."""
    before, climb.readers = climb.readers, random.randint(1, 8)
    return f"{before} -> {climb.readers}, {seen}"


def test_no_batch_and_no_state_depends_on_how_many_readers_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one reader, four, and a number that changes at random after each read, both are equal."""
    monkeypatch.setattr(reading, "SECONDS", 0.0)
    monkeypatch.setattr(reading, "BATCHES", 0)
    monkeypatch.setattr(Climb, "next", chaos)
    crop = v2.RandomResizedCrop(16, scale=(0.3, 1.0))
    options: dict[str, Any] = {"transform": crop, "bad": BadRecords(limit=None)}
    items = labelled(61, sizes=True)
    items[3], items[20], items[21], items[60] = Gap(), Corrupt(), Corrupt("torn"), Gap()
    source = ScriptedSource(items, partitions=3, extent=4)

    def run(readers: Any) -> list[Any]:
        options["tuning"] = Tuning(threads=1, readers=readers)
        seen = list[Any]()
        with DataLoader(source, 8, shuffle=Shuffle(4, 3), device="cpu", seed=7, info=True, **options) as loader:
            for _ in range(2):
                for images, labels, info in loader:
                    seen.append((images.numpy().tobytes(), labels.tolist(), info.ids.tolist(), loader.state_dict()))
            assert readers == "auto" or loader.stats().readers == readers
        return seen

    expected = run(1)
    assert run(4) == expected
    for _ in range(3):
        assert run("auto") == expected
