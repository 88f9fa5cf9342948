"""Which topic a record was read from: what a consumer says of itself, and the question where it says nothing."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from kit.broker.handle import Kafka, Opened, payloads
from kit.broker.real import Cluster
from kit.two_ways import by_message

from dali_feed.errors import SourceChangedError
from dali_feed.external_sources.concat import Concat
from dali_feed.external_sources.kafka import by_column
from dali_feed.external_sources.kafka.by_column import ByColumn, Event, OffsetRun
from dali_feed.external_sources.kafka.cluster import Cluster as Questions
from dali_feed.external_sources.kafka.cluster import Witness
from dali_feed.external_sources.kafka.reader import ByMessage
from dali_feed.external_sources.kafka.rows import Cells
from dali_feed.external_sources.kafka.topic import KafkaTopic
from dali_feed.native.library import library
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import Extents

RECORDS = 400
BYTES = 60_000  # times RECORDS, twice what a consumer fetches ahead and more

OLD, NEW = b"old", b"new"
X, Y, NONE = "xxxxxxxxxxxxxxxxxxxxxx", "yyyyyyyyyyyyyyyyyyyyyy", "A" * 22


def _filled(kafka: Kafka, kind: bytes, count: int) -> None:
    kafka.publish(kafka.topic, [(kind + b"%06d" % n + bytes(BYTES), n) for n in range(count)], partitions=1)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where each question for an id was asked."""
    asked: list[str] = []
    ask = Questions.topic_id

    def noted(cluster: Questions, where: str = "") -> str | None:
        asked.append(where)
        return ask(cluster, where)

    monkeypatch.setattr(Questions, "topic_id", noted)
    return asked


