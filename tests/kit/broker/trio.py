"""Three brokers of Apache Kafka, each with all records and each a controller: any one of them may die."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from kit.broker.real import START_SECONDS, Cluster, RealBroker, Seat, cluster_id, free_ports

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

    def leader(self, topic: str, partition: int = 0) -> int:
        """The node that a partition's clients talk to."""
        found: int = self.admin.list_topics(topic, timeout=60).topics[topic].partitions[partition].leader
        return found

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
