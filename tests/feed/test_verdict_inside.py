"""The verdict over any numbers that a loader could have, and its advice by who has the processors."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dali_feed.feed.meter import CAUSES
from dali_feed.feed.stats import CpuStats, Running, StageStats, Stats, WaitCause, verdict

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
    assert found.bottleneck in {"", "trainer", *(each.cause for each in numbers.wait_causes)}
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
