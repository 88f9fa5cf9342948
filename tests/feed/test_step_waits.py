"""Waits of the training loop: each has its cause."""

from __future__ import annotations

import gc
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.images import QUICK, broken_png, labelled
from torchvision.transforms import v2

from dali_feed import BadRecords
from dali_feed.feed import Feed
from dali_feed.feed.meter import CAUSES, STATES, FeedClock, LoopClock, Pauses, Span, spent_on
from dali_feed.testing.scripted import Item, ScriptedSource


def _spans(*parts: tuple[str, float]) -> list[Span]:
    """States one after another from 0 on, each until a time."""
    found, since = list[Span](), 0.0
    for state, until in parts:
        found.append((state, since, until))
        since = until
    return found


def test_a_wait_is_shared_out_among_what_the_feed_thread_was_at_while_it_lasted() -> None:
    """What it did before does not count, and its own work is the feed's."""
    spans = _spans(("engine", 1.0), ("finish", 2.0), ("source", 5.0), ("screen", 6.0), ("trainer", 9.0))
    assert spent_on(spans, (), 1.5, 7.0) == {"hand-over": 1.0, "feed": 1.5, "source": 3.0}


def test_pauses_of_the_collector_count_as_nothing_else() -> None:
    """No thread runs while it does."""
    assert spent_on(_spans(("engine", 10.0)), [(1.0, 3.0), (8.0, 20.0)], 2.0, 6.0) == {"engine": 3.0, "garbage": 1.0}


@given(
    st.lists(st.tuples(st.sampled_from(STATES[:-1]), st.floats(1e-3, 5)), max_size=9),
    st.floats(0, 20),
    st.floats(0, 20),
    st.lists(st.tuples(st.floats(0, 20), st.floats(0, 5)), max_size=1),
)
def test_the_causes_of_a_wait_add_up_to_it(
    parts: list[tuple[str, float]], begun: float, length: float, pauses: list[tuple[float, float]]
) -> None:
    """And none is negative, whatever the feed thread was at."""
    until, spans = 0.0, list[tuple[str, float]]()
    for state, seconds in parts:
        until += seconds
        spans.append((state, until))
    found = spent_on(_spans(*spans), [(at, at + lasted) for at, lasted in pauses], begun, begun + length)
    assert min(found.values(), default=0.0) >= 0
    assert sum(found.values()) == pytest.approx(begun + length - begun, abs=1e-9)
    assert set(found) <= {*CAUSES.values(), "unknown", "garbage"}


def test_each_wait_counts_under_its_cause() -> None:
    """The first of a pass is a cause of its own, whatever was done in it."""
    waits, clock, at = LoopClock(), FeedClock(), 0.0
    clock.past.clear()
    for batch in range(40):
        seconds = 0.5 if batch in {0, 33} else 0.01
        clock.past.append(("source" if batch == 33 else "engine", at, at + seconds))
        waits.wait(at, at + seconds, clock, first=not batch)
        at += seconds
    assert {each.cause: round(each.seconds, 6) for each in waits.causes} == {
        "source": 0.5,
        "first batch": 0.5,
        "engine": 0.38,
    }
    assert waits.waited == pytest.approx(sum(each.seconds for each in waits.causes))


def test_no_moment_of_the_feed_thread_counts_twice() -> None:
    """A header check inside a wait for the source is none of that wait."""
    clock = FeedClock()
    clock.switch("source")
    clock.switch("screen")
    clock.switch("source")
    clock.switch("deal")
    spans = list(clock.past)
    assert [state for state, _, _ in spans] == ["deal", "source", "screen", "source"]
    assert all(a[2] == b[1] for a, b in itertools.pairwise(spans))
    assert sum(clock.spent.values()) == pytest.approx(spans[-1][2] - spans[0][1])


def test_the_collector_is_asked_only_while_somebody_wants_to_know() -> None:
    """The last who leaves takes the function out again."""
    before, pauses = list(gc.callbacks), Pauses()
    pauses.watch()
    pauses.watch()
    pauses.leave()
    assert len(gc.callbacks) == len(before) + 1
    pauses.leave()
    assert gc.callbacks == before


def test_a_collection_that_began_before_it_was_watched_is_no_pause() -> None:
    """Its end alone is heard, of a collection in another thread; it would last since the clock's zero."""
    pauses = Pauses()
    pauses._heard("stop", {})
    pauses._heard("start", {})
    pauses._begun = -1.0
    pauses._heard("stop", {})
    pauses._heard("stop", {})
    assert [begun for begun, _ in pauses.last] == [-1.0]


def test_running_a_batch_again_is_repair_and_a_wait_for_the_engine() -> None:
    """A record that the decoder refuses costs its batch a second run."""
    items: list[Item] = [*labelled(16)]
    items[6] = (broken_png(), 6)
    source, crop = ScriptedSource(items, extent=8), v2.CenterCrop(16)
    with Feed(source, 4, transform=crop, tuning=QUICK, bad=BadRecords(limit=None)) as feed:
        list(feed)
        spent, stats = feed._machine.meter.spent(), feed.stats()
    assert stats.bad == 1
    assert min(spent["repair"], spent["mend"]) > 0
    assert stats.engine_wait == pytest.approx(spent["engine"] + spent["repair"])
