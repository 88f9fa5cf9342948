"""A broker as tests use it, whichever it is; topics half of whose transactions were aborted."""

from __future__ import annotations

import functools
import itertools
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from confluent_kafka import KafkaError, Producer
from kit.broker import real
from kit.images import jpeg

from dali_feed.columns.columns import Columns
from dali_feed.columns.request import Request, RequestReader, open_reader
from dali_feed.external_sources.kafka.topic import KafkaTopic
from dali_feed.records.extents import Extents
from dali_feed.records.live import LiveBlock, Stream
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import Block, Snapshot, Source
from dali_feed.testing import Broker, Message

_SENDING: dict[str, Any] = {"linger.ms": 5, "max.in.flight": 1, "message.max.bytes": 64 << 20, "log_level": 0}


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

    @functools.cached_property
    def _producer(self) -> Producer:
        return Producer({"bootstrap.servers": self.servers, **_SENDING})

    def publish(
        self, topic: str, records: Iterable[tuple[bytes | None, int | None] | Message], partitions: int | None = None
    ) -> list[tuple[int, int]]:
        """Publish to a topic, made first where `partitions` is given; the (partition, offset) of each record.

        By one client of the test's: `dali_feed.testing.publish` has three, and looks what the broker holds.
        """
        if partitions is not None:
            self.create(topic, partitions)
        producer, placed = self._producer, dict[int, tuple[int, int]]()
        count = partitions or len(producer.list_topics(topic, timeout=60).topics[topic].partitions)
        turns = itertools.cycle(range(count))
        for row, record in enumerate(records):
            message = record if isinstance(record, Message) else _labelled(*record)
            partition = next(turns) if message.partition is None else message.partition

            def settle(error: KafkaError | None, sent: Any, row: int = row) -> None:
                assert error is None, f"{topic}: record {row}: {error}"
                placed[row] = sent.partition(), sent.offset()

            headers: Any = list(message.headers)
            producer.produce(topic, message.value, message.key, partition, settle, headers=headers)
        assert producer.flush(60) == 0
        return [at for _, at in sorted(placed.items())]

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Drop the records below offset `before`."""
        self.cluster.delete_records(topic, partition, before)


def _labelled(value: bytes | None, label: int | None) -> Message:
    return Message(value, headers=() if label is None else (("label", b"%d" % label),))


def value(i: int) -> bytes:
    """Bytes that only record i has, of a length that only few others have."""
    return b"%06d" % i * (1 + i % 37)


class Opened:
    """A reader of a topic, whose reads have a lease each in one pool.

    Without names it reads what the source's preset is made of: the value, and the header of the label.
    """

    def __init__(
        self, source: Source, *names: str, pool: SlabPool | None = None, stop: threading.Event | None = None
    ) -> None:
        self.pool = pool or SlabPool()
        self.reader: Any = open_reader(source, names or [each.member for each in source.preset.values()], stop)

    @property
    def own(self) -> Any:
        """The reader of the topic itself."""
        return self.reader._reader

    def read(self, extents: Extents) -> Block:
        """See `Reader.read`; where it fails its memory is given back."""
        lease = self.pool.lease()
        try:
            block: Block = self.reader.read(extents, lease)
        except BaseException:
            lease.release()
            raise
        return block

    def poll(self, records: int, size: float, seconds: float) -> LiveBlock:
        """The same of a stream's; see `LiveReader.poll`."""
        lease = self.pool.lease()
        try:
            found: LiveBlock = self.reader.poll(records, size, seconds, lease)
        except BaseException:
            lease.release()
            raise
        return found

    def close(self) -> None:
        """The reader."""
        self.reader.close()


class OpenedStream(Opened):
    """A stream's, from a mark on; the arguments by name are those of `Stream.live`."""

    def __init__(self, source: Stream, at: Any = None, *names: str, pool: SlabPool | None = None, **how: Any) -> None:
        self.pool = pool or SlabPool()
        request = Request(source, names or [each.member for each in source.preset.values()])
        self.reader = RequestReader(source.live(at, request.members, **how), request)

    def commit(self, position: Any) -> None:
        """See `LiveReader.commit`."""
        self.reader.commit(position)


def payloads(block: Block) -> list[bytes | None]:
    """What was asked for first, the values, as bytes; None where there are none."""
    return [None if view is None else bytes(view) for view in next(iter(block.values.values()))]


def labels(block: Block) -> list[int]:
    """What was asked for second, as numbers."""
    _, found, *_ = block.values.values()
    return [int(each if isinstance(each, int) else bytes(each or b"")) for each in found]


def made(source: Source, block: Block) -> Block:
    """The columns of the source's preset, of what they are made from."""
    return Columns(source)(block)


def read(source: KafkaTopic, extents: Extents, *names: str) -> Block:
    """One read of a new reader, of the value and the label unless other names are given."""
    reader = Opened(source, *names)
    try:
        return reader.read(extents)
    finally:
        reader.close()


def rows(*runs: tuple[int, int, int]) -> Extents:
    """Extents of (partition, start, stop) runs."""
    return Extents(*(np.array(column, np.int64) for column in zip(*runs, strict=True)))


def in_transactions(
    kafka: Kafka, topic: str, records: Sequence[Message], each: int, aborted: Callable[[int], bool]
) -> None:
    """Publish in transactions of `each` records, the k-th of them aborted where `aborted(k)`; all have ended then.

    A commit is answered before its markers stand in the partitions. Whoever begins with the same id waits for them.
    """
    options = {"bootstrap.servers": kafka.servers, "transactional.id": topic}
    producer = Producer(options)
    producer.init_transactions(60)
    for k, first in enumerate(range(0, len(records), each)):
        producer.begin_transaction()
        for record in records[first : first + each]:
            headers: Any = list(record.headers)
            producer.produce(topic, record.value, record.key, partition=record.partition or 0, headers=headers)
        producer.flush(60)
        (producer.abort_transaction if aborted(k) else producer.commit_transaction)(60)
    Producer(options).init_transactions(60)


COMMITTED = [n for n in range(120) if n // 10 % 2 == 0]


def fill(kafka: Kafka, count: int = 120, each: int = 10, partitions: int = 2) -> str:
    """Half of the transactions aborted: of `count` records half are there, of the offsets less than that."""
    topic = kafka.create(kafka.topic, partitions)
    records = [Message(jpeg(n), headers=(("label", b"%d" % n),), partition=n % partitions) for n in range(count)]
    in_transactions(kafka, topic, records, each, lambda k: bool(k % 2))
    return topic


def everything(snapshot: Snapshot) -> Extents:
    """All that a plan deals, as positions."""
    first, last = snapshot.numbers
    return snapshot.located(Extents(np.arange(len(first)), first, last))
