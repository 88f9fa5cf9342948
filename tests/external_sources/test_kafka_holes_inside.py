"""Insides that contract/topics/test_kafka_holes.py needs not: they go with what they test."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
from kit.broker.handle import Kafka
from kit.holes import COMMITTED, everything, fill
from kit.images import QUICK, jpeg

from dali_feed.errors import DataLostError, StateError
from dali_feed.external_sources import KafkaTopic
from dali_feed.external_sources.kafka.reader import KafkaReader
from dali_feed.external_sources.kafka.snapshot import scanned
from dali_feed.feed import Feed
from dali_feed.plan.order import Shuffle
from dali_feed.records.extents import unpack_ids
from dali_feed.records.present import Present, packed


def test_the_pin_keeps_what_was_learnt(real_kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks learn the same; a pin, through JSON, gives it back without a read, though the topic has grown."""
    topic = fill(real_kafka)
    first, second = (KafkaTopic(topic, real_kafka.servers).snapshot() for _ in range(2))
    assert (first.fingerprint, first.pin, first.present) == (second.fingerprint, second.pin, second.present)
    real_kafka.publish(topic, [(jpeg(0), 0)] * 2)
    pin = json.loads(json.dumps(first.pin))
    monkeypatch.setattr(KafkaReader, "fill", None)
    again = KafkaTopic(topic, real_kafka.servers).snapshot(pin)
    assert (again.fingerprint, again.present, again.absent) == (first.fingerprint, first.present, first.absent)
    for wrong in ({"present": {"runs": [1, 1], "packed": "AAAA"}}, {"present": 3}, {"absent": "many"}):
        with pytest.raises(StateError, match="a pin must be what a snapshot of a Kafka topic gave"):
            KafkaTopic(topic, real_kafka.servers).snapshot(pin | wrong)


def test_a_record_that_goes_after_the_scan_is_an_absent_one(real_kafka: Kafka) -> None:
    """Where compaction takes a record that the map has, its slot is replaced and nothing else moves."""
    topic = fill(real_kafka)
    source = KafkaTopic(topic, real_kafka.servers)
    snapshot = source.snapshot()
    assert snapshot.present is not None
    there = [np.zeros(72, bool) for _ in range(2)]
    for partition, position in zip(*unpack_ids(everything(snapshot).ids()), strict=True):
        there[partition][position] = True
    assert not there[1][7]
    there[1][7] = True  # aborted: as gone as one that compaction took
    pin = dict(snapshot.pin or {}) | {"present": packed(Present.of_flags([0, 0], there), snapshot.starts)}
    with Feed(source, 61, shuffle=Shuffle(4, 4), tuning=QUICK) as feed:
        feed._planning._snapshot = source.snapshot(pin)
        (batch,) = feed
        assert (len(batch), int(batch.ok.sum()), feed.stats().absent) == (61, 60, 1)
        assert sorted(batch.fields["label"][batch.ok].tolist()) == COMMITTED


def test_a_scan_that_fails_ends_its_threads(kafka: Kafka) -> None:
    """Offsets that are gone are the error that a reader raises, and nothing is left behind."""
    kafka.publish(kafka.topic, [(b"x", 1)] * 40, partitions=2)
    kafka.delete_records(kafka.topic, 1, 12)
    source = KafkaTopic(kafka.topic, kafka.servers)
    with pytest.raises(DataLostError, match=rf"{kafka.topic}\[1\]@0"):
        scanned(lambda stop: source.reader(None, stop), kafka.topic, np.array([0, 0]), np.array([20, 20]))
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("dali_feed-scan")]
