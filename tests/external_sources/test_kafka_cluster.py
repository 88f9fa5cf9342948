"""Three brokers of which one is killed: what was written, read or followed meanwhile is as if nothing had been.

In `make test` they are the embedded cluster's, where who leads a partition moves when we say so. What three processes
of Apache Kafka do by themselves, which takes fifteen CPU seconds, is the long form.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from kit.broker.handle import OpenedStream, payloads
from kit.broker.real import START_SECONDS, Cluster, RealBroker, Seat, cluster_id, free_ports
from kit.images import Seen, jpeg, padded, seen
from kit.limits import LONG
from kit.produced import numbered, shard_of, values_in
from torchvision.transforms import v2

from dali_feed import Shuffle, Tuning
from dali_feed.external_sources import KafkaStream, KafkaTopic, Produced, Producer
from dali_feed.feed import Feed
from dali_feed.records.extents import unpack_id
from dali_feed.testing import broker, publish

NODES = (1, 2, 3)
# A broker that is gone is known to be so after broker.session.timeout.ms, a controller after the quorum's own limits.
_MORE = """\
default.replication.factor=3
min.insync.replicas=2
offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
controller.quorum.fetch.timeout.ms=1000
controller.quorum.election.timeout.ms=500
replica.lag.time.max.ms=3000
log.cleaner.dedupe.buffer.size=4194304
"""


class Trio(Cluster):
    """The three, started together; killed at exit. A context manager. Topics have three replicas."""

    def __init__(self, heap: str = "192m") -> None:
        ports, name = tuple(free_ports(3)), cluster_id()
        self.brokers: dict[int, RealBroker] = {}
        for node in NODES:
            seat = Seat(node, ports, name)
            self.brokers[node] = RealBroker(heap, brief=True, seat=seat, more=_MORE)
        super().__init__(",".join(each.servers for each in self.brokers.values()))

    def create(self, topic: str, partitions: int = 1, config: dict[str, str] | None = None, replicas: int = 3) -> None:
        """Make a topic and wait until it is there with all its partitions."""
        super().create(topic, partitions, config, replicas)

    def kill(self, node: int) -> None:
        """End one with SIGKILL."""
        self.brokers[node].kill()

    def in_step(self, topic: str) -> set[int]:
        """The nodes that have all records of all of the topic's partitions."""
        partitions = self.admin.list_topics(topic, timeout=60).topics[topic].partitions.values()
        return set.intersection(*(set(partition.isrs) for partition in partitions))

    def whole(self, *topics: str) -> None:
        """Start those that were killed, and wait until each has all records of these topics."""
        for each in self.brokers.values():
            if each.pid is None:
                each.start()
        deadline = time.monotonic() + START_SECONDS
        while any(self.in_step(topic) != {*NODES} for topic in topics):
            assert time.monotonic() < deadline, {topic: self.in_step(topic) for topic in topics}
            time.sleep(0.1)

    def __enter__(self) -> Self:
        with ExitStack() as stack, ThreadPoolExecutor() as at_once:
            stack.callback(self.close)
            list(at_once.map(RealBroker.start, self.brokers.values()))
            stack.pop_all()
        return self

    def close(self) -> None:
        """Kill them and remove their data. Safe to call twice."""
        for each in self.brokers.values():
            each.close()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class EmbeddedTrio(Cluster):
    """Three brokers of the embedded cluster. A context manager."""

    def __init__(self) -> None:
        self._broker, self._topics = broker(len(NODES)), list[str]()
        super().__init__(self._broker.servers)

    def create(self, topic: str, partitions: int = 1, config: dict[str, str] | None = None, replicas: int = 3) -> None:
        """Make a topic."""
        self._broker.create(topic, partitions)
        self._topics.append(topic)

    def whole(self, *_: str) -> None:
        """Nothing: nobody was killed yet."""

    def kill(self, node: int) -> None:
        """Cut one's connections and refuse new ones; the next one leads what it has led."""
        for topic in self._topics:
            for partition in range(PARTITIONS):
                if leader(self, topic, partition) == node:
                    self._broker.lead(topic, partition, node % len(NODES) + 1)
        self._broker.down(node)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._broker.close()


def leader(cluster: Cluster, topic: str, partition: int = 0) -> int:
    """The node that a partition's clients talk to."""
    found: int = cluster.admin.list_topics(topic, timeout=60).topics[topic].partitions[partition].leader
    return found


QUICK = "test_one_of_three_brokers_killed_while_a_topic_is_written_followed_and_another_read"

RECORDS = 240
BYTES = 20_000  # more in all than the loader may hold, so that the brokers are asked all along
BATCH = 16
AFTER = 4  # batches
PARTITIONS = 3  # each broker leads one


@pytest.fixture(scope="module")
def trio(needs_kafka: None) -> Iterator[Trio]:
    """The three brokers."""
    with Trio() as running:
        yield running


@pytest.fixture(params=["embedded", pytest.param("real", marks=[pytest.mark.long, pytest.mark.slow])])
def three(request: pytest.FixtureRequest) -> Iterator[Trio | EmbeddedTrio]:
    """Either."""
    if request.param == "real":
        yield request.getfixturevalue("trio")
        return
    with EmbeddedTrio() as running:
        yield running


