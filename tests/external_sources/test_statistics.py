"""librdkafka's statistics as figures: what is known, what is not, and that they never pile up."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer
from kit.broker.handle import Kafka, Opened, payloads, read, rows
from kit.images import QUICK, jpeg

from dali_feed import DataLoader
from dali_feed.errors import DataLostError
from dali_feed.external_sources import ConsumerGroup, KafkaStream, KafkaTopic
from dali_feed.external_sources.kafka import live_reader
from dali_feed.external_sources.kafka.statistics import figures
from dali_feed.feed import reading
from dali_feed.plan.order import Shuffle
from dali_feed.records.gauges import BrokerStats, KafkaStats, PartitionStats
from dali_feed.records.metrics import merged
from dali_feed.testing import Message, ScriptedSource

SIZE = 1000
FAST = {"statistics.interval.ms": 20}


def said(seconds: int, **partitions: tuple[int, ...]) -> dict[str, Any]:
    """Librdkafka's text after so many seconds: by partition whether it is wanted, its records, and its end."""
    each = {
        name.removeprefix("p"): {"desired": bool(wanted), "rxmsgs": records, "rxbytes": records * SIZE, "leader": 1}
        | {"fetchq_cnt": 300, "fetchq_size": 300 * SIZE, "lo_offset": 0, "ls_offset": end, "hi_offset": end}
        for name, (wanted, records, end) in partitions.items()
    }
    times = {"cnt": 3, "sum": 600_000, "p99": 300_000, "avg": 0}
    broker = {"state": "UP", "rtt": times, "throttle": times | {"cnt": 0}, "req": {"Fetch": 4}, "disconnects": 1}
    brokers = {"b/1": broker | {"nodeid": 1}, "b/bootstrap": broker | {"nodeid": -1}}
    return {"ts": seconds * 10**6, "time": seconds, "topics": {"t": {"partitions": each}}, "brokers": brokers}


def test_what_a_consumer_says() -> None:
    """Offsets, records and bytes of the partitions it came to; a queue that they share is counted once."""
    latest = said(30, p0=(1, 100, 120), p1=(0, 50, -1001), p2=(0, 0, -1001))
    found = figures("t", said(20, p0=(1, 60, 100)), latest)
    assert found.partitions == (
        PartitionStats(0, low=0, end=120, records=100, size=100 * SIZE, rate=4 * SIZE, leader=1),
        PartitionStats(1, low=0, records=50, size=50 * SIZE, rate=5 * SIZE, leader=1),
    )
    assert (found.readers, found.rebalances, found.queue_records, found.queue_bytes) == (1, 0, 300, 300 * SIZE)
    (broker,) = found.brokers
    assert (broker.broker, broker.fetches, broker.disconnects, broker.latency_p99) == ("b/1", 4, 1, 0.3)
    nothing = figures("another", latest)  # rather than zeros
    assert (nothing.partitions, nothing.rate, nothing.lag, nothing.queue_bytes) == ((), None, None, 0)


def test_several_readers_are_one() -> None:
    """Counts are added, offsets are those of the reader that knows more, the slowest connection is shown."""
    a = KafkaStats(
        "t",
        (PartitionStats(0, 5, 9, 1, 10, 100, 50.0, 1), PartitionStats(2, None, None, None)),
        (BrokerStats("b/1", "UP", 3, 0.3, 0.2, None, 4, 1),),
        queue_records=3,
        queue_bytes=7,
        at=20.0,
    )
    b = KafkaStats(
        "t", (PartitionStats(0, None, 12, 2, 1, 10, 5.0),), (BrokerStats("b/1", "CONNECT", 1, 0.5, 0.4),), at=10.0
    )
    both = merged([a, b])
    assert both.partitions == (PartitionStats(0, 5, 12, 2, 11, 110, 55.0, 1), PartitionStats(2))
    assert both.brokers == (BrokerStats("b/1", "CONNECT", 4, 0.8, 0.4, None, 4, 1),)
    assert (both.readers, both.queue_bytes, both.queue_records, both.rate, both.lag, both.at) == (
        2,
        7,
        3,
        55.0,
        7,
        10.0,
    )
    placed = both.at_positions({0: 8, 1: 3}, {0: 12, 1: 3})
    assert [(each.partition, each.lag, each.headroom) for each in placed.partitions] == [
        (0, 4, 6),
        (1, 0, None),
        (2, None, None),
    ]
    assert "4 to come, 0.0 MB/s, fetches of 200 ms, 3 queued, 2 readers, 0 rebalances" in str(placed)


