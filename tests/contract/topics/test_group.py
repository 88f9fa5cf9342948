"""Workers of a group, in one process, in loaders and in processes that are killed: who has which record."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient, NewPartitions
from kit import groups
from kit.broker.handle import Kafka
from kit.broker.real import ALICE, PASSWORD, Cluster, RealBroker
from kit.groups import Worker, group_of_tests, seen, until
from kit.limits import LONG

from dali_feed import DataLoader
from dali_feed.columns import Number
from dali_feed.errors import ConfigError, DataLostError, SourceDeniedError, SourceNotFoundError
from dali_feed.external_sources import ConsumerGroup, KafkaStream
from dali_feed.testing import Message

pytestmark = pytest.mark.slow


@pytest.fixture
def kafka(real_broker: Cluster) -> Kafka:
    """Apache Kafka: the embedded broker's groups are not those of a broker."""
    return Kafka("real", real_broker)


@pytest.fixture
def workers() -> Iterator[list[Worker]]:
    """To be closed at the end."""
    made: list[Worker] = []
    yield made
    for each in made:
        each.reader.close()


def fill(kafka: Kafka, partitions: int = 4, each: int = 60, first: int = 0) -> set[tuple[int, int]]:
    """Put records into each partition, the topic made first where `first` is 0; their places."""
    records = [Message(b"%d" % n, partition=p) for p in range(partitions) for n in range(first, first + each)]
    return set(kafka.publish(kafka.topic, records, partitions=None if first else partitions))


def admin_of(kafka: Kafka) -> AdminClient:
    """Of Apache Kafka."""
    assert isinstance(kafka.cluster, Cluster)
    return kafka.cluster.admin


def committed(kafka: Kafka, partitions: int = 4) -> dict[int, int]:
    """The group's offsets; it has the topic's name."""
    consumer = Consumer({"bootstrap.servers": kafka.servers, "group.id": kafka.topic, "log_level": 0})
    try:
        places = consumer.committed([TopicPartition(kafka.topic, p) for p in range(partitions)], timeout=60)
        return {each.partition: each.offset for each in places if each.offset >= 0}
    finally:
        consumer.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_workers_that_come_and_leave_in_order_read_each_record_once(
    kafka: Kafka, workers: list[Worker], protocol: Any
) -> None:
    """A second worker comes in the middle and leaves again; nothing is lost and nothing comes twice."""
    records = fill(kafka)
    one = Worker(kafka.topic, kafka.servers, group_of_tests(kafka.topic, protocol))
    two = Worker(kafka.topic, kafka.servers, group_of_tests(kafka.topic, protocol))
    workers += [one, two]
    until(lambda: len(one.got) > 20, one.turn)
    until(lambda: len(one.partitions) == len(two.partitions) == 2, one.turn, two.turn)
    records |= fill(kafka, first=60)
    until(lambda: seen([one, two]).keys() == records, one.turn, two.turn)
    two.close()
    records |= fill(kafka, first=120)
    until(lambda: seen([one, two]).keys() == records, one.turn)
    assert two.got
    assert set(seen([one, two]).values()) == {1}
    one.close()
    assert committed(kafka) == dict.fromkeys(range(4), 180)


def test_a_loop_that_takes_its_time_stays_a_member_and_gives_up_what_others_get(
    kafka: Kafka, workers: list[Worker]
) -> None:
    """The first wants no records: the second gets its share, and only what the first has in hand comes twice."""
    records = fill(kafka)
    group = group_of_tests(kafka.topic, drain=0.1)
    slow = {"max.poll.interval.ms": 2000}
    one = Worker(kafka.topic, kafka.servers, group, config=slow)
    two = Worker(kafka.topic, kafka.servers, group, config=slow)
    workers += [one, two]
    until(lambda: len(one.got) > 20, one.turn)
    hand = dict(one.held)
    until(lambda: len(two.partitions) == 2, two.turn, one.look)
    assert len(one.partitions) == 2
    until(lambda: seen([one, two]).keys() == records, one.turn, two.turn)
    twice = {place for place, times in seen([one, two]).items() if times > 1}
    assert {p for p, _ in twice} <= hand.keys()
    assert len(twice) <= 8


