"""Records into a topic, and the proof that they are there.

Every delivery is waited for, and the watermarks are read afterwards: a broker that took the records and dropped
some (the embedded one keeps 5 MiB per partition) is an error here, and not a failure of a test that nobody understands.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from confluent_kafka import KafkaException, TopicPartition

from dali_feed.errors import ConfigError, SourceDeniedError, SourceError, SourceNotFoundError
from dali_feed.external_sources.kafka.cluster import Cluster
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.external_sources.kafka.errors import Patience, failed
from dali_feed.external_sources.kafka.sender import Outcome, Sender
from dali_feed.external_sources.kafka.writes import Written
from dali_feed.testing.embedded import PARTITION_BYTES, running_at

TIMEOUT = 60.0


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

    Without Kafka's idempotence, which takes half a second to begin: where the answer of a broker is lost, a record may
    come twice.

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
    to = Connection(topic, servers, TIMEOUT)
    try:
        with Cluster(to) as cluster:
            count = _partitions(cluster, partitions)
            low_before = {p: _bounds(cluster, p)[0] for p in range(count)}
            placed = _send(to, records, count)
            for p in sorted({p for p, _ in placed}):
                offsets = [o for q, o in placed if q == p]
                low, high = _bounds(cluster, p)
                if low > min(low_before[p], *offsets) or high <= max(offsets):
                    raise SourceError(
                        f"{topic}[{p}]: the broker must keep all records; it took offsets {min(offsets)}.."
                        f"{max(offsets)} and holds {low}..{high - 1}; the embedded broker keeps at most "
                        f"{PARTITION_BYTES >> 20} MiB per partition: use more partitions"
                    )
            return placed
    except KafkaException as error:
        raise failed(to, error, "publishing") from error


def _partitions(cluster: Cluster, wanted: int | None) -> int:
    """How many the topic has; where it is missing it is made with as many as are wanted."""
    try:
        return len(cluster.partitions())
    except SourceNotFoundError as error:
        if wanted is None:
            raise SourceNotFoundError(f"{error}; make it, or give publish() partitions=") from None
    embedded = running_at(cluster.to.servers)
    if embedded is not None:
        embedded.create(cluster.to.topic, wanted)
    else:
        cluster.create(wanted)
    return wanted


def _bounds(cluster: Cluster, partition: int) -> tuple[int, int]:
    """The first offset that the broker holds, and the one behind the last, whether it is committed or not."""
    at = TopicPartition(cluster.to.topic, partition)
    patience = Patience(cluster.to, cluster.trouble)
    return patience.until(lambda seconds: cluster.consumer.get_watermark_offsets(at, timeout=seconds))


def _send(
    to: Connection, records: Iterable[tuple[bytes | None, int | None] | Message], count: int
) -> list[tuple[int, int]]:
    placed: dict[int, tuple[int, int]] = {}
    failures: list[str] = []

    def settle(row: int, _: int, outcome: Outcome) -> None:
        if isinstance(outcome, str | Exception):
            failures.append(f"record {row}: {outcome}")
        else:
            placed[row] = (outcome.partition() or 0, outcome.offset() or 0)

    turn = 0
    soon = Connection(to.topic, to.servers, TIMEOUT, {"linger.ms": 5, "max.in.flight": 1})  # in order
    sender = Sender(soon, settle, compression="none", queue_bytes=256 << 20, gives_up=True, idempotent=False)
    with contextlib.closing(sender):
        try:
            for row, record in enumerate(records):
                message = record if isinstance(record, Message) else _labelled(*record)
                partition = message.partition
                if partition is None:
                    partition, turn = turn % count, turn + 1
                elif not 0 <= partition < count:
                    rule = f"a record's partition must lie in 0..{count - 1}"
                    raise ConfigError(f"{to.topic}: {rule}; found {partition} in record {row}")
                sender.send(Written(message.value, message.key, list(message.headers)), partition, row)
            sender.flush()
        except SourceDeniedError as error:
            if not failures:  # of the first that is not there
                failures.append(f"record {next(row for row in itertools.count() if row not in placed)}: {error}")
    if failures:
        msg = f"{to.topic} at {to.servers}: every record must be delivered; {len(failures)} were not; {failures[0]}"
        raise SourceError(msg)
    return [at for _, at in sorted(placed.items())]


def _labelled(value: bytes | None, label: int | None) -> Message:
    if label is None:
        return Message(value)
    try:
        text = b"%d" % label
    except TypeError as error:
        msg = f"publish: a label must be an int or None; found {label!r}. For text give Message(value, headers=...)"
        raise ConfigError(msg) from error
    return Message(value, headers=(("label", text),))