def _readable(trio: Trio | EmbeddedTrio, name: str) -> str:
    trio.whole()
    trio.create(name, PARTITIONS)
    publish(trio.servers, name, [(padded(jpeg(n), BYTES), n) for n in range(RECORDS)])
    return name


def _epoch(trio: Cluster, topic: str, fault: Callable[[int], object] = lambda _: None) -> list[Seen]:
    """What an epoch gives; `fault` is told how many batches there were."""
    got: list[Seen] = []
    with Feed(
        KafkaTopic(topic, trio.servers, timeout=60),
        BATCH,
        shuffle=Shuffle(extent=16, window=2),
        transform=v2.RandomResizedCrop(16),
        seed=3,
        tuning=Tuning(threads=1, readers=2, memory=3 << 20),
    ) as feed:
        for batch in feed:
            got.append(seen(batch))
            fault(len(got))
    return got


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """An event that is set at the end, whatever it is: nobody waits then for records that do not come."""
    stop = threading.Event()
    try:
        yield stop
    finally:
        stop.set()


class _Between:
    """Holds a producer's loop while something happens; what it handed over before goes on being sent."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()

    def __call__(self, so_far: Produced) -> None:
        """Told by the producer."""
        if so_far.position > so_far.begun and not self.reached.is_set():
            self.reached.set()
            assert self.go_on.wait(LONG)


def _followed(trio: Cluster, topic: str, count: int, stop: threading.Event) -> list[list[bytes]]:
    """The first `count` records of a stream, by partition."""
    found: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    reader = OpenedStream(KafkaStream(topic, trio.servers, start="earliest", timeout=60), stop=stop)
    given = 0
    while given < count:
        block = reader.poll(64, 1 << 20, 0.1).block
        for record, view in zip(block.ids.tolist(), payloads(block), strict=True):
            assert view is not None
            found[unpack_id(record)[0]].append(view)
        given += len(block.ids)
        block.lease.release()
    extra = reader.poll(64, 1 << 20, 0.5).block
    assert not len(extra.ids)
    extra.lease.release()
    reader.close()
    return found


def test_one_of_three_brokers_killed_while_a_topic_is_written_followed_and_another_read(
    three: Trio | EmbeddedTrio, tmp_path: Path
) -> None:
    """The batches are those of an undisturbed epoch; topic and stream have each record once, in order."""
    read, written = _readable(three, "read"), "written"
    three.create(written, PARTITIONS)
    values = numbered(6_000)
    dealt = [values[p::PARTITIONS] for p in range(PARTITIONS)]
    want = _epoch(three, read)
    victim, between = leader(three, read), _Between()
    with ThreadPoolExecutor() as beside, _stopping() as stop:
        producer = Producer(written, three.servers, queue_bytes=64 << 10, timeout=60)
        done = beside.submit(producer.run, shard_of(tmp_path, values), tell=between)
        followed = beside.submit(_followed, three, written, len(values), stop)

        def fault(batches: int) -> None:
            if batches == AFTER:
                assert between.reached.wait(LONG)
                three.kill(victim)
                between.go_on.set()

        got = _epoch(three, read, fault)
        assert done.result(LONG).tally.records == len(values)
        assert followed.result(LONG) == dealt
    assert got == want
    assert values_in(three.servers, written) == dealt
    assert {leader(three, topic, p) for topic in (read, written) for p in range(PARTITIONS)} == {*NODES} - {victim}


class _Turns:
    """Kills the brokers one after the other, each when a third more of the way is gone and all are up again."""

    def __init__(self, trio: Trio, way: int, *topics: str) -> None:
        self._trio, self._topics = trio, topics
        self._due = {way * turn // len(NODES): node for turn, node in enumerate(NODES)}

    def __call__(self, gone: int) -> None:
        """Told how far something is."""
        for at in [each for each in self._due if each < gone]:
            self._trio.whole(*self._topics)
            self._trio.brokers[self._due.pop(at)].kill()


@pytest.mark.slow
@pytest.mark.long(form=QUICK)
@pytest.mark.parametrize("transactional", [False, True])
def test_each_broker_killed_in_turn_while_a_topic_is_written_and_followed(
    trio: Trio, tmp_path: Path, transactional: bool
) -> None:
    """Whatever it was: leader, coordinator of the transactions, controller."""
    topic = f"turns-{transactional}"
    trio.whole()
    trio.create(topic, PARTITIONS)
    values = numbered(6_000)
    dealt = [values[p::PARTITIONS] for p in range(PARTITIONS)]
    turns = _Turns(trio, len(values), topic)
    transactional_id = topic if transactional else None
    producer = Producer(topic, trio.servers, transactional_id=transactional_id, queue_bytes=64 << 10, timeout=60)
    with ThreadPoolExecutor() as beside, _stopping() as stop:
        followed = beside.submit(_followed, trio, topic, len(values), stop)
        done = producer.run(
            shard_of(tmp_path, values),
            journal=tmp_path / "journal" if transactional else None,
            every=0.2,
            tell=lambda so_far: turns(so_far.position),
        )
        assert done.tally.records == len(values)
        assert followed.result(LONG) == dealt
    assert values_in(trio.servers, topic) == dealt
