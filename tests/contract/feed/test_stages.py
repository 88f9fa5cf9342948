"""Stages and causes of waits, of loaders that run, and the watchdog that names them."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from kit.broker.handle import Kafka
from kit.images import QUICK, jpeg, labelled
from kit.inside import CpuStats, Feed, Item, Running, StageStats, Stall, Stats, WaitCause, verdict
from kit.watchdog import Lines, said_of
from torchvision.transforms import v2

from dali_feed import DataLoader, Decode, Tuning
from dali_feed.errors import ConfigError
from dali_feed.external_sources import KafkaTopic
from dali_feed.testing import ScriptedSource

STAGES = ["read", "screen", "deal", "engine", "finish", "handover", "train"]


def test_every_stage_counts_the_samples_that_it_worked_on() -> None:
    """In the order of the way, with its threads, and the loop's last batch still under way."""
    source = ScriptedSource([*labelled(32)], extent=8)
    with DataLoader(source, 4, device="cpu", tuning=Tuning(threads=2, readers=3, next_epoch=False)) as loader:
        assert loader.stats().stages == ()
        assert loader.stats().verdict.startswith("nothing is known yet")
        for _ in loader:
            pass
        stats = loader.stats()
    assert [stage.name for stage in stats.stages] == STAGES
    assert [stage.samples for stage in stats.stages] == [32] * 7
    assert [stage.threads for stage in stats.stages] == [3, 3, 1, 2, 1, 1, 1]
    assert all(min(stage.worked, stage.waited, stage.blocked) >= 0 for stage in stats.stages)
    assert all(stage.rate for stage in stats.stages)
    assert stats.cpu is not None
    assert stats.cpu.seconds >= stats.step_wait > 0
    assert sum(each.seconds for each in stats.wait_causes) == pytest.approx(stats.step_wait)
    assert str(stats).splitlines()[-1].split(maxsplit=1)[1] == stats.verdict


def test_an_engine_that_does_not_say_what_its_threads_do_is_measured_from_outside() -> None:
    """Only by batches that it was waited for: never by more than there were."""
    source = ScriptedSource([*labelled(32)], extent=8)
    with Feed(source, 4, decode=Decode(engine="dali"), transform=v2.CenterCrop(16), tuning=QUICK) as feed:
        assert sum(map(len, feed)) == 32
        (engine,) = (stage for stage in feed.stats().stages if stage.name == "engine")
    assert engine.threads == 1
    assert 0 <= engine.samples <= 32
    assert (engine.worked > 0) == (engine.samples > 0)


class _GoesOn(logging.Handler):
    """Lets a stalled read go on when the watchdog has spoken of it."""

    def __init__(self, go_on: Callable[[], None]) -> None:
        super().__init__()
        self._go_on = go_on

    def emit(self, record: logging.LogRecord) -> None:
        """A line of the log."""
        if "source: " in record.getMessage():
            self._go_on()


def test_a_wait_for_a_read_that_stalls_is_the_sources() -> None:
    """Of the first batch it is that batch's, and of a later one the source's."""
    go_on = threading.Event()
    items: list[Item] = [*labelled(32)]
    items[18] = Stall(go_on, then=(jpeg(18), 18))
    handler, log = _GoesOn(go_on.set), logging.getLogger("dali_feed")
    log.addHandler(handler)
    try:
        tuning = Tuning(threads=1, readers=1, watchdog=0.1)
        with DataLoader(ScriptedSource(items, extent=8), 4, device="cpu", tuning=tuning) as loader:
            assert sum(len(labels) for _, labels in loader) == 32
            causes = {each.cause: each.seconds for each in loader.stats().wait_causes}
    finally:
        go_on.set()
        log.removeHandler(handler)
    assert max(causes, key=causes.__getitem__) in {"first batch", "source"}


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


