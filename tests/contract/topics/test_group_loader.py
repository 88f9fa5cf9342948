"""A group's workers with the loader in front: they come and leave, and each record is one loop's once."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
from kit.broker.handle import Kafka
from kit.broker.real import Cluster
from kit.groups import group_of_tests, until

from dali_feed import DataLoader
from dali_feed.columns import Number
from dali_feed.external_sources import KafkaStream
from dali_feed.testing import Message

pytestmark = pytest.mark.slow

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
