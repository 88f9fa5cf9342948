"""Streams and their feeds whole, in any schedule: rebalances, lost sessions, slow loops, commits, states, Ctrl-C."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from kit.inside import leased
from kit.schedules import Schedule, explore, seeds
from kit.scripted_kafka import Broker, Cluster, ScriptedConsumer, Stream, played
from kit.world import Letters, over_written

from dali_feed import bad_records, sync
from dali_feed.columns.column import Bytes
from dali_feed.engines import engine, workers
from dali_feed.errors import ClosedError, WaitError
from dali_feed.external_sources.kafka import group, live_reader
from dali_feed.external_sources.kafka.group import ConsumerGroup
from dali_feed.feed import Feed, passes, run, stream
from dali_feed.options import BadRecords, Tuning
from dali_feed.records import live, slabs
from dali_feed.records.source import unpack_id

pytestmark = pytest.mark.slow

MODULES = (sync, bad_records, engine, group, live, live_reader, passes, run, slabs, stream, workers)
DRAIN = 30.0
CLOSES = 60.0  # virtual seconds
LEAVES = 20.0  # that threads go on behind the last close: less than a hand-over waits for a loop
WAITS = 0.1  # that a commit may go on while partitions come or go


class MakeError(Exception):
    """What `make` raises."""


def decoded(data: memoryview) -> bytes:
    """Bytes, of which some are bad."""
    if bytes(data) == b"bad":
        msg = "bad"
        raise ValueError(msg)
    return bytes(data)


class Worker:
    """A worker of a group, or of none: a feed and its loop."""

    def __init__(self, name: str, world: World, *, grouped: bool = True) -> None:
        self.name, self.world, self.grouped = name, world, grouped
        self.letters, self.closed = Letters(None if world.calm else world.schedule), 0.0
        self.letters.seconds = world.letters or self.letters.seconds
        rng = world.rng
        source = Stream(
            "scripted",
            "nowhere:1",
            start="earliest",
            batch_timeout=rng.choice((0.05, 0.5)),
            idle_timeout=rng.choice((0.3, 0.3, 2.0)),
            group=ConsumerGroup("workers", instance=name, drain=DRAIN) if grouped else None,
        )
        self.feed = Feed(
            source,
            rng.choice((1, 2, 3)),
            columns={"value": Bytes("value", decode=decoded)},
            bad=BadRecords(limit=None, dead_letter=self.letters),
            tuning=Tuning(threads=1, prefetch=rng.choice((1, 2)), memory="8MiB"),
        )

    def calm_loop(self) -> None:
        """A loop that finishes what it gets, until all is given."""
        batches = iter(self.feed)
        while not self.world.all_given():
            self.given(batches.take())
            sync.sleep(self.world.rng.choice((0.0, 0.0, 0.3)))
            self.feed.commit()
        self.feed.close()
        self.closed = sync.monotonic()

    def loop(self) -> None:
        """What a loop does, to its end."""
        world, rng = self.world, self.world.rng
        slow = rng.choice((0.02, 0.1) if world.busy else (0.0, 0.0, 0.05, 0.5, 2.0))
        try:
            for _ in range(rng.choice((1, 1, 2))):
                batches, empty = iter(self.feed), 0
                for _ in range(rng.choice((10, 30) if world.busy else (2, 6, 20))):
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
                    if rng.random() < (0.6 if world.busy else 0.3):
                        self.commit()
                    if rng.random() < 0.1:
                        self.state(exactly=True)
        except KeyboardInterrupt:
            world.schedule.no_ctrl_c()
            self.state(exactly=False)  # a batch that counts may not have come out to the loop
        begun = sync.monotonic()
        try:
            self.feed.close()
        except KeyboardInterrupt:
            world.schedule.no_ctrl_c()
            self.feed.close()
        self.closed = sync.monotonic()
        assert self.closed - begun < CLOSES, "close takes long"

    def make(self, batch: Any) -> Any:
        """What the loop is given."""
        if self.world.rng.random() < 0.02:
            raise MakeError
        return batch

    def given(self, batch: Any) -> None:
        """The loop has it."""
        for sample in batch.ids[batch.ok].tolist():
            self.world.gave(self, *unpack_id(sample))

    def commit(self) -> None:
        """It waits for the broker's answer, but not while partitions come or go."""
        begun = sync.monotonic()
        self.feed.commit()
        came, went = self.world.broker.called.get(self.name, (0.0, 0.0))
        both = min(sync.monotonic(), went) - max(begun, came)
        assert both < WAITS or self.letters.slow, f"a commit waits for {both:.3f} s while partitions come or go"

    def state(self, *, exactly: bool) -> dict[str, Any]:
        """A state; without a group it stands where the loop is: behind all that it was given."""
        state = self.feed.state_dict()
        if not self.grouped and state["stream"] is not None:
            self.world.stands({int(p): n for p, n in state["stream"]["positions"].items()}, exactly=exactly)
        return state


