"""Ray Data's read_kafka: a task for each partition."""

from __future__ import annotations

from typing import Any

from dali_feed.bench.contract import Job
from dali_feed.bench.peers._kafka import NO_TOPIC, topic_of
from dali_feed.bench.peers._ray import REPEATS, RayPeer

__all__ = ["RayKafka"]

TIMEOUT = 60_000  # milliseconds that a read task may take


class RayKafka(RayPeer):
    """Several passes over the topic are an epoch."""

    name, modules, column = "ray-kafka", ("ray.data", "confluent_kafka"), "value"

    def unable(self, job: Job) -> str | None:
        """It reads topics alone."""
        return None if job.data.topic else NO_TOPIC

    def ready(self, job: Job) -> None:
        """Raise ConfigError where there is no topic."""
        topic_of(job)

    def rows(self, job: Job) -> Any:
        """The topic's records, their images in `value`."""
        import ray.data

        topic = topic_of(job)
        once = ray.data.read_kafka(topic.name, bootstrap_servers=topic.servers, timeout_ms=TIMEOUT)
        return once.union(*[once] * (REPEATS - 1))
