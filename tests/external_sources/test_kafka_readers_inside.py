"""Insides of readers of topics: maps of holes, runs between them, who is late, and what is given up."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Producer
from kit.broker.handle import COMMITTED, Kafka, Opened, OpenedStream, everything, fill, payloads, rows, value
from kit.images import QUICK, jpeg

from dali_feed.errors import DataLostError, SourceUnreachableError, StateError
from dali_feed.external_sources import KafkaStream, KafkaTopic
from dali_feed.external_sources.kafka.cluster import Identity
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.external_sources.kafka.live_reader import FULL_BYTES, Inbox, KafkaLiveReader, Receiver
from dali_feed.external_sources.kafka.lookout import MUCH, LookoutAnswer, Overdue
from dali_feed.external_sources.kafka.reader import KafkaReader
from dali_feed.external_sources.kafka.rows import KafkaParts
from dali_feed.external_sources.kafka.snapshot import scanned
from dali_feed.feed import Feed
from dali_feed.plan.order import Shuffle
from dali_feed.records.extents import Present, packed, unpack_ids
from dali_feed.records.live import Progress
from dali_feed.records.slabs import SlabPool
from dali_feed.testing import Message


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
        feed._epochs.planning._snapshot = source.snapshot(pin)
        (batch,) = feed
        assert (len(batch), int(batch.ok.sum()), feed.stats().absent) == (61, 60, 1)
        assert sorted(batch.fields["label"][batch.ok].tolist()) == COMMITTED


def test_a_scan_that_fails_ends_its_threads(kafka: Kafka) -> None:
    """Offsets that are gone are the error that a reader raises, and nothing is left behind."""
    kafka.publish(kafka.topic, [(b"x", 1)] * 40, partitions=2)
    kafka.delete_records(kafka.topic, 1, 12)
    source = KafkaTopic(kafka.topic, kafka.servers)
    with pytest.raises(DataLostError, match=rf"{kafka.topic}\[1\]@0"):
        scanned(lambda stop: source.reader(stop=stop), kafka.topic, np.array([0, 0]), np.array([20, 20]))
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("dali_feed-scan")]


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
    reader = Opened(KafkaTopic(kafka.topic, kafka.servers, timeout=20))
    assert payloads(reader.read(rows(*runs))) == want
    assert payloads(reader.read(rows((0, 150, 155)))) == [None] * 5
    assert payloads(reader.read(rows((0, 155, 160)))) == [None] * 5
    assert len(made) == 1
    assert payloads(reader.read(rows(*runs[::-1]))) == [v for k in range(0, 57, 3)[::-1] for v in want[k : k + 3]]
    assert len(made) == 1 + len(runs)
    assert not caplog.records  # none of "connecting again"
    reader.close()


def test_who_is_late() -> None:
    """A partition is late from when its turn had come, until it moves; a queue that is never empty delays that."""
    overdue, at = Overdue(), {0: 5, 1: 7}
    look = LookoutAnswer(0.0, 2, {0: 5, 1: 9}, {})
    overdue.looked(look, at, 0, 1.0)
    assert overdue.longest(50.0) == (-1, 0.0)
    overdue.empty(at, 50.0)
    overdue.empty(at, 60.0)
    assert overdue.longest(62.0) == (1, 12.0)
    assert [overdue.due(1), overdue.due(1)] == [True, False]
    overdue.looked(look, at | {1: 8}, 0, 63.0)  # it has moved, and has still more
    assert overdue.longest(99.0) == (-1, 0.0)
    overdue.looked(look, at | {1: 8}, MUCH + 1, 100.0)
    assert overdue.longest(103.0) == (1, 3.0)
    overdue.looked(look, at | {1: 9}, MUCH + 1, 104.0)
    assert overdue.longest(200.0) == (-1, 0.0)


def test_a_partition_without_a_leader_is_named() -> None:
    """Others may flow meanwhile: where nobody leads it for `timeout` seconds, the stream cannot go on."""
    options = Connection("t", "nowhere:1", 5.0)
    receiver, now = Receiver(options, Identity(), Progress(), {0: 3, 1: 7}), time.monotonic()
    receiver._looked(LookoutAnswer(now, 2, {0: 3}, {1: now - 4}))
    with pytest.raises(SourceUnreachableError, match=r"t\[1\]@7: .*the partition has no leader"):
        receiver._looked(LookoutAnswer(now, 2, {0: 3}, {1: now - 6}))
    receiver.close()


class Sized:
    """A record as far as an inbox looks at it."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size


