"""Insides that contract/topics/test_producer.py needs not: they go with what they test."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from confluent_kafka.admin import AdminClient
from kit.broker.handle import Kafka
from kit.images import jpeg
from kit.killed_producer import killed_at, producer
from kit.produced import numbered, shard_of, values_in

from dali_feed.errors import (
    ConfigError,
    DataLostError,
    ProduceError,
    SourceChangedError,
    StateError,
)
from dali_feed.external_sources import (
    Payload,
    Producer,
)
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.external_sources.kafka.lanes import TransactionLane, is_packed, name_of
from dali_feed.external_sources.kafka.produce import journal_lock
from dali_feed.external_sources.kafka.writes import Written


def test_a_position_that_the_broker_forgot_is_no_beginning(real_kafka: Kafka, tmp_path: Path) -> None:
    """Its group is gone, as after seven days: a named error, and nothing is written."""
    topic = real_kafka.create(real_kafka.topic)
    shard_of(tmp_path, numbered(40))
    run = (tmp_path / "s.tar", real_kafka.servers, topic, tmp_path / "journal", True)
    assert killed_at(30, *run) == -9
    name = name_of(json.loads(run[3].read_text())["run"])
    admin = AdminClient({"bootstrap.servers": real_kafka.servers})
    (gone,) = admin.delete_consumer_groups([name]).values()
    gone.result(60)
    with pytest.raises(DataLostError, match=f"^{topic}: the position of the run {name} must be at"):
        producer(*run).run()


def test_a_run_that_was_taken_over_writes_nothing(real_kafka: Kafka) -> None:
    """Who comes later goes on; who was there before ends with an error, and its open transaction is taken back."""
    topic = real_kafka.create(real_kafka.topic)
    to = Connection(topic, real_kafka.servers, config={"linger.ms": 0})
    before = TransactionLane(to, str, topic, opened=False)
    before.begin()
    before.send(0, Written(b"before", None, []), 0)
    after = TransactionLane(to, str, topic, opened=True)
    with pytest.raises(ProduceError, match=f"^{topic}: one process at a time may do a run"):
        before.commit(1)
    after.begin()
    after.send(0, Written(b"after", None, []), 0)
    after.commit(1)
    for lane in (before, after):
        lane.close()
    assert values_in(real_kafka.servers, topic) == [[b"after"]]


def test_a_journal_is_of_one_run(embedded: Kafka, tmp_path: Path) -> None:
    """Another source, topic or option, a file that is no journal, and a second process: a named error each."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    source, other = shard_of(tmp_path / "a", numbered(4)), shard_of(tmp_path / "b", numbered(5))
    topic, journal = embedded.create(embedded.topic, 2), tmp_path / "journal"
    Producer(source, topic, embedded.servers, journal=journal).run()
    with pytest.raises(SourceChangedError, match=f"^{journal}: a run must continue with the source that it began with"):
        Producer(other, topic, embedded.servers, journal=journal).run()
    writes = Payload(key="txt", label=None)
    with pytest.raises(StateError, match="key: None, found 'txt'; label: 'label', found None"):
        Producer(source, topic, embedded.servers, writes=writes, journal=journal).run()
    with pytest.raises(StateError, match=f"topic: '{topic}', found '{topic}2'"):
        Producer(source, embedded.create(topic + "2"), embedded.servers, journal=journal).run()
    with journal_lock(journal), pytest.raises(ConfigError, match="one process at a time may use a journal"):
        Producer(source, topic, embedded.servers, journal=journal).run()
    told = json.loads(journal.read_text())
    for text in ("{}", "no", json.dumps(told | {"version": 2}), json.dumps(told | {"position": 5, "done": False})):
        journal.write_text(text)
        with pytest.raises(StateError, match=f"^{journal}: "):
            Producer(source, topic, embedded.servers, journal=journal).run()
    with pytest.raises(ConfigError, match="a journal must lie in a folder"):
        Producer(source, topic, embedded.servers, journal=tmp_path / "none" / "journal").run()


def test_what_is_packed_is_known_by_its_first_bytes() -> None:
    """A JPEG is, numbers and JSON are not."""
    assert is_packed(jpeg(0))
    assert is_packed(b"RIFF....WEBPVP8 ")
    assert not any(map(is_packed, (b"", b"\xff", b'{"a": 1}', np.arange(8.0).tobytes(), b"RIFF....WAVE")))
