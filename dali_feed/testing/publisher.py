"""Records into a topic, and the proof that they are there.

Every delivery is waited for, and the watermarks are read afterwards: a broker that took the records and dropped
some (the embedded one keeps 5 MiB per partition) is an error here, and not a failure of a test that nobody understands.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from dali_feed.errors import ConfigError, SourceError, SourceNotFoundError, SourceUnreachableError
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.external_sources.kafka.errors import QUIET, Trouble, unreachable
from dali_feed.testing.embedded import PARTITION_BYTES, running_at

__all__ = ["Message", "publish"]

TIMEOUT = 60.0
_SOON = frozenset(  # what a broker says of a topic that was made a moment ago
    {KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.UNKNOWN_TOPIC_OR_PART}
)


@dataclass(frozen=True, slots=True)
class Message:
    """A record to publish.

    value      the record's bytes; None is a tombstone
    key        the record's key
    headers    names and values, in order
    partition  its number; None takes the partitions in turn
    """

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    partition: int | None = None


def publish(
    servers: str,
    topic: str,
    records: Iterable[tuple[bytes | None, int | None] | Message],
    *,
    partitions: int | None = None,
) -> list[tuple[int, int]]:
    """Publish records and wait until the broker has all of them.

    Args:
        servers: bootstrap address.
        topic: it must exist, unless `partitions` is given.
        records: (value, label) pairs, the label as decimal text in the header `label` (None: no header), or
            `Message`s. Those that name no partition go to the partitions in turn.
        partitions: make the topic with so many partitions where it is missing.

    Returns:
        (partition, offset) of each record, in order.

    Raises:
        SourceNotFoundError: no such topic, and `partitions` is None.
        SourceUnreachableError: no answer within 60 seconds.
        SourceError: a delivery failed, or the broker no longer holds every record.
    """
    trouble = Trouble()
    common: dict[str, Any] = {"bootstrap.servers": servers, "logger": QUIET, "error_cb": trouble}
    reader = Consumer({**common, "group.id": "dali_feed.publish", "allow.auto.create.topics": False})
    try:
        count = _partitions(reader, servers, topic, trouble)
        if count == 0:
            if partitions is None:
                msg = (
                    f"{topic}: the topic must exist at {servers}; there is none; make it, or give publish() partitions="
                )
                raise SourceNotFoundError(msg)
            _create(servers, topic, partitions)
            count = _partitions(reader, servers, topic, trouble)
        low_before = {p: _watermarks(reader, topic, p)[0] for p in range(count)}
        placed = _send(common, servers, topic, records, count, trouble)
        for p in sorted({p for p, _ in placed}):
            offsets = [o for q, o in placed if q == p]
            low, high = _watermarks(reader, topic, p)
            if low > min(low_before[p], *offsets) or high <= max(offsets):
                msg = (
                    f"{topic}[{p}]: the broker must keep all records; it took offsets {min(offsets)}..{max(offsets)} "
                    f"and holds {low}..{high - 1}; the embedded broker keeps at most {PARTITION_BYTES >> 20} MiB per "
                    "partition: use more partitions"
                )
                raise SourceError(msg)
        return placed
    except KafkaException as error:
        msg = f"{topic} at {servers}: publishing failed: {error.args[0].str()}"
        raise SourceError(msg) from error
    finally:
        reader.close()


def _partitions(reader: Consumer, servers: str, topic: str, trouble: Trouble) -> int:
    try:
        found = reader.list_topics(topic, timeout=TIMEOUT).topics.get(topic)
    except KafkaException as error:
        reader.poll(0)
        raise unreachable(Connection(topic, servers), TIMEOUT, trouble.last or error.args[0].str()) from error
    if found is None or found.error is not None:
        return 0
    return len(found.partitions)


def _create(servers: str, topic: str, partitions: int) -> None:
    embedded = running_at(servers)
    if embedded is not None:
        embedded.create(topic, partitions)
        return
    common: dict[str, Any] = {"bootstrap.servers": servers, "logger": QUIET}
    admin = AdminClient(common)
    admin.create_topics([NewTopic(topic, partitions)], operation_timeout=TIMEOUT)[topic].result(TIMEOUT)
    deadline = time.monotonic() + TIMEOUT
    while (found := admin.list_topics(timeout=TIMEOUT).topics.get(topic)) is None or len(found.partitions) < partitions:
        if time.monotonic() > deadline:
            msg = f"{topic}: a new topic must be there within {TIMEOUT:.0f} s; {servers} still has none of that name"
            raise SourceUnreachableError(msg)


def _watermarks(reader: Consumer, topic: str, partition: int) -> tuple[int, int]:
    deadline = time.monotonic() + TIMEOUT
    while True:
        try:
            low, high = reader.get_watermark_offsets(TopicPartition(topic, partition), timeout=TIMEOUT)
        except KafkaException as error:
            if error.args[0].code() not in _SOON or time.monotonic() > deadline:
                raise
            reader.poll(0.05)
        else:
            return low, high


def _send(
    common: dict[str, Any],
    servers: str,
    topic: str,
    records: Iterable[tuple[bytes | None, int | None] | Message],
    count: int,
    trouble: Trouble,
) -> list[tuple[int, int]]:
    producer = Producer(
        {
            **common,
            "enable.idempotence": True,
            "linger.ms": 5,
            "message.max.bytes": 64 << 20,
            "queue.buffering.max.kbytes": 256 << 10,
            "delivery.timeout.ms": int(TIMEOUT * 1000),
        }
    )
    placed: list[tuple[int, int]] = []
    failed: list[str] = []

    def report(row: int) -> Callable[[KafkaError | None, Any], None]:
        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                failed.append(f"record {row}: {error.str()}")
            else:
                placed[row] = (message.partition(), message.offset())

        return delivered

    turn = 0
    for row, record in enumerate(records):
        message = record if isinstance(record, Message) else _labelled(*record)
        partition = message.partition
        if partition is None:
            partition, turn = turn % count, turn + 1
        elif not 0 <= partition < count:
            msg = f"{topic}: a record's partition must lie in 0..{count - 1}; found {partition} in record {row}"
            raise ConfigError(msg)
        placed.append((-1, -1))
        while True:
            try:
                producer.produce(
                    topic,
                    message.value,
                    message.key,
                    partition=partition,
                    headers=list(message.headers),
                    on_delivery=report(row),
                )
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    waiting = producer.flush(TIMEOUT)
    if failed or waiting:
        what = failed[0] if failed else f"{waiting} records without an answer after {TIMEOUT:.0f} s: {trouble.last}"
        msg = f"{topic} at {servers}: every record must be delivered; {len(failed) + waiting} were not; {what}"
        raise SourceError(msg)
    return placed


def _labelled(value: bytes | None, label: int | None) -> Message:
    if label is None:
        return Message(value)
    try:
        text = b"%d" % label
    except TypeError as error:
        msg = f"publish: a label must be an int or None; found {label!r}. For text give Message(value, headers=...)"
        raise ConfigError(msg) from error
    return Message(value, headers=(("label", text),))
