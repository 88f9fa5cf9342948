"""Topics made, looked at, grown and deleted.

The law of this file: nothing is repeated that was asked of the cluster's controller, for the first try may have been
done; first it is made sure that somebody answers and lets us in, then the wish is sent once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from confluent_kafka.admin import NewPartitions, NewTopic

from dali_feed.errors import ConfigError, SourceDeniedError
from dali_feed.external_sources.kafka.addresses import addresses
from dali_feed.external_sources.kafka.at_topic import AtTopic, at_topic
from dali_feed.external_sources.kafka.identity import Asker
from dali_feed.external_sources.kafka.options import KafkaOptions
from dali_feed.external_sources.kafka.reader import KafkaReader
from dali_feed.external_sources.kafka.sample import Sample, sampled
from dali_feed.external_sources.kafka.topic_facts import PartitionFacts, TopicFacts
from dali_feed.records.extents import MAX_PARTITION
from dali_feed.records.source import Int64s

__all__ = ["PARTITIONS", "Topics"]

PARTITIONS = 32
MESSAGE_BYTES = 8 << 20
CODECS = ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")


class Topics:
    """The topics of a cluster.

    Args:
        servers: bootstrap addresses, "host:port,host:port" or a list of them.
        config: more options of librdkafka, such as `security.protocol`, `sasl.*`, `ssl.*`; secrets as `FromEnv` or
            `FromFile`.
        timeout: seconds after which a cluster that says nothing counts as unreachable.

    Every method raises:
        SourceUnreachableError: no answer for `timeout` seconds.
        SourceDeniedError: no rights, or credentials that are refused.
        SourceError: the cluster could not do it.
        ConfigError: an argument that cannot be, or that the cluster refuses.
    """

    def __init__(
        self, servers: str | Sequence[str], *, config: Mapping[str, Any] | None = None, timeout: float = 30.0
    ) -> None:
        self._servers = addresses("", servers)
        self._config, self._timeout = dict(config or {}), timeout
        if not timeout > 0:
            msg = f"timeout must be above 0 seconds; found {timeout!r}"
            raise ConfigError(msg)

    def __repr__(self) -> str:
        return f"Topics({self._servers!r})"

    def create(
        self,
        topic: str,
        partitions: int = PARTITIONS,
        *,
        replication: int | None = None,
        retention: float | None = None,
        segment_bytes: int | None = None,
        compression: str = "producer",
        max_message_bytes: int = MESSAGE_BYTES,
        min_insync_replicas: int | None = None,
    ) -> None:
        """Make a topic, and wait until all of it is there.

        Args:
            topic: its name.
            partitions: 2 to 4 per GPU of the largest run are good; more can be added, none taken away.
            replication: brokers that have each record; None: the cluster's default.
            retention: seconds that a record is kept at least; None: for ever.
            segment_bytes: size of the files that a partition is kept in, and deleted by; None: the cluster's default.
            compression: "producer" (as each producer sends it), "uncompressed", "gzip", "snappy", "lz4" or "zstd".
            max_message_bytes: the largest record, its key, headers and some bytes of frame included.
            min_insync_replicas: brokers that must have a record before it counts; None: the cluster's default.

        Raises:
            ConfigError: there is such a topic; or the cluster refuses a setting, and the message says which.
        """
        _whole(topic, partitions=partitions, max_message_bytes=max_message_bytes)
        given = {"replication": replication, "segment_bytes": segment_bytes, "min_insync_replicas": min_insync_replicas}
        _whole(topic, **{name: value for name, value in given.items() if value is not None})
        if partitions > MAX_PARTITION:
            msg = f"{topic}: at most {MAX_PARTITION} partitions are supported; found {partitions}"
            raise ConfigError(msg)
        if compression not in CODECS:
            msg = f"{topic}: compression must be one of {', '.join(CODECS)}; found {compression!r}"
            raise ConfigError(msg)
        if retention is not None and not retention > 0:
            msg = f"{topic}: retention must be above 0 seconds, or None for ever; found {retention!r}"
            raise ConfigError(msg)
        settings = {
            "cleanup.policy": "delete",
            "compression.type": compression,
            "max.message.bytes": max_message_bytes,
            "retention.ms": -1 if retention is None else round(retention * 1000),
            "segment.bytes": segment_bytes,
            "min.insync.replicas": min_insync_replicas,
        }
        config = {name: str(value) for name, value in settings.items() if value is not None}
        with self._at(topic) as at:
            at.controller()
            wish = NewTopic(topic, partitions, replication or -1, config=config)
            at.done("creating it", "Create", lambda **limits: at.admin.create_topics([wish], **limits))
            at.until(lambda leaders: leaders is not None and len(leaders) == partitions and min(leaders) >= 0)

    def grow(self, topic: str, partitions: int) -> int:
        """Add partitions until there are so many; how many there were.

        A snapshot that was taken before holds none of them. Who produces by key sends a key elsewhere from then on.

        Raises:
            SourceNotFoundError: no such topic; the message names similar ones.
            ConfigError: it has as many or more: Kafka takes no partition away.
        """
        _whole(topic, partitions=partitions)
        with self._at(topic) as at:
            before = len(at.cluster.partitions())
            if not before < partitions <= MAX_PARTITION:
                msg = (
                    f"{topic}: a topic can only grow, here to {before + 1}..{MAX_PARTITION} partitions; found "
                    f"{partitions}; to have fewer, make another topic and copy the records"
                )
                raise ConfigError(msg)
            at.controller()
            wish = NewPartitions(topic, partitions)
            at.done("adding partitions", "Alter", lambda **limits: at.admin.create_partitions([wish], **limits))
            at.until(lambda leaders: leaders is not None and len(leaders) >= partitions and min(leaders) >= 0)
        return before

    def delete(self, topic: str) -> None:
        """Delete a topic with all its records, for good, and wait until it is gone.

        Raises:
            SourceNotFoundError: no such topic; the message names similar ones.
        """
        with self._at(topic) as at:
            at.cluster.partitions()
            at.controller()
            at.done("deleting it", "Delete", lambda **limits: at.admin.delete_topics([topic], **limits))
            at.until(lambda leaders: leaders is None)

    def describe(self, topic: str) -> TopicFacts:
        """What the cluster says of a topic; a few of its records are read for their size.

        Settings, times and sizes are left out where the broker or the rights do not give them.

        Raises:
            SourceNotFoundError: no such topic; the message names similar ones.
        """
        with self._at(topic) as at:
            found = at.cluster.metadata()
            partitions = sorted(found.topics[topic].partitions.items())
            ids = [p for p, _ in partitions]
            starts, ends = at.cluster.watermarks(ids)
            answers = found.controller_id in found.brokers
            settings, unknown = (
                at.settings() if answers else ({}, "this broker does not answer questions about settings")
            )
            firsts, lasts = at.times(ids) if answers else ({}, {})
            sample = self._sample(at.options, starts, ends)
            topic_id = (Asker(at.options).ask(topic) or "") if answers else ""
        parts = tuple(
            PartitionFacts(
                p, each.leader, tuple(each.replicas), tuple(each.isrs), start, end, firsts.get(p), lasts.get(p)
            )
            for (p, each), start, end in zip(partitions, starts.tolist(), ends.tolist(), strict=True)
        )
        return TopicFacts(
            topic, topic_id, self._servers, len(found.brokers), parts, settings, unknown,
            sample.record_bytes, sample.absent, time.time(),
        )  # fmt: skip

    def _sample(self, options: KafkaOptions, starts: Int64s, ends: Int64s) -> Sample:
        if not (ends > starts).any():
            return Sample(0, 0.0)
        reader = KafkaReader(options, modest=True)
        try:
            return sampled(reader, starts, ends)
        except SourceDeniedError:  # whoever makes topics need not have the right to read them
            return Sample(0, 0.0)
        finally:
            reader.close()

    def _at(self, topic: str) -> AbstractContextManager[AtTopic]:
        if not isinstance(topic, str) or not topic:
            msg = f"topic: a topic's name is needed; found {topic!r}"
            raise ConfigError(msg)
        return at_topic(KafkaOptions(topic, self._servers, None, None, (), self._timeout, self._config))


def _whole(topic: str, **numbers: object) -> None:
    """Raise ConfigError where one is no whole number above 0."""
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            msg = f"{topic}: {name} must be a whole number above 0; found {value!r}"
            raise ConfigError(msg)
