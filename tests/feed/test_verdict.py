"""The verdict: it names what the loop waits for most, and advises only what the numbers allow."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from dali_feed.feed.overlaps import CAUSES
from dali_feed.feed.stages import CpuStats, Running, StageStats, WaitCause
from dali_feed.feed.verdict import verdict

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


HELD_UP = Numbers(
    batches=100,
    slab_peak=0,
    step_wait=9.0,
    wait_causes=(WaitCause("engine", 6.39), WaitCause("source", 2.61)),
    stages=(_stage("read", 2), _stage("engine", 4, worked=40.0), _stage("train")),
    cpu=CpuStats(16, 4.2, 10.0),
    running=Running("host", on_gpu=False, prefetch=2, memory=1 << 30),
)


def test_the_sentence_has_the_stage_its_share_the_cores_both_rates_and_the_first_advice() -> None:
    """As people read it."""
    found = verdict(HELD_UP)
    assert (found.bottleneck, round(found.share, 2)) == ("engine", 0.71)
    assert found.sentence == (
        "decode-bound: 71% of the step wait is the decoder; 4.2 of 16 cores busy; the loop gets 100 samples/s and could"
        " take 1,000; try Tuning(threads=16): it has 4 of 16 cores"
    )


def test_a_loop_that_hardly_waits_is_its_own_bottleneck() -> None:
    """With how much more the slowest part of the loader could give."""
    stages = (
        *(_stage("read", worked=0.1), _stage("screen", worked=0.1), _stage("deal", worked=0.1)),
        *(_stage("engine", worked=0.5), _stage("finish", worked=0.3), _stage("train", worked=10.0)),
    )
    found = verdict(replace(HELD_UP, step_wait=0.1, stages=stages))
    assert (found.bottleneck, found.advice) == ("trainer", ())
    assert found.sentence.startswith("training-bound: the loop waits 1% of its time for batches; 4.2 of 16 cores busy")
    assert found.sentence.endswith("the loader alone could give 2,000 samples/s")


def test_more_readers_are_advised_only_where_reads_wait() -> None:
    """Not where readers have nothing to read, and room is what they lack only where the memory is full."""
    source = replace(HELD_UP, wait_causes=(WaitCause("source", 9.0),))
    slow = verdict(replace(source, stages=(_stage("read", 2, waited=9.0), _stage("train"))))
    assert "Tuning(readers=4): reads spend 90% of their time waiting" in slow.sentence
    idle = replace(source, stages=(_stage("read", 2, blocked=9.0), _stage("train")))
    assert verdict(idle).advice == ()
    assert "Tuning(memory=...)" in verdict(replace(idle, slab_peak=1 << 30)).sentence


def test_nothing_is_said_of_a_loader_that_gave_no_batch() -> None:
    """And nothing fails."""
    assert verdict(replace(HELD_UP, batches=0, stages=())).sentence == "nothing is known yet: no batch was taken"


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
