"""A fleet's workers with the loader in front: one comes, one leaves, and each record is one loop's once."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from kit.broker.handle import Kafka
from kit.broker.real import Cluster
from kit.fleets import fleet_of_tests, until

from dali_feed import DataLoader
from dali_feed.columns import Number
from dali_feed.external_sources import KafkaStream
from dali_feed.testing import Message

pytestmark = pytest.mark.slow


class Loop:
    """A loop in a thread of its own, which takes batches until it is told to end."""

    def __init__(self, kafka: Kafka) -> None:
        self.got: list[int] = []
        self.end = threading.Event()
        self._stream = KafkaStream(
            kafka.topic,
            kafka.servers,
            start="earliest",
            fleet=fleet_of_tests(kafka.topic),
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
                if self.end.is_set():
                    loader.commit()
                    return

    def stop(self) -> None:
        """Finish the batch that is in hand, and leave."""
        self.end.set()
        self._thread.join()


def test_loops_that_come_and_leave_get_each_record_once(real_broker: Cluster) -> None:
    """What was read ahead of partitions that go is given to the loop before they go, and committed."""
    kafka = Kafka("real", real_broker)
    kafka.create(kafka.topic, 4)
    sent = 0

    def send() -> None:
        nonlocal sent
        kafka.publish(kafka.topic, [Message(b"%d" % n, partition=n % 4) for n in range(sent, sent + 40)])
        sent += 40

    loops = [Loop(kafka)]
    try:
        until(lambda: len(loops[0].got) > 0, send)
        loops.append(Loop(kafka))
        until(lambda: len(loops[1].got) > 0, send)
        loops[1].stop()
        send()
        until(lambda: len({*loops[0].got, *loops[1].got}) == sent, lambda: loops[0].end.wait(0.02))
    finally:
        for each in loops:
            each.stop()
    assert Counter(loops[0].got + loops[1].got) == Counter(range(sent))
