"""Waits of the training loop: each has its cause, and the verdict names the longest."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.images import QUICK, broken_png, labelled
from torchvision.transforms import v2

from dali_feed import BadRecords
from dali_feed.feed import Feed
from dali_feed.feed.meter import CAUSES, STATES, FeedClock, LoopClock, Pauses, Span, spent_on
from dali_feed.feed.stats import CpuStats, Running, StageStats, Stats, WaitCause, verdict
from dali_feed.testing.scripted import Item, ScriptedSource


def _spans(*parts: tuple[str, float]) -> list[Span]:
    """States one after another from 0 on, each until a time."""
    found, since = list[Span](), 0.0
    for state, until in parts:
        found.append((state, since, until))
        since = until
    return found


def test_a_wait_is_shared_out_among_what_the_feed_thread_was_at_while_it_lasted() -> None:
    """What it did before does not count, its own work is the feed's, and pauses of the collector are nothing else's."""
    spans = _spans(("engine", 1.0), ("finish", 2.0), ("source", 5.0), ("deal", 6.0), ("trainer", 9.0))
    assert spent_on(spans, (), 1.5, 7.0) == {"hand-over": 1.0, "feed": 1.5, "source": 3.0}
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
    """The first of a pass is a cause of its own, but for what its reads took: a slow source is slow from there on."""
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
    slow = LoopClock()
    clock.past.clear()
    clock.past.extend([("engine", 0.0, 1.0), ("source", 1.0, 4.0)])
    slow.wait(0.0, 4.0, clock, first=True)
    assert {each.cause: each.seconds for each in slow.causes} == {"source": 3.0, "first batch": 1.0}
    assert waits.waited == pytest.approx(sum(each.seconds for each in waits.causes))


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


EVERY = (*dict.fromkeys(CAUSES.values()), "garbage", "first batch", "torch", "unknown")
_SECONDS = st.floats(0, 1e6)
_STAGES = st.sets(st.sampled_from(("read", "screen", "deal", "engine", "finish", "handover", "train")))
_WAITS = st.builds(WaitCause, st.sampled_from(EVERY), _SECONDS)
_NUMBERS = st.builds(
    Stats,
    batches=st.integers(0, 9),
    slab_peak=st.integers(0, 1 << 31),
    wait_causes=st.lists(_WAITS, unique_by=lambda each: each.cause).map(tuple),
    stages=st.lists(
        st.builds(StageStats, st.text(), st.integers(1, 64), st.just(1000), _SECONDS, _SECONDS, _SECONDS), min_size=7
    ).flatmap(
        lambda all_: _STAGES.map(
            lambda names: tuple(replace(stage, name=name) for stage, name in zip(all_, sorted(names), strict=False))
        )
    ),
    cpu=st.none() | st.builds(CpuStats, st.floats(0.1, 128), _SECONDS, _SECONDS),
    running=st.none()
    | st.builds(Running, st.sampled_from(("host", "dali")), st.booleans(), st.just(2), st.just(1 << 30)),
).map(lambda stats: replace(stats, step_wait=sum(each.seconds for each in stats.wait_causes)))


@given(_NUMBERS)
def test_whatever_the_numbers_are_it_names_one_cause_and_advises_nothing_that_they_exclude(numbers: Stats) -> None:
    """Its share lies between 0 and 1; no thread without a core; no GPU's option without a GPU."""
    found = verdict(numbers)
    assert found == verdict(numbers)
    assert 0 <= found.share <= 1
    assert found.bottleneck in {"", "trainer", "collate", *(each.cause for each in numbers.wait_causes)}
    longest = max((each.seconds for each in numbers.wait_causes), default=0.0)
    assert all(each.seconds == longest for each in numbers.wait_causes if each.cause == found.bottleneck)
    assert "nan" not in found.sentence
    advice = " ".join(found.advice)
    assert not advice or found.advice[0] in found.sentence
    if numbers.running is None or not numbers.running.on_gpu:
        assert "Decode(hardware" not in advice
    elif "Decode(hardware" in advice:
        assert "changes pixels" in advice
    if "threads=" in advice:
        engine = next(stage for stage in numbers.stages if stage.name == "engine")
        assert numbers.cpu is not None
        assert engine.threads < numbers.cpu.cores
        assert numbers.cpu.busy < numbers.cpu.cores


def test_next_to_no_time_is_none() -> None:
    """The clock may not have moved while a stage worked, or by so little that its rate is without end."""
    stages = tuple(StageStats(name, 1, 1000, worked=worked) for name, worked in (("deal", 1e-306), ("train", 1.0)))
    assert verdict(Stats(batches=1, stages=stages)).bottleneck == "trainer"


HOST = Running("host", on_gpu=False, prefetch=2, memory=1 << 30)
BUSY = StageStats("read", 2, 1000, 0.0, 10.0)
DECODES = StageStats("engine", 4, 1000, 0.1, 40.0)


@pytest.mark.parametrize(
    ("cause", "stage", "cpu", "running", "said"),
    [
        ("source", BUSY, CpuStats(16, 40.0, 10.0), HOST, "Tuning(readers=3): readers are at work all the time"),
        ("source", BUSY, CpuStats(4, 40.0, 10.0), HOST, "fewer decoder threads, or more cores"),
        ("engine", DECODES, CpuStats(4, 40.0, 10.0), replace(HOST, engine="dali", on_gpu=True), "Decode(hardware=...)"),
        ("engine", DECODES, CpuStats(4, 10.0, 10.0), HOST, "freeing the cores"),
    ],
)
def test_advice_follows_from_who_has_the_processors(
    cause: str, stage: StageStats, cpu: CpuStats, running: Running, said: str
) -> None:
    """More readers where a core is free, fewer decoders where none is, the GPU's own decoder where there is one."""
    stages = (stage, StageStats("train", 1, 1000, worked=1.0))
    waits = (WaitCause(cause, 9.0),)
    found = verdict(Stats(batches=100, step_wait=9.0, wait_causes=waits, stages=stages, cpu=cpu, running=running))
    assert any(said in each for each in found.advice), found.advice
