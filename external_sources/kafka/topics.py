"""Topics made, looked at, grown and deleted.

The law of this file: nothing is repeated that was asked of the cluster's controller, for the first try may have been
done; first it is made sure that somebody answers and lets us in, then the wish is sent once.
"""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    ListOffsetsResultInfo,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from dali_feed.errors import ConfigError, SourceDeniedError, SourceError
from dali_feed.external_sources.kafka.cluster import Cluster
from dali_feed.external_sources.kafka.errors import DENIED, GONE, Trouble, gone, unreachable
from dali_feed.external_sources.kafka.identity import Asker
from dali_feed.external_sources.kafka.options import KafkaOptions, admin_options, connect
from dali_feed.external_sources.kafka.reader import KafkaReader
from dali_feed.external_sources.kafka.sample import Sample, sampled
from dali_feed.external_sources.kafka.topic_facts import PartitionFacts, TopicFacts
from dali_feed.records.extents import MAX_PARTITION
from dali_feed.records.source import Int64s

__all__ = ["PARTITIONS", "Topics"]

PARTITIONS = 32
MESSAGE_BYTES = 8 << 20
PAUSE_SECONDS = 0.05
CODECS = ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
_REFUSED = frozenset(
    {
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.INVALID_REQUEST,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_DELETION_DISABLED,
        KafkaError.TOPIC_EXCEPTION,
    }
)


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
        self._servers = servers if isinstance(servers, str) else ",".join(servers)
        self._config, self._timeout = dict(config or {}), timeout
        if not self._servers.strip():
            msg = f"servers must be addresses as host:port; found {servers!r}"
            raise ConfigError(msg)
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
                    f"{topic}: it can grow to more than its {before} partitions, up to {MAX_PARTITION}; found "
                    f"{partitions}; to have fewer make another topic and copy the records"
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
            settings, unknown = at.settings() if answers else ({}, "this broker answers no questions about settings")
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

    @contextmanager
    def _at(self, topic: str) -> Iterator[_At]:
        if not isinstance(topic, str) or not topic:
            msg = f"topic: a topic's name is needed; found {topic!r}"
            raise ConfigError(msg)
        options = KafkaOptions(topic, self._servers, None, None, (), self._timeout, self._config)
        trouble = Trouble()
        consumer = connect(options, trouble)
        try:
            admin = AdminClient(admin_options(options, trouble))
            yield _At(options, trouble, consumer, Cluster(options, consumer, trouble), admin)
        finally:
            consumer.close()


@dataclass(frozen=True, slots=True)
class _At:
    """One topic of a cluster, while something is done to it."""

    options: KafkaOptions
    trouble: Trouble
    consumer: Consumer
    cluster: Cluster
    admin: AdminClient

    def controller(self) -> None:
        """Make sure that somebody is there to do it."""
        if not self.cluster.answers():
            msg = (
                f"{self.options.topic}: a broker must answer an admin client; {self.options.servers} has no controller"
                " that does; on the embedded broker use `dali_feed.testing.Broker.create`"
            )
            raise SourceError(msg)

    def done(self, doing: str, right: str, ask: Callable[..., dict[str, concurrent.futures.Future[Any]]]) -> None:
        """Have it done; raises what the controller says, in our words."""
        topic, servers, timeout = self.options.topic, self.options.servers, self.options.timeout
        begun = time.monotonic()
        try:
            (future,) = ask(operation_timeout=timeout, request_timeout=timeout).values()
            future.result(timeout + 1)
        except concurrent.futures.TimeoutError:
            raise unreachable(topic, servers, time.monotonic() - begun, self.trouble.last) from None
        except ValueError as error:
            msg = f"{topic}: {doing}: {error}"
            raise ConfigError(msg) from error
        except KafkaException as error:
            code, said = error.args[0].code(), error.args[0].str()
            if code == KafkaError.TOPIC_ALREADY_EXISTS:
                msg = (
                    f"{topic}: a new topic needs a name of its own; {servers} has one of this name; choose another, "
                    "or grow or delete that one"
                )
                raise ConfigError(msg) from error
            if code in GONE:
                raise gone(topic, servers, said) from error
            if code in DENIED:
                msg = (
                    f"{topic}: {doing} needs the right {right} on the topic; {servers} refuses: {said}; check "
                    "security.protocol, sasl.* and ssl.* in config= and the topic's ACLs"
                )
                raise SourceDeniedError(msg) from error
            if code in _REFUSED:
                msg = f"{topic}: {doing}: the cluster must agree to it; {servers} refuses: {said}"
                raise ConfigError(msg) from error
            if code in (KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT, KafkaError._TRANSPORT):
                raise unreachable(topic, servers, time.monotonic() - begun, self.trouble.last or said) from error
            msg = f"{topic}: {doing} at {servers} failed: {said}"
            raise SourceError(msg) from error

    def until(self, wanted: Callable[[list[int] | None], bool]) -> None:
        """Wait, at most the timeout, until the list of its partitions' leaders is as wanted (None: no topic)."""
        topic, deadline = self.options.topic, time.monotonic() + self.options.timeout
        while time.monotonic() < deadline:
            try:
                found = self.consumer.list_topics(topic, timeout=1.0).topics.get(topic)
            except KafkaException as error:
                self.trouble.last = error.args[0].str()
                continue
            missing = found is None or (found.error is not None and found.error.code() in GONE)
            leaders = None if missing or found is None else [each.leader for each in found.partitions.values()]
            if wanted(leaders or None):
                return
            time.sleep(PAUSE_SECONDS)
        msg = f"{topic}: it was done, and the list of topics of {self.options.servers} has not followed; look again"
        raise SourceError(msg)

    def settings(self) -> tuple[dict[str, str], str]:
        """The topic's configuration, or why it could not be had."""
        asked = ConfigResource(ResourceType.TOPIC, self.options.topic)
        try:
            entries = self.admin.describe_configs([asked], request_timeout=self.options.timeout)[asked].result()
        except KafkaException as error:
            if error.args[0].code() in DENIED:
                return {}, "they need the right DescribeConfigs on the topic"
            return {}, error.args[0].str()
        return {name: str(entry.value) for name, entry in entries.items() if entry.value is not None}, ""

    def times(self, partitions: list[int]) -> tuple[dict[int, float], dict[int, float]]:
        """Unix seconds of the first and the newest record of each partition, where the broker knows them."""
        newest = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]
        return self._times(partitions, OffsetSpec.for_timestamp(0)), self._times(partitions, newest)

    def _times(self, partitions: list[int], which: OffsetSpec) -> dict[int, float]:
        wanted = {TopicPartition(self.options.topic, p): which for p in partitions}
        found: dict[int, float] = {}
        for at, future in self.admin.list_offsets(wanted, request_timeout=self.options.timeout).items():
            try:
                told: ListOffsetsResultInfo = future.result()
            except KafkaException:
                continue  # an older broker, or a partition without a leader
            if told.offset >= 0 and told.timestamp >= 0:
                found[at.partition] = told.timestamp / 1000
        return found


def _whole(topic: str, **numbers: object) -> None:
    """Raise ConfigError where one is no whole number above 0."""
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            msg = f"{topic}: {name} must be a whole number above 0; found {value!r}"
            raise ConfigError(msg)
