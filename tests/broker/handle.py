"""A broker as tests use it, whichever it is."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field

from broker import real

from dali_feed.testing import Broker, Message, publish


@dataclass
class Kafka:
    """A broker as tests use it; `name` is "embedded" or "real", `topic` a name that no other test has."""

    name: str
    cluster: Broker | real.Cluster
    topic: str = field(default_factory=lambda: f"t-{uuid.uuid4().hex[:12]}")

    @property
    def servers(self) -> str:
        """Bootstrap address."""
        return self.cluster.servers

    def create(self, topic: str, partitions: int = 1) -> str:
        """Make a topic; its name again."""
        self.cluster.create(topic, partitions)
        return topic

    def publish(
        self, topic: str, records: Iterable[tuple[bytes | None, int | None] | Message], partitions: int | None = None
    ) -> list[tuple[int, int]]:
        """Publish to a topic, made first where `partitions` is given; the (partition, offset) of each record."""
        if partitions is not None:
            self.create(topic, partitions)
        return publish(self.servers, topic, records)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Drop the records below offset `before`."""
        self.cluster.delete_records(topic, partition, before)
