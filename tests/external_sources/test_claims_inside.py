"""Insides that contract/topics/test_claims.py needs not: they go with what they test."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from kit.broker.handle import Kafka
from kit.claimed import claimed, made

from dali_feed.external_sources import KafkaStream
from dali_feed.external_sources.kafka.topic import messages


def test_what_a_worker_gives_up_leaves_the_weight_of_the_rest(embedded: Kafka, tmp_path: Path) -> None:
    """Payloads count for `batch_bytes` wherever they lie, before partitions go and after."""
    folder = made(tmp_path)
    records = [replace(claimed(folder, b"%d" % n * 5_000), partition=n % 2) for n in range(4)]
    embedded.publish(embedded.topic, records, partitions=2)
    stream = KafkaStream(embedded.topic, embedded.servers, label=None, fleet=embedded.topic, claims=folder)
    reader: Any = stream.live()
    to, decoding = reader._to, reader._decoding
    reader._taken = [each for p in (0, 1) for each in messages(to, p, 0, 2)]
    reader._filled = sum(map(decoding.weigh, reader._taken))
    assert reader._filled == 4 * 5_000
    reader._forget([1])
    assert reader._filled == 2 * 5_000
    reader.close()
