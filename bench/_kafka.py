"""A Kafka for the benchmarks: Apache Kafka itself, or the one that KAFKA_BOOTSTRAP names."""

from __future__ import annotations

import importlib
import os
import sys
import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from dali_feed.bench import contract
from dali_feed.testing import Message, publish

__all__ = ["Topic", "broker_module", "committed", "kafka_missing", "topic"]

PARTITIONS = 4


def broker_module() -> Any:
    """tests/kit/broker/real.py, whose folder is not where Python looks."""
    tests = str(Path(__file__).parents[1] / "tests")
    if tests not in sys.path:
        sys.path.append(tests)
    return importlib.import_module("kit.broker.real")


def kafka_missing() -> str | None:
    """Why there is no broker to measure, or None."""
    if os.environ.get("KAFKA_BOOTSTRAP"):
        return None
    reason: str | None = broker_module().missing()
    return reason


def committed(servers: str, topic: str, partitions: int) -> list[list[tuple[int, bytes]]]:
    """The (offset, value) of each record of each partition."""
    options: dict[str, Any] = {"bootstrap.servers": servers, "group.id": "chaos", "enable.partition.eof": True}
    consumer = Consumer(options | {"isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(partitions)])
    found: list[list[tuple[int, bytes]]] = [[] for _ in range(partitions)]
    ended: set[int] = set()
    while len(ended) < partitions:
        message = consumer.poll(60)
        assert message is not None, "nothing came for a minute"
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        if message.error() is None:
            found[partition].append((offset, message.value() or b""))
        else:
            ended.add(partition)
    consumer.close()
    return found


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic that is there for the benchmark; `pid` is the broker's where it is ours, `size` its payload bytes."""

    servers: str
    name: str
    pid: int | None
    broker: str
    count: int
    size: int

    @property
    def where(self) -> contract.Topic:
        """As the benches of the package know it."""
        return contract.Topic(self.name, self.servers, self.pid)


@contextmanager
def topic(records: Iterable[tuple[bytes, int]], partitions: int = PARTITIONS) -> Iterator[Topic]:
    """A topic of these (value, label) records, dealt to its partitions in turn; it is deleted at the end."""
    real = broker_module()
    with ExitStack() as stack:
        if given := os.environ.get("KAFKA_BOOTSTRAP"):
            cluster, broker = real.Cluster(given), f"the broker at {given}"
        else:
            cluster = stack.enter_context(real.RealBroker())
            broker = f"Apache Kafka {real.kafka_version()} on this machine"
        name = f"dali-feed-bench-{uuid.uuid4().hex[:8]}"
        cluster.create(name, partitions)
        stack.callback(cluster.delete, name)
        count = size = 0

        def counted() -> Iterator[Message]:
            nonlocal count, size
            for value, label in records:
                count, size = count + 1, size + len(value)
                yield Message(value, headers=(("label", b"%d" % label),))

        publish(cluster.servers, name, counted())
        yield Topic(cluster.servers, name, getattr(cluster, "pid", None), broker, count, size)