def test_what_a_consumer_counted_outlasts_it(embedded: Kafka) -> None:
    """A reader that had to connect anew goes on counting."""
    topic = embedded.topic
    embedded.publish(topic, [(bytes(SIZE), 0)] * 50, partitions=1)
    came = threading.Event()
    config = FAST | {"stats_cb": lambda text: came.set() if json.loads(text)["rxmsgs"] >= 50 else None}
    reader = Opened(KafkaTopic(topic, embedded.servers, label=None, config=config))
    assert reader.own.gauges() is None
    try:
        for times in (1, 2):
            came.clear()
            deadline = time.monotonic() + 30
            while not came.is_set() and time.monotonic() < deadline:
                assert len(payloads(reader.read(rows((0, 0, 50))))) == 50
                reader.own.rest()
            found = reader.own.gauges()
            assert found is not None
            assert found.partitions[0].records >= 50 * times
            with pytest.raises(DataLostError):
                reader.read(rows((0, 1_000_000, 1_000_001)))  # the consumer is closed
        assert found is not None
        assert found.brokers[0].state == "UP"
    finally:
        reader.close()


class Heard:
    """A user's `stats_cb`: counts what it hears, and the records that a consumer has got by then."""

    def __init__(self) -> None:
        self._changed, self.calls, self._records = threading.Condition(), 0, 0

    def __call__(self, text: str) -> None:
        """A text of statistics."""
        with self._changed:
            self.calls, self._records = self.calls + 1, json.loads(text)["rxmsgs"]
            self._changed.notify_all()

    def waits(self, *, calls: int = 0, records: int = 0) -> None:
        """Until it has heard so many more texts, and one of so many records."""
        with self._changed:
            wanted = self.calls + calls
            assert self._changed.wait_for(lambda: self.calls >= wanted and self._records >= records, 60)


def images(count: int) -> list[Message]:
    """Labelled by their number."""
    return [Message(jpeg(n % 4), headers=(("label", b"%d" % n),)) for n in range(count)]


def kafka_of(loader: DataLoader) -> KafkaStats:
    """What its consumers measured."""
    found = loader.stats().kafka
    assert found is not None
    return found


