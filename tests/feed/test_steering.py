"""Steering: when an interval is measured, what becomes of a decision, and that no batch depends on any."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from kit.images import Seen, jpeg, labelled, seen
from torchvision.transforms import v2

from dali_feed.errors import ConfigError
from dali_feed.feed import Feed
from dali_feed.feed import adapting as steering
from dali_feed.feed.adapting import Bounds, Counts, Decision, Facts, Reading, Standing, Steering
from dali_feed.feed.meter import Meter
from dali_feed.feed.reading import ReadPool, ReadTask
from dali_feed.options import BadRecords, Tuning
from dali_feed.plan.order import Shuffle, canonical
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import Slabs
from dali_feed.testing.scripted import Corrupt, Gap, Item, ScriptedReader, ScriptedSource, Stall

MIXED = Shuffle(extent=4, window=3)
AUTO = Tuning(threads=1, readers="auto")


def chaos(seed: int) -> steering.Policy:
    """A policy without sense: any number of readers after each read."""
    rng = random.Random(seed)

    def decide(standing: Standing, facts: Facts, bounds: Bounds) -> tuple[Standing, Decision | None]:
        new = Reading(rng.randint(bounds.least, bounds.most), rng.choice((1, 2)))
        return replace(standing, reading=new), Decision(standing.reading, new, str(facts))

    return decide


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every read ends an interval."""
    monkeypatch.setattr(steering, "SECONDS", 0.0)
    monkeypatch.setattr(steering, "READS", 0)


def _feed(tuning: Tuning) -> Feed:
    items: list[Any] = labelled(61, sizes=True)
    for n, item in zip((3, 20, 21, 60), (Gap(), Corrupt(), Corrupt("torn"), Gap()), strict=True):
        items[n] = item
    source = ScriptedSource(items, partitions=3, extent=4)
    crop = v2.RandomResizedCrop(16, scale=(0.3, 1.0))
    return Feed(source, 8, transform=crop, shuffle=MIXED, bad=BadRecords(limit=None), tuning=tuning, seed=7)


def _run(feed: Feed) -> tuple[list[Seen], list[dict[str, Any]]]:
    """Two epochs: batches, and the state after each."""
    batches, states = [], []
    for _ in range(2):
        for batch in feed:
            batches.append(seen(batch))
            states.append(feed.state_dict())
    return batches, states


@pytest.mark.usefixtures("at_once")
def test_no_batch_and_no_state_depends_on_how_many_readers_there_are() -> None:
    """With one reader, four, and a number that changes at random after each read, both are equal."""
    with _feed(Tuning(threads=1, readers=1)) as feed:
        expected = _run(feed)
    with _feed(Tuning(threads=1, readers=4)) as feed:
        assert _run(feed) == expected
    for seed in range(3):
        with _feed(AUTO) as feed:
            feed._machine.policy = chaos(seed)
            assert _run(feed) == expected
            stats = feed.stats()
            assert len(stats.decisions) > 2
            assert stats.decisions[-1].split(": ")[0].endswith((f"-> {stats.readers}", f"-> x{stats.fetch_times}"))


def test_a_number_of_readers_is_what_it_is() -> None:
    """An int pins it: nothing is measured, nothing decided; "auto" begins with two."""
    with _feed(Tuning(threads=1, readers=3)) as feed:
        _run(feed)
        assert (feed.stats().readers, feed.stats().decisions) == (3, ())
        assert feed._machine._steering is None
    with _feed(AUTO) as feed:
        next(iter(feed))
        assert feed.stats().readers == steering.FIRST_READERS
    for wrong in ("many", 0, True, 2.0):
        with pytest.raises(ConfigError, match=r'Tuning\(readers=...\) other than "auto"'):
            Tuning(readers=wrong)  # type: ignore[arg-type]


class Clock:
    """Shows what it is set to."""

    now = 0.0

    def read(self) -> float:
        """Seconds."""
        return self.now


