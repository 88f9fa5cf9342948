"""Insides that contract/feed/test_verdict.py needs not: they go with what they test."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from dali_feed.feed.meter import CAUSES
from dali_feed.feed.stats import CpuStats, Running, StageStats, WaitCause, verdict

EVERY = (*dict.fromkeys(CAUSES.values()), "garbage", "first batch", "torch", "unknown")


@dataclass(frozen=True)
class Numbers:
    """What a verdict is made of."""

    batches: int
    slab_peak: int
    step_wait: float
    wait_causes: tuple[WaitCause, ...]
    stages: tuple[StageStats, ...]
    cpu: CpuStats | None
    running: Running | None


def _stage(name: str, threads: int = 1, waited: float = 0.0, worked: float = 1.0, blocked: float = 0.0) -> StageStats:
    return StageStats(name, threads, 1000, waited, worked, blocked, 1000 * threads / worked if worked else None)


_SECONDS = st.floats(0, 1e6)
_RUNNING = st.builds(Running, st.sampled_from(("host", "dali")), st.booleans(), st.just(2), st.just(1 << 30))


@st.composite
def _numbers(draw: st.DrawFn) -> Numbers:
    """Any that a loader could have."""
    seconds = draw(st.dictionaries(st.sampled_from(EVERY), _SECONDS))
    causes = tuple(sorted((WaitCause(*item) for item in seconds.items()), key=lambda each: -each.seconds))
    names = draw(st.sets(st.sampled_from(("read", "screen", "deal", "engine", "finish", "handover", "train"))))
    stages = tuple(
        _stage(name, draw(st.integers(1, 64)), draw(_SECONDS), draw(_SECONDS), draw(_SECONDS)) for name in sorted(names)
    )
    cores = draw(st.floats(0.1, 128))
    return Numbers(
        batches=draw(st.integers(0, 9)),
        slab_peak=draw(st.integers(0, 1 << 31)),
        step_wait=sum(each.seconds for each in causes),
        wait_causes=causes,
        stages=stages,
        cpu=draw(st.none() | st.builds(CpuStats, st.just(cores), st.floats(0, 128), _SECONDS)),
        running=draw(st.none() | _RUNNING),
    )


@given(_numbers())
def test_whatever_the_numbers_are_it_names_one_cause_and_advises_nothing_that_they_exclude(numbers: Numbers) -> None:
    """Its share lies between 0 and 1; no thread without a core; no GPU's option without a GPU."""
    found = verdict(numbers)
    assert found == verdict(numbers)
    assert 0 <= found.share <= 1
    assert found.bottleneck in {"", "trainer", numbers.wait_causes[0].cause if numbers.wait_causes else ""}
    assert "nan" not in found.sentence
    advice = " ".join(found.advice)
    assert not advice or found.advice[0] in found.sentence
    if numbers.running is None or not numbers.running.on_gpu:
        assert "hw_decoder_load" not in advice
    elif "hw_decoder_load" in advice:
        assert "changes pixels" in advice
    if "threads=" in advice:
        engine = next(stage for stage in numbers.stages if stage.name == "engine")
        assert numbers.cpu is not None
        assert engine.threads < numbers.cpu.cores
        assert numbers.cpu.busy < numbers.cpu.cores
