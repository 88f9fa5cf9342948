"""Insides that contract/topics/test_kafka.py needs not: they go with what they test."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer
from kit.broker.handle import Kafka, payloads, rows, value

from dali_feed.external_sources.kafka.reader import KafkaReader
from dali_feed.external_sources.kafka.topic import KafkaTopic


def test_runs_between_holes_are_read_without_a_new_assignment(
    real_kafka: Kafka, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Runs that follow each other in a partition come in one go; an end that was seen serves the next run too."""
    kafka = real_kafka
    kafka.create(kafka.topic)
    producer = Producer({"bootstrap.servers": kafka.servers, "transactional.id": kafka.topic})
    producer.init_transactions(60)
    for n in range(40):
        producer.begin_transaction()
        for k in range(3):
            producer.produce(kafka.topic, value(3 * n + k), headers=[("label", b"%d" % k)])
        producer.flush(60)
        (producer.abort_transaction if n % 2 or n == 38 else producer.commit_transaction)(60)
    runs = [(0, 4 * n, 4 * n + 3) for n in range(0, 38, 2)]
    want = [value(n) for n in range(114) if n // 3 % 2 == 0]
    made: list[int] = []
    assign = KafkaReader._assign

    def counted(reader: KafkaReader, partition: int, offset: int, *, small: bool = False) -> None:
        made.append(offset)
        assign(reader, partition, offset, small=small)

    monkeypatch.setattr(KafkaReader, "_assign", counted)
    reader = KafkaTopic(kafka.topic, kafka.servers, timeout=20).reader()
    assert payloads(reader.read(rows(*runs))) == want
    assert payloads(reader.read(rows((0, 150, 155)))) == [None] * 5
    assert payloads(reader.read(rows((0, 155, 160)))) == [None] * 5
    assert len(made) == 1
    assert payloads(reader.read(rows(*runs[::-1]))) == [v for k in range(0, 57, 3)[::-1] for v in want[k : k + 3]]
    assert len(made) == 1 + len(runs)
    assert not caplog.records  # none of "connecting again"
    reader.close()