@pytest.fixture(params=["told", "asked"])
def told(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether consumers say which topic they read: not where librdkafka is asked for no such lines, or has others."""
    if request.param == "asked":
        monkeypatch.setattr(Witness, "DEBUG", "")
    return bool(request.param == "told")


def test_reads_ask_nothing_where_the_consumer_says_what_it_reads(
    real_kafka: Kafka, asked: list[str], told: bool
) -> None:
    """No question beside the snapshot's one, however many reads; one after each where the consumer is silent."""
    _filled(real_kafka, OLD, 30)
    source = KafkaTopic(real_kafka.topic, real_kafka.servers)
    source.snapshot()
    asked.clear()
    reader = Opened(source)
    for start in (20, 0, 10):
        assert payloads(reader.read(Extents.one(0, start, start + 10)))[0] == OLD + b"%06d" % start + bytes(BYTES)
    reader.close()
    assert len(asked) == (0 if told else 3)


COMPILED = pytest.mark.skipif(library() is None, reason="the loops in C are not compiled")


@pytest.mark.parametrize("way", [ByMessage, pytest.param(ByColumn, marks=COMPILED)])
@pytest.mark.parametrize("more", [0, 100])
@pytest.mark.usefixtures("told")
def test_a_topic_made_anew_within_a_read(
    real_kafka: Kafka, way: type[ByColumn | ByMessage], more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleted and filled again while a read is at it: no block, by column and by message, and an error that says so."""
    kafka, came = real_kafka, list[int]()
    cluster = kafka.cluster
    assert isinstance(cluster, Cluster)
    _filled(kafka, OLD, RECORDS)
    source = KafkaTopic(kafka.topic, kafka.servers)
    source.snapshot()
    fetch = way.fetch

    def noted(own: Any, run: OffsetRun, most: int) -> Event | None:
        found = fetch(own, run, most)
        if run.received and not came:
            came.append(run.want)
            cluster.delete(kafka.topic)
            _filled(kafka, NEW, RECORDS + more)
        return found

    monkeypatch.setattr(way, "fetch", noted)
    monkeypatch.setattr(by_column, "SLICE_SECONDS", 0.0)  # C comes back after some records
    reader = Opened(source)
    with by_message(way is ByMessage):
        for _ in range(2):  # also of whoever catches and goes on
            with pytest.raises(SourceChangedError, match=rf"{kafka.topic}\[0\]@\d+: .*deleted and made again"):
                reader.read(Extents.one(0, 0, RECORDS))
    reader.close()
    assert 0 < came[0] < RECORDS


@COMPILED
def test_what_c_has_filled_in_doubt_is_read_once_more(embedded: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where only a broker lagged behind: the rows are right, and what was in the lease before the read stays there."""
    first, second = f"{embedded.topic}-first", embedded.topic
    for topic, letter in ((first, b"a"), (second, b"b")):
        embedded.publish(topic, [(letter * 90 + b"%03d" % n, n) for n in range(200)], partitions=1)
    make, made = Cells.__init__, list[Cells]()

    def noted(cells: Cells, *told: Any) -> None:
        make(cells, *told)
        made.append(cells)

    def doubts(_: Witness, __: str) -> bool:
        return 1 < len(made) < 4 and bool(made[-1].taken.any())

    both = Concat([KafkaTopic(topic, embedded.servers, holes="replace") for topic in (first, second)])
    both.snapshot()
    monkeypatch.setattr(Cells, "__init__", noted)
    monkeypatch.setattr(Witness, "doubts", doubts)
    reader = Opened(both, "value", pool=SlabPool(1 << 15))
    block = reader.read(Extents(np.array([0, 1]), np.zeros(2, np.int64), np.full(2, 200)))
    assert payloads(block) == [letter * 90 + b"%03d" % n for letter in (b"a", b"b") for n in range(200)]
    assert (len(made), reader.pool.leased) == (4, block.lease.size)
    assert block.lease.size <= 3 << 15
    block.lease.release()
    assert reader.pool.leased == 0
    reader.close()


def test_what_a_consumer_says_of_its_topic() -> None:
    """It vouches for the id that it learnt last, where every broker takes fetches by id; else the id is asked for."""
    witness = Witness("t", aloud=False)

    def says(line: str) -> None:
        witness.log(logging.DEBUG, "%s [%s] %s", "METADATA", "rdkafka#consumer-1", f"[thrd:main]: {line}")

    def learns(before: str, after: str, topic: str = "t") -> None:
        says(f"Topic {topic} changed id from {before} to {after}")

    learns(NONE, X)
    assert (witness.vouches(X), witness.doubts(X), witness.doubts(Y), witness.doubts("")) == (False, False, True, False)
    says("127.0.0.1:9092/1:   ApiKey Fetch (1) Versions 4..17")
    assert witness.vouches(X)
    learns(NONE, Y, topic="t.t")
    assert witness.vouches(X)
    learns(X, Y)
    assert not witness.vouches(X)
    assert witness.doubts(X)
    learns(Y, NONE)  # of a cluster in the middle of an upgrade
    assert not any(ask(each) for ask in (witness.vouches, witness.doubts) for each in (X, Y, ""))
    learns(NONE, X)
    assert witness.vouches(X)
    says("127.0.0.1:9093/2:   ApiKey Fetch (1) Versions 0..12")  # one broker that takes them by name
    assert not witness.vouches(X)


@pytest.mark.parametrize("aloud", [False, True])
def test_lines_that_only_we_asked_for_are_not_passed_on(
    real_kafka: Kafka, caplog: pytest.LogCaptureFixture, aloud: bool
) -> None:
    """Debug lines of librdkafka are in the log where the user's config has `debug`, and else not."""
    _filled(real_kafka, OLD, 10)
    config = {"debug": "broker"} if aloud else {}
    source = KafkaTopic(real_kafka.topic, real_kafka.servers, config=config)
    source.snapshot()
    caplog.clear()
    with caplog.at_level(logging.DEBUG, logger="dali_feed.kafka"):
        reader = Opened(source)
        reader.read(Extents.one(0, 0, 10))
        reader.close()
    lines = [line for line in caplog.messages if "[thrd:" in line]
    assert bool([line for line in lines if "changed id from" in line]) == aloud
    assert bool(lines) == aloud
