"""Insides of stepping over batches that cannot be unpacked: what librdkafka says of them, and what stands between."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message
from confluent_kafka import Producer as Client
from kit.broker.handle import Kafka

from dali_feed.bad_records import Letter
from dali_feed.external_sources import Producer
from dali_feed.external_sources.kafka.cluster import Identity
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.external_sources.kafka.live_reader import Receiver
from dali_feed.records.live import Progress

TO = Connection("t", "nowhere:1", 5.0)
LARGE = 20 << 20  # of zeros: some kilobytes in their batch
CONFIG = {"receive.message.max.bytes": 9 << 20}  # what a client unpacks at most


def fill(kafka: Kafka, batches: Sequence[tuple[int, bool]]) -> str:
    """A topic of batches, each with how many records it has, which say their offset, and whether it is spoilt."""
    topic = kafka.create(kafka.topic)
    options = {"compression.type": "zstd", "message.max.bytes": 2 * LARGE, "batch.size": 2 * LARGE, "linger.ms": 60_000}
    client = Client({"bootstrap.servers": kafka.servers, "log_level": 0, **options})
    offset = 0
    for count, spoilt in batches:
        for n in range(count):
            client.produce(topic, bytes(LARGE) if spoilt and n == count - 1 else b"%d" % (offset + n), partition=0)
        client.flush(60)
        offset += count
    return topic


def refusal(partition: int, base: int) -> Message:
    """What librdkafka gives where a batch that begins at `base` cannot be unpacked."""
    error = KafkaError(KafkaError._BAD_COMPRESSION, "failed")
    return Message(topic="t", partition=partition, offset=base, error=error)


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Any:
    """One that stands amid nothing, of a topic whose partitions have a batch 100..119 that cannot be unpacked."""
    receiver = Receiver(TO, Identity(), Progress(), {0: 100, 1: 100})
    monkeypatch.setattr(receiver, "_connected", lambda **_: None)
    monkeypatch.setattr(receiver, "_bounds", lambda *_: (0, 1000))
    monkeypatch.setattr(receiver, "_behind", lambda _, first, __: max(first, 120))
    return receiver


def test_a_refusal_that_comes_again_is_one(receiver: Any) -> None:
    """It is fetched again every 50 ms until somebody seeks: who looks late gets as many, of each partition."""
    receiver._queue([refusal(n % 2, 100) for n in range(6)])
    assert receiver._at == receiver._seeks == {0: 120, 1: 120}
    entries, _ = receiver.inbox.take(100, 1e9, len, (), some=False)
    assert sorted(entry[:2] for entry in entries) == [(p, after) for p in range(2) for after in range(101, 121)]


def test_a_refusal_of_a_partition_that_is_anothers_now_is_none(receiver: Any) -> None:
    """A member may be handed what was there before it gave the partition up."""
    receiver._queue([refusal(7, 100)])
    assert (receiver._at, receiver.inbox.size) == ({0: 100, 1: 100}, 0)


def test_letters_that_cannot_be_read_are_told_of(embedded: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    """The others are there; a warning says how many are not, the first one, and why."""
    dead = Producer(fill(embedded, [(3, True)]), embedded.servers, config=CONFIG)
    letter = Letter("t[0]@5", "t", 0, 5, 9, "decode", "cut off", b"\xff\xd8")
    writer = dead.writer()
    writer.write([letter])
    writer.close()
    with caplog.at_level(logging.WARNING, "dali_feed.kafka"):
        assert [each.where for each in dead.read()] == ["t[0]@5"]
    (line,) = caplog.messages
    assert line.startswith(
        f"3 offsets of the dead letters could not be read, the first {embedded.topic}[0]@0: the record's batch"
    )