def test_latest_is_looked_up_once_and_a_new_partition_has_its_beginning(kafka: Kafka, workers: list[Worker]) -> None:
    """A worker that ends before it has finished anything costs nothing; `start` is about a group that is new."""
    fill(kafka, 1)
    one = Worker(kafka.topic, kafka.servers, group_of_tests(kafka.topic), "latest")
    workers.append(one)
    until(lambda: one.partitions == (0,), one.turn)
    one.close()
    assert committed(kafka, 1) == {0: 60}
    kafka.publish(kafka.topic, [Message(b"x", partition=0)])
    admin_of(kafka).create_partitions([NewPartitions(kafka.topic, 2)])[kafka.topic].result(60)
    kafka.publish(kafka.topic, [Message(b"y", partition=1)])
    two = Worker(kafka.topic, kafka.servers, group_of_tests(kafka.topic), "latest")
    workers.append(two)
    until(lambda: len(two.got) == 2, two.turn)
    assert set(two.got) == {(0, 60), (1, 0)}


def test_offsets_that_retention_took_are_an_error(kafka: Kafka, workers: list[Worker]) -> None:
    """The group's offset is gone: a named error with the offsets, and no jump."""
    fill(kafka, 1)
    one = Worker(kafka.topic, kafka.servers, group_of_tests(kafka.topic))
    workers.append(one)
    until(lambda: len(one.got) == 8, one.turn)
    one.commit()
    one.close()
    kafka.delete_records(kafka.topic, 0, 20)
    two = Worker(kafka.topic, kafka.servers, group_of_tests(kafka.topic))
    workers.append(two)
    with pytest.raises(DataLostError, match=rf"{kafka.topic}\[0\]@8: offsets 8\.\.19 .*broker holds 20\.\.59"):
        until(lambda: False, two.turn)
    assert not two.got


def test_a_group_that_must_have_offsets_and_has_none(kafka: Kafka, workers: list[Worker]) -> None:
    """With start="group" nothing is begun by itself."""
    fill(kafka, 1)
    one = Worker(kafka.topic, kafka.servers, group_of_tests(kafka.topic), "group")
    workers.append(one)
    with pytest.raises(DataLostError, match=rf"{kafka.topic}\[0\]: the group .* must have an offset of it"):
        until(lambda: False, one.turn)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_worker_with_a_name_comes_back_to_its_partitions(kafka: Kafka, workers: list[Worker], protocol: Any) -> None:
    """Static membership: a restart moves no partition of others; two at once with one name are refused."""
    records = fill(kafka)
    one, two, again = (
        Worker(kafka.topic, kafka.servers, ConsumerGroup(kafka.topic, protocol, instance=name))
        for name in ("one", "two", "two")
    )
    workers += [one, two, again]
    until(lambda: len(one.partitions) == len(two.partitions) == 2, one.turn, two.turn)
    before = one.partitions, two.partitions
    two.close()
    until(lambda: len(again.partitions) == 2, one.turn, again.turn)
    assert (one.partitions, again.partitions) == before
    until(lambda: seen([one, two, again]).keys() == records, one.turn, again.turn)
    assert set(seen([one, two, again]).values()) == {1}
    fourth = Worker(kafka.topic, kafka.servers, ConsumerGroup(kafka.topic, protocol, instance="two"))
    workers.append(fourth)
    with pytest.raises(ConfigError, match="one worker at a time may use the name of an instance"):
        until(lambda: False, again.turn, fourth.turn)


def test_nothing_is_committed_below_where_a_worker_began_or_of_what_is_not_its_own(
    kafka: Kafka, workers: list[Worker]
) -> None:
    """A loop that is behind what others did in the meantime sets nothing back."""
    fill(kafka, 2)
    one = Worker(kafka.topic, kafka.servers, group_of_tests(kafka.topic))
    workers.append(one)
    until(lambda: len(one.got) > 100, one.turn)
    one.reader.commit({0: 50, 1: 40, 7: 3})
    one.reader.commit({0: 30, 1: 45})
    assert committed(kafka, 2) == {0: 50, 1: 45}


def test_a_missing_topic_is_named(kafka: Kafka, workers: list[Worker]) -> None:
    """As for a bounded topic."""
    kafka.create(kafka.topic)
    one = Worker(f"{kafka.topic}x", kafka.servers, ConsumerGroup("g"))
    workers.append(one)
    with pytest.raises(SourceNotFoundError, match=kafka.topic):
        one.turn()


def test_a_group_that_may_not_be_joined_is_named(real_broker: Cluster, workers: list[Worker]) -> None:
    """The right Read on the topic is not enough."""
    if not isinstance(real_broker, RealBroker):
        pytest.skip("the given broker has users of its own")
    kafka = Kafka("real", real_broker)
    fill(kafka, 1)
    real_broker.allow(kafka.topic, AclOperation.READ)
    config = {**ALICE, "sasl.password": PASSWORD}
    said = ""
    while "joining a group needs the right Read" not in said:  # an ACL reaches the broker a moment after it was made
        one = Worker(kafka.topic, real_broker.sasl_servers, group_of_tests(kafka.topic), config=config)
        workers.append(one)
        with pytest.raises(SourceDeniedError, match=kafka.topic) as caught:
            until(lambda: False, one.turn)
        said = str(caught.value)


