"""Workers of a group, their feeds whole, in any schedule: rebalances, lost sessions, slow loops, commits, Ctrl-C."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from kit.inside import leased
from kit.schedules import Schedule, explore, seeds
from kit.scripted_kafka import Broker, Cluster, ScriptedConsumer, Stream, played
from kit.world import Letters, over_written

from dali_feed import dead_letters, sync
from dali_feed.columns.text import Bytes
from dali_feed.engines import engine, workers
from dali_feed.errors import WaitError
from dali_feed.external_sources.kafka import group, live_reader
from dali_feed.external_sources.kafka.group import ConsumerGroup
from dali_feed.feed import Feed, channel, gather, passes, run, stream
from dali_feed.options import BadRecords, Tuning
from dali_feed.records import live, slabs
from dali_feed.records.source import unpack_id

MODULES = (channel, dead_letters, engine, gather, group, live, live_reader, passes, run, slabs, stream, workers)
DRAIN = 30.0
CLOSES = 60.0  # virtual seconds


class MakeError(Exception):
    """What `make` raises."""


def decoded(data: memoryview) -> bytes:
    """Bytes, of which some are bad."""
    if bytes(data) == b"bad":
        msg = "bad"
        raise ValueError(msg)
    return bytes(data)


class Worker:
    """A worker: a feed and its loop."""

    def __init__(self, name: str, world: World) -> None:
        self.name, self.world = name, world
        self.letters = Letters(None if world.calm else world.schedule)
        rng = world.rng
        source = Stream(
            "scripted",
            "nowhere:1",
            start="earliest",
            batch_timeout=rng.choice((0.05, 0.5)),
            idle_timeout=rng.choice((0.3, 0.3, 2.0)),
            group=ConsumerGroup("workers", instance=name, drain=DRAIN),
        )
        self.feed = Feed(
            source,
            rng.choice((1, 2, 3)),
            columns={"value": Bytes("value", decode=decoded)},
            bad=BadRecords(limit=None, dead_letter=self.letters),
            tuning=Tuning(threads=1, prefetch=rng.choice((1, 2)), memory="8MiB"),
        )
        self.consumers = list[ScriptedConsumer]()

    def loop(self) -> None:
        """What a loop does, to its end."""
        world, rng, feed = self.world, self.world.rng, self.feed
        slow = rng.choice((0.0, 0.0, 0.05, 0.5, 2.0))
        try:
            for _ in range(rng.choice((1, 1, 2))):
                batches, empty = iter(feed), 0
                for _ in range(rng.choice((2, 6, 20))):
                    try:
                        batch = batches.take(rng.choice((None, 2.0)), self.make)
                    except WaitError:
                        continue
                    except MakeError:
                        break
                    self.given(batch)
                    empty = 0 if len(batch) else empty + 1
                    if empty == 3:  # nothing comes any more
                        break
                    sync.sleep(rng.choice((0.0, slow)))
                    if rng.random() < 0.3:
                        feed.commit()
                    if rng.random() < 0.1:
                        feed.state_dict()
        except KeyboardInterrupt:
            pass
        begun = sync.monotonic()
        try:
            feed.close()
        except KeyboardInterrupt:
            world.schedule.no_ctrl_c()
            feed.close()
        assert sync.monotonic() - begun < CLOSES, "close takes long"

    def calm_loop(self) -> None:
        """A loop that finishes what it gets, until all is given."""
        batches = iter(self.feed)
        while not self.world.all_given():
            self.given(batches.take(None, lambda batch: batch))
            sync.sleep(self.world.rng.choice((0.0, 0.0, 0.3)))
            self.feed.commit()
        self.feed.close()

    def make(self, batch: Any) -> Any:
        """What the loop is given."""
        if self.world.rng.random() < 0.02:
            raise MakeError
        return batch

    def given(self, batch: Any) -> None:
        """The loop has it."""
        for sample in batch.ids[batch.ok].tolist():
            self.world.gave(self, *unpack_id(sample))


class World:
    """Some workers on a topic. Where it is calm no session is lost, and loops end when all is given."""

    def __init__(self, schedule: Schedule, *, calm: bool = False) -> None:
        self.schedule, self.rng, self.calm = schedule, schedule.rng, calm
        rng = self.rng
        self.broker = Cluster.broker = Broker(schedule, rng.choice((1, 2, 3)), rng.choice((4, 12)), calm=calm)
        self.times: Counter[tuple[int, int]] = Counter()
        self.next: dict[tuple[int, int], int] = {}  # of a partition, each time that it was dealt: what comes next
        self.broker.check = self.commits
        self.workers = [Worker(name, self) for name in ("a", "b")[: rng.choice((1, 2, 2))]]

    def all_given(self) -> bool:
        """Whether some loop had each record that is good."""
        good = {(p, at) for p, each in self.broker.records.items() for at, value in each.items() if value != b"bad"}
        return good == self.times.keys()

    def gave(self, worker: Worker, partition: int, offset: int) -> None:
        """A loop has a record: while its partition is that worker's, behind the one before, and none is passed over."""
        broker = self.broker
        self.times[partition, offset] += 1
        if broker.losses:  # a worker that is removed hears of it late
            return
        owner = broker.owner[partition]
        assert owner is not None, f"{partition}@{offset} is given while its partition is nobody's"
        assert owner.name == worker.name, f"{partition}@{offset} is given while its partition is another's"
        which = partition, broker.times[partition]
        expected = self.next.get(which, broker.begins[partition])
        assert offset >= expected, f"{partition}@{offset} is given where {expected} comes next"
        lost = [at for at in range(expected, offset) if broker.records[partition].get(at, b"bad") != b"bad"]
        assert not lost, f"{partition}@{offset} is given, and {lost} were not"
        self.next[which] = offset + 1

    def commits(self, consumer: ScriptedConsumer, offsets: dict[int, int]) -> None:
        """A commit arrives: it never goes back, and what lies before it was given, or is bad and its letter durable."""
        broker = self.broker
        letters = {unpack_id(sample) for each in self.workers for sample in each.letters.written}
        for p, offset in offsets.items():
            was = broker.committed.get(p, 0)
            assert offset >= was, f"a commit of {p} goes back from {was} to {offset}"
            for at in range(was, offset):
                value = broker.records[p].get(at)
                if value == b"bad":
                    assert (p, at) in letters, f"{p}@{at} is committed, and its dead letter is not durable"
                elif value is not None:
                    assert self.times[p, at], f"{p}@{at} is committed, and was never given"

    def run(self) -> None:
        """To the end."""
        rng, broker = self.rng, self.broker
        first, *more = [each.calm_loop if self.calm else each.loop for each in self.workers]
        others = [sync.Thread(target=each, name="loop") for each in more]
        ended = [False]

        def balances() -> None:
            for _ in range(rng.choice((0, 1, 3, 10))):
                sync.sleep(rng.choice((0.0, 0.02, 0.3, 2.0)))
                if ended[0]:
                    return
                if not self.calm and rng.random() < 0.15 and broker.members:
                    broker.lose(rng.choice(broker.members))
                else:
                    broker.balance()

        others.append(sync.Thread(target=balances, name="coordinator"))
        for each in others:
            each.start()
        if not self.calm and rng.random() < 0.3:
            with suppress(KeyboardInterrupt):
                self.schedule.ctrl_c(within=6000)
        first()
        self.schedule.no_ctrl_c()
        ended[0] = True
        self.schedule.rest()
        for worker in self.workers:
            assert leased(worker.feed) == 0, f"{leased(worker.feed)} bytes are never given back"
        if self.calm:
            assert set(self.times.values()) <= {1}, f"given twice: {self.times}"


def loops(schedule: Schedule) -> None:
    """Of any number of workers."""
    World(schedule).run()


def calm_loops(schedule: Schedule) -> None:
    """The same, with partitions that move in good order."""
    World(schedule, calm=True).run()


@contextmanager
def prepared() -> Iterator[None]:
    """Within, schedules may run."""
    with over_written(), played():
        yield


def test_any_schedule() -> None:
    """Nothing is committed that was not given, nor before its dead letter; every wait ends, and every thread."""
    with prepared():
        explore(loops, seeds(150), modules=MODULES)


def test_partitions_that_move_in_order_lose_and_repeat_nothing() -> None:
    """Each record is given once, though commits are refused, and records come that were fetched before."""
    with prepared():
        explore(calm_loops, seeds(60), modules=MODULES)


@pytest.mark.long(form="test_any_schedule")
def test_many_schedules() -> None:
    """The same, for some minutes."""
    with prepared():
        explore(loops, seeds(10_000, 150), modules=MODULES)