def test_an_interval_has_its_seconds_its_reads_and_no_change_in_it(caplog: pytest.LogCaptureFixture) -> None:
    """Neither is judged alone, nor the interval of the first connections; a decision is logged once and kept."""
    clock, meter, facts = Clock(), Meter(), list[Facts]()

    def note(standing: Standing, found: Facts, bounds: Bounds) -> tuple[Standing, Decision | None]:
        facts.append(found)
        new = Reading(standing.reading.readers + 1)
        return Standing(new), Decision(standing.reading, new, "because")

    steers = Steering(Reading(2), Bounds(1, 8), meter, policy=note, clock=clock.read)
    with caplog.at_level(logging.INFO, "dali_feed"):
        for second, reads, expected in [
            (2.0, 50, None),  # too short
            (3.0, 50, None),  # the first
            (6.0, 59, None),  # too few reads
            (7.0, 60, Reading(3)),
            (10.0, 75, None),  # with the change in it
            (13.0, 89, None),  # of three readers
            (14.0, 90, Reading(4)),
        ]:
            clock.now, meter.clock().spent["source"] = second, second / 2
            assert steers.look(Counts(reads, reads * 100, second * 1.5, 7)) == expected, second
    assert [(f.seconds, f.size, f.busy, f.waited, f.queued) for f in facts] == [
        (4.0, 1000, 6.0, 2.0, 7),
        (4.0, 1500, 6.0, 2.0, 7),
    ]
    assert steers.decisions == ("readers 2 -> 3: because", "readers 3 -> 4: because")
    assert caplog.messages == list(steers.decisions)


def test_a_wait_that_is_not_over_counts() -> None:
    """The feed may wait for one read all the time: that is when more readers are needed most."""
    meter, facts = Meter(), list[Facts]()

    def note(standing: Standing, found: Facts, bounds: Bounds) -> tuple[Standing, Decision | None]:
        facts.append(found)
        return standing, None

    clock = Clock()
    steers = Steering(Reading(1), Bounds(1, 8), meter, policy=note, clock=clock.read)
    clock.now = 3.0
    steers.look(Counts(10, 10, 0.0, 0))
    with meter.at("source"):
        clock.now = 6.0
        steers.look(Counts(20, 10, 0.0, 0))
    assert facts[0].waited > 0


class Counted(ScriptedSource):
    """Counts the reads that were begun and the readers that were closed."""

    def __init__(self, items: list[Item]) -> None:
        super().__init__(items, extent=1)
        self.begun, self.closed = threading.Semaphore(0), threading.Semaphore(0)

    def reader(self, slabs: Slabs | None = None, stop: threading.Event | None = None) -> ScriptedReader:
        """One that counts."""
        reader = super().reader(slabs, stop)

        def counts(count: threading.Semaphore, call: Callable[..., Any], *given: Any) -> Any:
            count.release()
            return call(*given)

        reader.read = partial(counts, self.begun, reader.read)  # type: ignore[method-assign]
        reader.close = partial(counts, self.closed, reader.close)  # type: ignore[method-assign]
        return reader


def test_readers_come_at_once_and_leave_when_their_read_is_done() -> None:
    """Four reads are under way with four readers; with one, three of them close what they have open."""
    go = threading.Event()
    source = Counted([*(Stall(go, then=(jpeg(n), n)) for n in range(4)), *labelled(4)])
    line = canonical(source.snapshot(), 1)
    tasks = [ReadTask(line[n : n + 1], lambda: 0) for n in range(8)]
    pool = ReadPool(source, SlabPool(), 1)
    for task in tasks:
        pool.request(task)
    pool.choose(Reading(4))
    for _ in range(4):
        assert source.begun.acquire(timeout=10)
    pool.choose(Reading(1))
    assert len(pool.doing()) == 4
    go.set()
    for _ in range(3):
        assert source.closed.acquire(timeout=10)
    got = [task.take() for task in tasks]
    assert np.concatenate([block.ids for block in got]).tolist() == list(range(8))
    assert not source.closed.acquire(blocking=False)
    pool.close()
    assert source.closed.acquire(timeout=10)
    assert pool.reading == Reading(1)
    pool.choose(Reading(4))
    assert pool.reading == Reading(1), "closed"


def test_a_system_without_threads_to_give_leaves_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers that cannot be begun are not counted, and what is read goes on."""
    source = ScriptedSource(labelled(4))
    pool = ReadPool(source, SlabPool(), 1)

    def refuse(thread: threading.Thread) -> None:
        msg = "can't start new thread"
        raise RuntimeError(msg)

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        pool.choose(Reading(3))
    assert pool.reading == Reading(1)
    task = ReadTask(canonical(source.snapshot(), 4), lambda: 0)
    pool.request(task)
    assert len(task.take().ids) == 4
    pool.close()
