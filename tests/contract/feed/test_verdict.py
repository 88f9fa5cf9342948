"""The verdict: it names what the loop waits for most, and advises only what the numbers allow."""

from __future__ import annotations

from dataclasses import replace

from kit.inside import CpuStats, Running, StageStats, Stats, WaitCause, verdict


def _stage(name: str, threads: int = 1, waited: float = 0.0, worked: float = 1.0, blocked: float = 0.0) -> StageStats:
    return StageStats(name, threads, 1000, waited, worked, blocked)


HELD_UP = Stats(
    batches=100,
    slab_peak=0,
    step_wait=9.0,
    wait_causes=(WaitCause("engine", 6.39), WaitCause("source", 2.61)),
    stages=(_stage("read", 2), _stage("engine", 4, worked=40.0), _stage("train")),
    cpu=CpuStats(16, 42.0, 10.0),
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
