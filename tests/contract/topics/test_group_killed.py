"""Workers in processes of their own, killed and stopped: nothing is lost, and hardly anything comes twice."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from kit import groups
from kit.broker.handle import Kafka
from kit.broker.real import Cluster
from kit.groups import Worker, group_of_tests, until
from kit.limits import LONG

from dali_feed.testing import Message

pytestmark = [pytest.mark.slow, pytest.mark.waits]

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


def fill(kafka: Kafka, first: int = 0) -> set[tuple[int, int]]:
    """Records in each of four partitions, and their places."""
    records = [Message(b"%d" % n, partition=p) for p in range(4) for n in range(first, first + EACH)]
    return set(kafka.publish(kafka.topic, records, partitions=None if first else 4))


def never_idle(kafka: Kafka, here: Worker, other: Process, records: set[tuple[int, int]]) -> Callable[[], None]:
    """Adds records whenever all have come, so that whoever is dealt a partition, however late, has some to read."""

    def turn() -> None:
        if (here.got + other.got()).keys() == records:
            records.update(fill(kafka, len(records)))

    return turn


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_killed_worker_loses_nothing(real_broker: Cluster, tmp_path: Path, protocol: Any) -> None:
    """After kill -9 another goes on from its last commit: all records come, and few of them twice."""
    kafka = Kafka("real", real_broker)
    records = fill(kafka)
    here = Worker(kafka.topic, kafka.servers, group_of_tests(kafka.topic, protocol))
    with closing(here), process(kafka, tmp_path, protocol, "one") as other:
        until(lambda: len(here.partitions) == 2, here.turn)
        records |= fill(kafka, EACH)
        until(lambda: len(other.got()) > EACH, here.turn, never_idle(kafka, here, other, records))
        other.running.send_signal(signal.SIGKILL)
        other.running.wait()
        records |= fill(kafka, 2 * EACH)
        until(lambda: (here.got + other.got()).keys() == records, here.turn)
        twice = [place for place, times in (here.got + other.got()).items() if times > 1]
        assert len(twice) <= 4  # the block that was in hand


def test_a_worker_that_was_thrown_out_says_so_and_joins_again(real_broker: Cluster, tmp_path: Path) -> None:
    """A process that stood still for longer than the session: others have its partitions, and it comes back."""
    kafka = Kafka("real", real_broker)
    records = fill(kafka)
    here = Worker(kafka.topic, kafka.servers, group_of_tests(kafka.topic))
    with closing(here), process(kafka, tmp_path, "classic", "one") as other:
        until(lambda: len(here.partitions) == 2, here.turn)
        records |= fill(kafka, EACH)
        until(lambda: len(other.got()) > 0, here.turn, never_idle(kafka, here, other, records))
        other.running.send_signal(signal.SIGSTOP)
        until(lambda: len(here.partitions) == 4, here.turn)
        before = len(other.got())
        other.running.send_signal(signal.SIGCONT)
        until(lambda: len(here.partitions) == 2, here.turn)
        records |= fill(kafka, 2 * EACH)
        until(lambda: len(other.got()) > before, here.turn, never_idle(kafka, here, other, records))
        until(lambda: (here.got + other.got()).keys() == records, here.turn)
        assert "the group removed this worker" in other.log.read_text()


DROPPED = """
import gc, sys
from dali_feed.external_sources import ConsumerGroup
from dali_feed.external_sources import KafkaStream
from kit.inside import SlabPool

group = ConsumerGroup(sys.argv[2], "classic", session=1500.0)
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


@pytest.mark.parametrize("left", ["dropped", "at exit"])
def test_a_reader_that_nobody_closes_leaves_its_group(real_broker: Cluster, left: str) -> None:
    """Its partitions go to others at once, though its process lives and its session is long; and nothing hangs."""
    kafka = Kafka("real", real_broker)
    fill(kafka)
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