def test_a_loop_that_makes_its_batches_slowly_is_not_blamed_on_training() -> None:
    """A slow collate_fn is named, and what the loader could give counts it."""
    stages = (
        *(_stage("read", worked=0.1), _stage("deal", worked=0.1), _stage("engine", worked=0.5)),
        *(_stage("finish", worked=0.3), _stage("handover", worked=20.0), _stage("train", worked=2.0)),
    )
    found = verdict(replace(HELD_UP, step_wait=0.1, stages=stages))
    assert (found.bottleneck, round(found.share, 2)) == ("collate", 0.9)
    assert "collate_fn" in found.advice[0]
    train = replace(stages[-1], worked=30.0)
    assert (
        "the loader alone could give 50 samples/s"
        in verdict(replace(HELD_UP, step_wait=0.1, stages=(*stages[:-1], train))).sentence
    )


def test_a_larger_batch_is_advised_only_where_batches_are_small() -> None:
    """At 4,096 samples its fixed costs are nothing."""
    small = replace(HELD_UP, samples=6400, wait_causes=(WaitCause("feed", 9.0),))
    assert "batch_size" in verdict(small).advice[0]
    assert not any("batch_size" in each for each in verdict(replace(small, samples=100 * 4096)).advice)


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


@pytest.fixture
def go_on() -> Iterator[threading.Event]:
    """What the stuck stage waits for; set at the end, so that no thread is left waiting."""
    event = threading.Event()
    yield event
    event.set()


def _stalled(go_on: threading.Event) -> ScriptedSource:
    items: list[Item] = [*labelled(32)]
    items[18] = Stall(go_on, then=(jpeg(18), 18))
    return ScriptedSource(items, extent=8)


def test_a_read_that_hangs_is_named_and_the_run_goes_on(go_on: threading.Event) -> None:
    """The records being read and for how long; nothing is lost when they come after all."""
    line = said_of(_stalled(go_on), go_on)[0]
    assert "source: " in line
    assert "32 records from scripted[0]@0 (0 s)" in line


def test_a_broker_that_is_down_is_named_with_what_it_said(embedded: Kafka) -> None:
    """The offsets waited for, and librdkafka's complaint; the run goes on when the broker is back."""
    embedded.publish(embedded.topic, [(jpeg(n), n) for n in range(32)], partitions=1)
    source = KafkaTopic(embedded.topic, embedded.servers)
    source.snapshot()
    cluster: Any = embedded.cluster
    lines = Lines(lambda: cluster.up(1))
    logging.getLogger("dali_feed").addHandler(lines)
    with DataLoader(source, 4, device="cpu", tuning=Tuning(threads=1, readers=1, watchdog=0.5)) as loader:
        len(loader)
        cluster.down(1)
        assert sum(len(labels) for _, labels in loader) == 32
    logging.getLogger("dali_feed").removeHandler(lines)
    assert f"32 records from {embedded.topic}[0]@0 (" in lines.lines[0]
    assert embedded.servers in lines.lines[0]


@pytest.mark.parametrize("seconds", [0, -1.0, True, "30", math.nan])
def test_watchdog_must_be_seconds_above_0(seconds: Any) -> None:
    """Everything else is a ConfigError; infinity is never."""
    with pytest.raises(ConfigError, match=r"Tuning\(watchdog=\.\.\.\)"):
        Tuning(watchdog=seconds)
    assert Tuning(watchdog=math.inf).watchdog == math.inf


@pytest.mark.parametrize(("watchdog", "timeout"), [(1e12, 0), (math.inf, 1e12), (math.inf, 0)])
def test_waits_longer_than_the_system_knows(watchdog: float, timeout: float) -> None:
    """A limit beyond what can be waited for is none, and no error."""
    tuning = Tuning(threads=1, watchdog=watchdog)
    with DataLoader(ScriptedSource(labelled(4)), 4, device="cpu", tuning=tuning, timeout=timeout) as loader:
        assert len(list(loader)) == 1