DRAIN = 3.0  # seconds that a hand-over may take at most


class Loop:
    """A loop in a thread of its own, which takes batches until it is told to end; a slow one commits after each."""

    def __init__(self, kafka: Kafka, protocol: Any = "classic", *, slow: bool = False) -> None:
        self.got: list[int] = []
        self.end = threading.Event()
        self._slow = slow
        self._stream = KafkaStream(
            kafka.topic,
            kafka.servers,
            start="earliest",
            group=group_of_tests(kafka.topic, protocol, drain=DRAIN),
            label=None,
            batch_timeout=0.02,
            idle_timeout=0.05,
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with DataLoader(self._stream, 8, columns={"n": Number("value", "int64")}, device="cpu") as loader:
            for batch in loader:
                self.got += batch["n"].tolist()
                if self._slow and len(batch["n"]):
                    self.end.wait(0.05)
                    loader.commit()
                if self.end.is_set():
                    loader.commit()
                    return

    def stop(self) -> None:
        """Finish the batch that is in hand, and leave."""
        self.end.set()
        self._thread.join()


class Topic:
    """A topic of four partitions, and how many records it has."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka, self.sent = kafka, 0
        kafka.create(kafka.topic, 4)

    def send(self) -> None:
        """Forty more."""
        more = range(self.sent, self.sent + 40)
        self._kafka.publish(self._kafka.topic, [Message(b"%d" % n, partition=n % 4) for n in more])
        self.sent += 40


def test_loops_that_come_and_leave_get_each_record_once(real_broker: Cluster) -> None:
    """What was read ahead of partitions that go comes at their next worker, and what a loop has is committed before."""
    kafka = Kafka("real", real_broker)
    topic = Topic(kafka)
    loops = [Loop(kafka)]
    try:
        until(lambda: len(loops[0].got) > 0, topic.send)
        loops.append(Loop(kafka))
        until(lambda: len(loops[1].got) > 0, topic.send)
        loops[1].stop()
        topic.send()
        until(lambda: len({*loops[0].got, *loops[1].got}) == topic.sent, lambda: loops[0].end.wait(0.02))
    finally:
        for each in loops:
            each.stop()
    assert Counter(loops[0].got + loops[1].got) == Counter(range(topic.sent))


@pytest.mark.parametrize("rounds", [2, pytest.param(12, marks=pytest.mark.long)])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_hand_over_costs_one_step_of_a_slow_loop(
    real_broker: Cluster, protocol: Any, rounds: int, caplog: pytest.LogCaptureFixture
) -> None:
    """None is waited for longer than its batch takes, no commit fails, nothing is lost and nothing comes twice."""
    kafka = Kafka("real", real_broker)
    topic = Topic(kafka)
    loops = [Loop(kafka, protocol, slow=True)]
    try:
        until(lambda: len(loops[0].got) > 0, topic.send)
        for _ in range(rounds):
            topic.send()
            loops.append(Loop(kafka, protocol, slow=True))
            until(lambda: len(loops[-1].got) > 0, topic.send, lambda: loops[0].end.wait(0.5))
            loops[-1].stop()
        until(lambda: len({n for each in loops for n in each.got}) == topic.sent, lambda: loops[0].end.wait(0.02))
    finally:
        for each in loops:
            each.stop()
    assert Counter(n for each in loops for n in each.got) == Counter(range(topic.sent))
    assert not [record.getMessage() for record in caplog.records if "comes again" in record.getMessage()]


EACH = 150


class Process:
    """A worker that writes down each record before it asks for more, and commits after each block."""

    def __init__(self, kafka: Kafka, folder: Path, protocol: str, name: str) -> None:
        self.out, self.log = folder / f"{name}.out", folder / f"{name}.log"
        self.out.touch()
        command = [sys.executable, groups.__file__, kafka.servers, kafka.topic, str(self.out), protocol]
        with self.log.open("wb") as log:
            self.running = subprocess.Popen(command, stderr=log)

    def got(self) -> Counter[tuple[int, int]]:
        """What it wrote; a line that it was killed in does not count."""
        lines = self.out.read_text().split("\n")[:-1]
        return Counter((int(p), int(n)) for p, n in map(str.split, lines))


@contextmanager
def process(*what: Any) -> Iterator[Process]:
    """One that is ended at the end."""
    made = Process(*what)
    try:
        yield made
    finally:
        made.running.kill()
        made.running.wait()


def filled(kafka: Kafka, first: int = 0) -> set[tuple[int, int]]:
    """Records in each of four partitions, and their places."""
    records = [Message(b"%d" % n, partition=p) for p in range(4) for n in range(first, first + EACH)]
    return set(kafka.publish(kafka.topic, records, partitions=None if first else 4))


def never_idle(kafka: Kafka, here: Worker, other: Process, records: set[tuple[int, int]]) -> Callable[[], None]:
    """Adds records whenever all have come, so that whoever is dealt a partition, however late, has some to read."""

    def turn() -> None:
        if (here.got + other.got()).keys() == records:
            records.update(filled(kafka, len(records)))

    return turn


@pytest.mark.usefixtures("warm_children")
@pytest.mark.waits
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_killed_worker_loses_nothing(real_broker: Cluster, tmp_path: Path, protocol: Any) -> None:
    """After kill -9 another goes on from its last commit: all records come, and few of them twice."""
    kafka = Kafka("real", real_broker)
    records = filled(kafka)
    here = Worker(kafka.topic, kafka.servers, group_of_tests(kafka.topic, protocol))
    with closing(here), process(kafka, tmp_path, protocol, "one") as other:
        until(lambda: len(here.partitions) == 2, here.turn)
        records |= filled(kafka, EACH)
        until(lambda: len(other.got()) > EACH, here.turn, never_idle(kafka, here, other, records))
        other.running.send_signal(signal.SIGKILL)
        other.running.wait()
        records |= filled(kafka, 2 * EACH)
        until(lambda: (here.got + other.got()).keys() == records, here.turn)
        twice = [place for place, times in (here.got + other.got()).items() if times > 1]
        assert len(twice) <= 4  # the block that was in hand


@pytest.mark.waits
def test_a_worker_that_was_thrown_out_says_so_and_joins_again(real_broker: Cluster, tmp_path: Path) -> None:
    """A process that stood still for longer than the session: others have its partitions, and it comes back."""
    kafka = Kafka("real", real_broker)
    records = filled(kafka)
    here = Worker(kafka.topic, kafka.servers, group_of_tests(kafka.topic))
    with closing(here), process(kafka, tmp_path, "classic", "one") as other:
        until(lambda: len(here.partitions) == 2, here.turn)
        records |= filled(kafka, EACH)
        until(lambda: len(other.got()) > 0, here.turn, never_idle(kafka, here, other, records))
        other.running.send_signal(signal.SIGSTOP)
        until(lambda: len(here.partitions) == 4, here.turn)
        before = len(other.got())
        other.running.send_signal(signal.SIGCONT)
        until(lambda: len(here.partitions) == 2, here.turn)
        records |= filled(kafka, 2 * EACH)
        until(lambda: len(other.got()) > before, here.turn, never_idle(kafka, here, other, records))
        until(lambda: (here.got + other.got()).keys() == records, here.turn)
        assert "the group removed this worker" in other.log.read_text()


DROPPED = """
import gc, sys
from dali_feed.external_sources import ConsumerGroup
from dali_feed.external_sources import KafkaStream
from kit.inside import SlabPool

group = ConsumerGroup(sys.argv[2], "classic", session=1500.0, drain=0.5)
stream = KafkaStream(sys.argv[2], sys.argv[1], start="earliest", group=group, label=None)
reader = stream.live(None, ["value"])
while not reader.partitions:
    reader.poll(1, 1e9, 0.05, SlabPool().lease())
print("dealt", flush=True)
sys.stdin.readline()
if sys.argv[3] == "dropped":
    del reader
    gc.collect()
print("went on", flush=True)
"""


@pytest.mark.usefixtures("warm_children")
@pytest.mark.waits
@pytest.mark.parametrize("left", ["dropped", "at exit"])
def test_a_reader_that_nobody_closes_leaves_its_group(real_broker: Cluster, left: str) -> None:
    """Its partitions go to others at once, though its process lives and its session is long; and nothing hangs."""
    kafka = Kafka("real", real_broker)
    filled(kafka)
    command = [sys.executable, "-c", DROPPED, kafka.servers, kafka.topic, left]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    here = Worker(kafka.topic, kafka.servers, group_of_tests(kafka.topic))
    with closing(here), subprocess.Popen(command, **pipes) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "dealt\n"
            until(lambda: len(here.partitions) == 2, here.turn)  # a loop that rests gives up its part
            assert other.communicate("\n", timeout=LONG) == ("went on\n", None)
            until(lambda: len(here.partitions) == 4, here.turn)
        finally:
            other.kill()
