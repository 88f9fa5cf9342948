"""Insides of stepping over batches that cannot be unpacked: what librdkafka says of them, and what stands between."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest
from confluent_kafka import KafkaError, Message
from confluent_kafka import Producer as Client
from kit.broker.handle import Kafka, Opened, OpenedStream, payloads
from kit.groups import until

from dali_feed.bad_records import Letter
from dali_feed.errors import ClosedError
from dali_feed.external_sources import KafkaStream, KafkaTopic, Producer
from dali_feed.external_sources.kafka.by_column import Event, OffsetRun
from dali_feed.external_sources.kafka.cluster import Identity
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.external_sources.kafka.live_reader import Receiver
from dali_feed.external_sources.kafka.lookout import LookoutAnswer
from dali_feed.external_sources.kafka.reader import KafkaReader, SpoiltBatchError
from dali_feed.records.extents import Extents, unpack_ids
from dali_feed.records.live import Progress

TO = Connection("t", "nowhere:1", 5.0)
LARGE = 20 << 20  # of zeros: some kilobytes in their batch
CONFIG = {"receive.message.max.bytes": 9 << 20}  # what a client unpacks at most


def fill(kafka: Kafka, batches: Sequence[tuple[int, bool]], partitions: int = 1) -> str:
    """A topic of batches, each with how many records it has, which say their offset, and whether it is spoilt."""
    topic = kafka.create(kafka.topic, partitions)
    options = {"compression.type": "zstd", "message.max.bytes": 2 * LARGE, "batch.size": 2 * LARGE, "linger.ms": 60_000}
    client = Client({"bootstrap.servers": kafka.servers, "log_level": 0, **options})
    offset = 0
    for count, spoilt in batches:
        for n in range(count):
            value = bytes(LARGE) if spoilt and n == count - 1 else b"%d" % (offset + n)
            for p in range(partitions):
                client.produce(topic, value, partition=p)
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


def test_a_stream_steps_over_such_batches_of_many_partitions(embedded: Kafka) -> None:
    """While places of one are tried, the others' refusals come again and again."""
    topic = fill(embedded, [(30, False), (40, True), (30, False), (200, True), (30, False)], partitions=4)
    stream = KafkaStream(topic, embedded.servers, start="earliest", label=None, config=CONFIG)
    live, rows, faults = OpenedStream(stream), list[int](), list[int]()

    def turn() -> None:
        block = live.poll(64, float("inf"), 0.1).block
        rows.extend(block.ids.tolist())
        faults.extend(block.ids[sorted(block.faults)].tolist())

    until(lambda: len(rows) >= 4 * 330, turn)
    assert len(set(rows)) == 4 * 330
    assert sorted(unpack_ids(np.array(faults))[1].tolist()) == sorted([*range(30, 70), *range(100, 300)] * 4)
    live.close()


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


def test_others_are_not_late_for_what_is_tried_meanwhile(receiver: Any) -> None:
    """A partition that waited already waits anew once a batch of another one was stepped over."""
    receiver._overdue.looked(LookoutAnswer(0.0, 2, {0: 1000, 1: 1000}, {}), receiver._at, 0, 1.0)
    receiver._overdue.empty(receiver._at, 1.0)
    assert receiver._overdue.longest(9.0)[1] == 8.0
    receiver._queue([refusal(0, 100)])
    assert receiver._overdue.longest(9.0) == (-1, 0.0)


class Script:
    """A way in which a reader takes records: what comes by turns."""

    def __init__(self, *events: Event | None) -> None:
        self.events = list(events)

    def fetch(self, run: OffsetRun, most: int) -> Event | None:
        """The next; where there is none any more, the run is done."""
        del most
        if self.events:
            return self.events.pop(0)
        run.want = run.stop
        return None


def test_what_is_tried_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step over a batch may take longer than the timeout; what comes next has all of that."""
    seconds = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: seconds[0])

    def behind(*_: int) -> int:
        seconds[0] += 2 * TO.timeout
        return 120

    reader: Any = KafkaReader(TO)
    refused = refusal(0, 100)
    script = Script(Event(cast("KafkaError", refused.error()), 0, 100), None)
    monkeypatch.setattr(reader, "_open", lambda: (None, script))
    monkeypatch.setattr(reader, "_assign", lambda *_, **__: None)
    monkeypatch.setattr(reader, "_behind", behind)
    rows: list[int] = []
    reader._run(OffsetRun(0, 100, 200, -100, lambda *_: None, spoilt=lambda row, _: rows.append(row)))
    assert (rows, script.events) == (list(range(20)), [])


def test_a_reader_that_is_closed_tries_no_more_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may close it amid them."""
    reader: Any = KafkaReader(TO)

    def fill(*_: Any) -> None:
        assert not reader._guard.closed
        reader.close()
        raise SpoiltBatchError("spoilt", 100)

    monkeypatch.setattr(KafkaReader, "fill", fill)
    with pytest.raises(ClosedError):
        reader._behind(0, 100, 200)


def test_good_records_between_two_such_batches_are_good(kafka: Kafka) -> None:
    """Wherever a read begins, and where it ends; of a stream too."""
    topic = fill(kafka, [(10, True), (4, False), (17, True), (3, True), (66, False)])
    spoilt = {*range(10), *range(14, 34)}
    reader = Opened(KafkaTopic(topic, kafka.servers, label=None, config=CONFIG), "value")
    for start, stop in ((0, 100), (3, 100), (10, 100), (0, 40), (3, 13), (20, 100)):
        block = reader.read(Extents.one(0, start, stop))
        assert {start + row for row in block.faults} == spoilt & set(range(start, stop))
        assert payloads(block) == [None if n in spoilt else b"%d" % n for n in range(start, stop)]
    reader.close()
    stream = KafkaStream(topic, kafka.servers, start="earliest", label=None, config=CONFIG)
    live, values = OpenedStream(stream), list[bytes | None]()
    until(lambda: len(values) >= 100, lambda: values.extend(payloads(live.poll(16, float("inf"), 0.1).block)))
    assert values == [None if n in spoilt else b"%d" % n for n in range(100)]
    live.close()


@pytest.mark.parametrize("at", range(3, 20))
def test_places_are_tried_until_the_first_batch_has_its_end(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three such batches, with a hole and good records, it is the first one's end; and no place is tried twice."""
    batches = [range(3, 20), range(23, 40), range(48, 90)]  # behind each some good ones; of 40..47 nothing is there
    places: list[int] = []

    def fill(_: KafkaReader, extents: Extents, *__: Any) -> None:
        place = int(extents.start[0])
        places.append(place)
        for batch in batches:
            if place in batch or (place in range(40, 48) and batch.start == 48):
                raise SpoiltBatchError("spoilt", batch.start)

    monkeypatch.setattr(KafkaReader, "fill", fill)
    reader: Any = KafkaReader(TO)
    for stop in range(at + 1, 200):
        places.clear()
        assert reader._behind(0, at, stop) == min(stop, 20)
        assert len(places) == len(set(places))