class World:
    """Some workers on a topic.

    Where it is calm no session is lost, and loops end when all is given; where it is busy partitions come and go all
    the time.
    """

    def __init__(self, schedule: Schedule, *, grouped: bool = True, busy: bool = False, calm: bool = False) -> None:
        self.schedule, self.rng, self.busy, self.calm = schedule, schedule.rng, busy, calm
        rng = self.rng
        records = 100 if busy else rng.choice((4, 12))
        self.loses = rng.choice((0.0, 0.4)) if busy else 0.0 if calm else 0.15  # of what the coordinator does
        self.broker = Cluster.broker = Broker(schedule, rng.choice((1, 2, 3)), records, calm=calm)
        self.times: Counter[tuple[int, int]] = Counter()
        self.next: dict[tuple[int, int], int] = {}  # of a partition, each time that it was dealt: what comes next
        self.wrong = list[str]()  # what commits must not do; said at the end, as no callback may raise it
        self.broker.check = self.commits
        self.letters = (rng.choice((0.0, 0.0, 3.0)),) if busy else None  # how long dead letters take; else it is drawn
        names = ("a", "b")[: 1 if busy or not grouped else rng.choice((1, 2, 2))]
        self.workers = [Worker(name, self, grouped=grouped) for name in names]

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
        if worker.grouped:
            owner = broker.owner[partition]
            assert owner is not None, f"{partition}@{offset} is given while its partition is nobody's"
            assert owner.name == worker.name, f"{partition}@{offset} is given while its partition is another's"
        which = partition, broker.times[partition]
        expected = self.next.get(which, broker.begins[partition])
        assert offset >= expected, f"{partition}@{offset} is given where {expected} comes next"
        assert not (lost := self.good(partition, expected, offset)), f"{partition}@{offset} is given, and {lost} not"
        self.next[which] = offset + 1

    def good(self, partition: int, first: int, stop: int) -> list[int]:
        """The good records there."""
        records = self.broker.records[partition]
        return [at for at in range(first, stop) if records.get(at, b"bad") != b"bad"]

    def stands(self, position: dict[int, int], *, exactly: bool) -> None:
        """Nothing that was given comes again, and `exactly` nothing is passed over, where a loop goes on from there."""
        for p, offset in position.items():
            expected = self.next.get((p, 0), 0)
            assert offset >= expected, f"a state stands at {p}@{offset}, and the loop has all below {expected}"
            lost = self.good(p, expected, offset) if exactly else []
            assert not lost, f"a state counts {lost} of {p}, which were not given"
            self.next[p, 0] = offset

    def commits(self, consumer: ScriptedConsumer, offsets: dict[int, int]) -> None:
        """A commit arrives: it never goes back, and what lies before it was given, or is bad and its letter durable."""
        del consumer
        letters = {unpack_id(sample) for each in self.workers for sample in each.letters.written}
        for p, offset in offsets.items():
            was = self.broker.committed.get(p, 0)
            if offset < was:
                self.wrong.append(f"a commit of {p} goes back from {was} to {offset}")
            for at in range(was, offset):
                value = self.broker.records[p].get(at)
                if value == b"bad" and (p, at) not in letters:
                    self.wrong.append(f"{p}@{at} is committed, and its dead letter is not durable")
                elif value not in (None, b"bad") and not self.times[p, at]:
                    self.wrong.append(f"{p}@{at} is committed, and was never given")

    def balances(self) -> None:
        """What the coordinator does, until all have left."""
        rng, broker = self.rng, self.broker
        pauses = (0.0, 0.02, 0.1, 0.5) if self.busy else (0.0, 0.02, 0.3, 2.0)
        for _ in range(60 if self.busy else rng.choice((0, 1, 3, 10))):
            sync.sleep(rng.choice(pauses))
            self.schedule.dawdle(200)
            if all(each.closed for each in self.workers):
                return
            if broker.members and rng.random() < self.loses:
                broker.lose(rng.choice(broker.members))
                broker.target |= dict.fromkeys(broker.target) if self.busy else {}
            elif self.busy:
                self.moves(rng.choice(list(broker.target)))
            else:
                broker.balance()

    def moves(self, partition: int) -> None:
        """A partition goes to a member that is not played, or comes back when that has done some of it."""
        broker, rng = self.broker, self.rng
        if broker.target[partition] is not None:
            broker.target[partition] = None
        elif broker.owner[partition] is None and broker.members:
            at = broker.committed.get(partition, 0)
            end = min(at + rng.choice((0, 1, 3, 20)), broker.end)
            self.times.update((partition, n) for n in range(at, end))
            broker.committed |= {partition: end} if end > at else {}
            broker.target[partition] = rng.choice(broker.members)

    def run(self) -> None:
        """To the end."""
        first, *more = [each.calm_loop if self.calm else each.loop for each in self.workers]
        others = [sync.Thread(target=each, name="loop") for each in more]
        others.append(sync.Thread(target=self.balances, name="coordinator"))
        for each in others:
            each.start()
        if not self.calm and self.rng.random() < 0.3:
            with suppress(KeyboardInterrupt):
                self.schedule.ctrl_c(within=6000)
        first()
        self.ended()
        if self.calm:
            assert set(self.times.values()) <= {1}, f"given twice: {self.times}"

    def ended(self) -> None:
        """All loops are over: so are all threads, soon, and nothing is held."""
        self.schedule.no_ctrl_c()
        self.schedule.rest()
        late = sync.monotonic() - max(each.closed for each in self.workers)
        assert late < LEAVES, f"threads end {late:.1f} s after the last close"
        assert not self.wrong, self.wrong[0]
        for worker in self.workers:
            assert leased(worker.feed) == 0, f"{leased(worker.feed)} bytes are never given back"