def entry(partition: int, offset: int, size: int = 10) -> Any:
    """A record that is to be taken."""
    return partition, offset + 1, Sized(size)


def test_partitions_are_taken_by_turns() -> None:
    """A full partition keeps no other waiting; each keeps its order; what is put back comes first again."""
    inbox = Inbox()
    for n in range(100):
        inbox.put(entry(0, n))
    for n in range(3):
        inbox.put(entry(1, n))
    entries, full = inbox.take(16, 1e9, len, (), some=False)
    assert ([(p, n) for p, n, _ in entries if p], full) == ([(1, 1), (1, 2), (1, 3)], False)
    assert [n for p, n, _ in entries if not p] == [*range(1, 9)]
    size = inbox.size
    inbox.back(entries)
    assert [each[:2] for each in inbox.take(16, 1e9, len, (1,), some=False)[0]] == [(0, n) for n in range(1, 9)]
    inbox.clear()
    assert (inbox.size, inbox.take(1, 1e9, len, (), some=False)) == (0, ([], False))
    assert size > 0


def test_a_record_that_has_no_room_is_left() -> None:
    """The first has room whatever it weighs; where the partition ends costs nothing."""
    inbox = Inbox()
    for n, size in enumerate((30, 10, 10)):
        inbox.put(entry(0, n, size))
    inbox.put((1, 5, None))
    assert [each[1] for each in inbox.take(9, 20, len, (), some=False)[0]] == [1]
    entries, full = inbox.take(9, 15, len, (), some=True)
    assert ([each[:2] for each in entries], full) == ([(0, 2)], True)
    assert inbox.take(9, 5, len, (), some=True) == ([], True)
    assert [each[:2] for each in inbox.take(9, 5, len, (), some=False)[0]] == [(0, 3), (1, 5)]


def test_a_partition_that_comes_up_amid_a_poll_never_sets_the_loop_back() -> None:
    """Where it begins is in the block with its first record, and not in one behind it."""
    reader: Any = KafkaLiveReader(Connection("t", "nowhere:1", 5.0), KafkaParts(), Identity(), {})
    receiver = reader._receiver
    receiver._thread = threading.current_thread()  # none of its own

    def comes_up() -> None:
        with receiver.progress.changed:
            receiver.take_up({3: 0})
            receiver.inbox.put((3, 8, None))
            receiver.progress.changed.notify_all()

    threading.Timer(0.05, comes_up).start()
    position = dict[int, int]()
    while not position:
        position = reader.poll(4, 1e9, 0.2, SlabPool().lease()).position
    assert position == {3: 8}
    assert (reader.poll(4, 1e9, 0.0, SlabPool().lease()).position, receiver.progress.state(0)) == ({}, {3: 8})


def test_a_new_record_waits_for_little_of_another_partitions_backlog(real_kafka: Kafka) -> None:
    """Where the loop is slower than the broker: it is what librdkafka has fetched, in one line for all partitions."""
    body = b"x" * 10_000
    real_kafka.publish(real_kafka.topic, [Message(body, None, (), 0)] * 4_000, partitions=2)
    stream = KafkaStream(real_kafka.topic, real_kafka.servers, start="earliest", label=None)
    reader = OpenedStream(stream, None, "value")
    try:
        assert len(reader.poll(1, 1e9, 30).block.ids) == 1
        inbox = reader.own._receiver.inbox
        while inbox.size <= FULL_BYTES:
            reader.own._receiver.check()
        real_kafka.publish(real_kafka.topic, [Message(b"new", None, (), 1)])
        before = 0
        while b"new" not in (found := payloads(reader.poll(8, 1e9, 30).block)):
            before += len(found)
        assert before * len(body) < 2 * FULL_BYTES
    finally:
        reader.close()