def test_statistics_do_not_pile_up_while_nothing_is_read(embedded: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader that waits for its loop takes them all the same, tells the user's function, and loses no record."""
    monkeypatch.setattr(reading, "REST_SECONDS", 0.01)
    topic, heard, ids = embedded.topic, Heard(), list[int]()
    embedded.publish(topic, images(40), partitions=1)
    source = KafkaTopic(topic, embedded.servers, config={"statistics.interval.ms": 10, "stats_cb": heard})
    with DataLoader(source, 4, shuffle=Shuffle(4, 2), device="cpu", info=True, tuning=QUICK) as loader:
        for images_, _, info in loader:
            ids += info.ids.tolist()
            assert len(images_) == 4
            heard.waits(calls=5)
    assert sorted(ids) == list(range(40))


def test_nor_while_a_streams_loop_is_slow(embedded: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream whose batches nobody takes goes on taking them, and its records keep their order."""
    monkeypatch.setattr(live_reader, "STATISTICS_SECONDS", 0.01)
    monkeypatch.setattr(live_reader, "FULL_BYTES", 1)
    topic, heard = embedded.topic, Heard()
    embedded.publish(topic, images(60), partitions=1)
    config = {"statistics.interval.ms": 10, "stats_cb": heard}
    stream = KafkaStream(topic, embedded.servers, start="earliest", config=config)
    with DataLoader(stream, 2, device="cpu", tuning=QUICK) as loader:
        batches = iter(loader)
        labels = next(batches)[1].tolist()
        for _ in range(2):
            heard.waits(calls=5)
        while len(labels) < 60:
            labels += next(batches)[1].tolist()
        assert labels == list(range(60))


def test_a_loader_has_them_with_its_own_position(embedded: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Position and end are the loop's and the snapshot's, as commit() counts; the rest is the consumers'."""
    monkeypatch.setattr(reading, "REST_SECONDS", 0.01)
    topic, heard = embedded.topic, Heard()
    records = [replace(each, partition=n % 2) for n, each in enumerate(images(24))]
    embedded.publish(topic, records, partitions=3)
    source = KafkaTopic(topic, embedded.servers, config={**FAST, "stats_cb": heard})
    with DataLoader(source, 6, device="cpu", tuning=QUICK) as loader:
        assert loader.stats().kafka is None
        batches = iter(loader)
        next(batches)
        embedded.publish(topic, records)  # not this run's
        heard.waits(records=1)
        found = kafka_of(loader)
        assert sum(each.position or 0 for each in found.partitions) == 6
        assert [each.end for each in found.partitions] == [12, 12, 0]
        assert found.lag == 18
        assert sum(each.records for each in found.partitions) > 0
        assert "18 to come" in str(loader.stats())
        for _ in batches:
            pass
        found = kafka_of(loader)
        assert ([each.position for each in found.partitions], found.lag) == ([12, 12, 0], 0)  # between two epochs
    with DataLoader(ScriptedSource([jpeg(1)] * 4), 2, device="cpu") as loader:
        next(iter(loader))
        assert loader.stats().kafka is None


def test_a_streams_loader_has_its_lag(embedded: Kafka) -> None:
    """Offsets to go behind what the loop was handed, and how old the last record is that was read; 0 at the end."""
    topic, heard = embedded.create(embedded.topic, 2), Heard()
    producer, made = Producer({"bootstrap.servers": embedded.servers, "log_level": 0}), int((time.time() - 1000) * 1000)
    for n in range(12):
        producer.produce(topic, jpeg(n % 4), headers=[("label", b"1")], partition=n % 2, timestamp=made)
    producer.flush()
    stream = KafkaStream(topic, embedded.servers, start="earliest", config={**FAST, "stats_cb": heard})
    with DataLoader(stream, 4, device="cpu", tuning=QUICK) as loader:
        assert loader.stats().kafka is None
        batches = iter(loader)
        next(batches)
        heard.waits(records=12)
        found = kafka_of(loader)
        assert [each.end for each in found.partitions] == [6, 6]
        assert (found.lag, sum(each.position or 0 for each in found.partitions)) == (8, 4)
        assert 1000 <= (found.lag_seconds or 0) < 2000
        for _ in range(2):
            next(batches)
        assert (kafka_of(loader).lag, kafka_of(loader).lag_seconds) == (0, 0.0)


def test_a_worker_of_a_group_counts_rebalances(real_kafka: Kafka) -> None:
    """Its group has dealt partitions to it at least once; the lag is that of those."""
    topic, heard = real_kafka.topic, Heard()
    records = [replace(each, partition=n % 2) for n, each in enumerate(images(12))]
    real_kafka.publish(topic, records, partitions=2)
    config = {**FAST, "stats_cb": heard}
    stream = KafkaStream(
        topic, real_kafka.servers, start="group or earliest", group=ConsumerGroup(f"g-{topic}"), config=config
    )
    with DataLoader(stream, 4, device="cpu", tuning=QUICK) as loader:
        next(iter(loader))
        heard.waits(records=12)
        found = kafka_of(loader)
        assert found.rebalances >= 1
        assert (found.lag, [each.end for each in found.partitions]) == (8, [6, 6])


def test_nobody_measures_unless_it_reads(embedded: Kafka) -> None:
    """An interval of 0 turns them off."""
    embedded.publish(embedded.topic, [(bytes(SIZE), 0)], partitions=1)
    source = KafkaTopic(embedded.topic, embedded.servers, label=None, config={"statistics.interval.ms": 0})
    assert len(read(source, rows((0, 0, 1))).ids) == 1
