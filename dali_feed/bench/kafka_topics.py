"""A topic of photos for a bench: on a broker that is given, or on librdkafka's mock in this process."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from dali_feed.bench.contract import Topic
from dali_feed.external_sources import Topics
from dali_feed.testing import broker, publish

__all__ = ["PARTITIONS", "topic_at", "topic_here"]

PARTITIONS = 4
MOCK_BYTES = 4 << 20  # of a partition; the mock drops the oldest beyond 5 MiB


@contextmanager
def topic_at(servers: str, records: Iterable[tuple[bytes, int]], *, timeout: float) -> Iterator[Topic]:
    """A topic with a name of its own, deleted at the end. Raises what `Topics.create` and `publish` raise."""
    name, topics = f"dali-feed-bench-{uuid.uuid4().hex[:8]}", Topics(servers, timeout=timeout)
    topics.create(name, PARTITIONS)
    try:
        publish(servers, name, records)
        yield Topic(name, servers)
    finally:
        topics.delete(name)


@contextmanager
def topic_here(records: Iterable[tuple[bytes, int]], size: int) -> Iterator[Topic]:
    """A topic of about `size` bytes on a mock broker; what that costs of the CPU is this process's own."""
    with broker() as running:
        running.create("photos", max(PARTITIONS, -(-size // MOCK_BYTES)))
        publish(running.servers, "photos", records)
        yield Topic("photos", running.servers)