def loops(schedule: Schedule) -> None:
    """Of any number of workers."""
    World(schedule).run()


def calm_loops(schedule: Schedule) -> None:
    """The same, with partitions that move in good order."""
    World(schedule, calm=True).run()


def moves(schedule: Schedule) -> None:
    """One worker, whose partitions come and go all the time."""
    World(schedule, busy=True).run()


def alone(schedule: Schedule) -> None:
    """A stream without a group; another feed goes on from the state of the one before."""
    world, state = World(schedule, grouped=False), None
    for _ in range(schedule.rng.choice((1, 2, 3))):
        worker = world.workers[-1]
        if state is not None:
            worker = Worker("a", world, grouped=False)
            worker.feed.load_state_dict(state)
            world.workers.append(worker)
        if schedule.rng.random() < 0.3:
            with suppress(KeyboardInterrupt):
                schedule.ctrl_c(within=3000)
        worker.loop()
        state = worker.state(exactly=True)
    world.ended()


def begins(schedule: Schedule) -> None:
    """Another thread closes the feed while the loop makes its iterator."""
    world = World(schedule, grouped=schedule.rng.random() < 0.5)
    worker = world.workers[0]

    def closes() -> None:
        schedule.dawdle(100)
        worker.feed.close()

    other = sync.Thread(target=closes, name="closes")
    other.start()
    with suppress(ClosedError):
        iter(worker.feed)
    other.join()
    for each in world.workers:
        each.feed.close()
        each.closed = sync.monotonic()
    world.ended()


def shares(schedule: Schedule) -> None:
    """Threads make iterators over one stream at once: what a state counts was given to one of them."""
    world = World(schedule, grouped=False)
    feed, given = world.workers[0].feed, set[tuple[int, int]]()

    def takes() -> None:
        with suppress(ClosedError):
            for _ in range(2):
                batches = iter(feed)
                for _ in range(schedule.rng.choice((1, 3))):
                    with suppress(WaitError):
                        batch = batches.take(2.0)
                        given.update(map(unpack_id, batch.ids[batch.ok].tolist()))

    others = [sync.Thread(target=takes, name=f"takes-{n}") for n in range(2)]
    for each in others:
        each.start()
    takes()
    for each in others:
        each.join()
    for p, offset in (feed.state_dict()["stream"] or {"positions": {}})["positions"].items():
        lost = [at for at in world.good(int(p), world.broker.begins[int(p)], offset) if (int(p), at) not in given]
        assert not lost, f"a state counts {lost} of {p}, which nobody was given"
    feed.close()
    world.workers[0].closed = sync.monotonic()
    world.ended()


@contextmanager
def prepared() -> Iterator[None]:
    """Within, schedules may run."""
    with over_written(), played():
        yield


COUNTS = {loops: 80, calm_loops: 40, moves: 80, alone: 60, begins: 80, shares: 60}


@pytest.mark.parametrize(("scenario", "count"), COUNTS.items())
def test_any_schedule(scenario: Callable[[Schedule], None], count: int) -> None:
    """Nothing is committed that was not given, nor before its dead letter; every wait ends, and every thread."""
    with prepared():
        explore(scenario, seeds(count), modules=MODULES)


@pytest.mark.long(form="test_any_schedule")
@pytest.mark.parametrize("first", range(150, 2_650, 500))
@pytest.mark.parametrize("scenario", COUNTS)
def test_many_schedules(scenario: Callable[[Schedule], None], first: int) -> None:
    """The same, for some minutes: a test that takes five counts as hung."""
    with prepared():
        explore(scenario, seeds(500, first), modules=MODULES)
