"""One topic of a cluster, while something is done to it or asked of it: clients, and what they say in our words."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ListOffsetsResultInfo, OffsetSpec, ResourceType

from dali_feed.errors import ConfigError, SourceDeniedError, SourceError
from dali_feed.external_sources.kafka.cluster import Cluster
from dali_feed.external_sources.kafka.errors import DENIED, GONE, Trouble, gone, unreachable
from dali_feed.external_sources.kafka.options import KafkaOptions, admin_options, connect

__all__ = ["AtTopic", "at_topic"]

PAUSE_SECONDS = 0.05
_CURES = {
    KafkaError.INVALID_REPLICATION_FACTOR: "; each replica needs a broker of its own: take fewer, or leave it out",
}
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


@dataclass(frozen=True, slots=True)
class AtTopic:
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
                f"{self.options.topic}: an admin client needs a controller; {self.options.servers} has none that "
                "answers; on the embedded broker use `dali_feed.testing.Broker.create`"
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
                    f"{topic}: a new topic needs a new name; {servers} already has a topic of this name; choose "
                    "another name, or grow or delete that topic"
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
                cure = _CURES.get(code, "")
                msg = f"{topic}: {doing}: the cluster must accept it; {servers} refuses: {said}{cure}"
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
        msg = (
            f"{topic}: it was done, but the list of topics of {self.options.servers} does not show it yet; look "
            "again later"
        )
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


@contextmanager
def at_topic(options: KafkaOptions) -> Iterator[AtTopic]:
    """Clients for the topic that `options` names; nothing is asked yet."""
    trouble = Trouble()
    consumer = connect(options, trouble, modest=True)  # of records it reads one at most
    try:
        admin = AdminClient(admin_options(options, trouble))
        yield AtTopic(options, trouble, consumer, Cluster(options, consumer, trouble), admin)
    finally:
        consumer.close()
