"""The order that records are produced in, the counts of what became of them, and journals and positions of runs."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from confluent_kafka.admin import AdminClient
from kit import growing_map
from kit.broker.handle import Kafka
from kit.killed_producer import killed_at, produced
from kit.produced import numbered, shard_of, values_in

from dali_feed.bad_records import KINDS, Tally
from dali_feed.errors import ConfigError, DataLostError, ProduceError, SourceChangedError, StateError
from dali_feed.external_sources import Producer
from dali_feed.external_sources.kafka import ahead, client, produce, sender
from dali_feed.external_sources.kafka.ahead import Numbered, made_ahead
from dali_feed.external_sources.kafka.cluster import Cluster
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.external_sources.kafka.produce import Acks, journal_lock
from dali_feed.external_sources.kafka.sender import Sender
from dali_feed.external_sources.kafka.writes import Writing, Written
from dali_feed.packing.changes import Reencode
from dali_feed.records.extents import Extents, Present
from dali_feed.records.source import Snapshot
from dali_feed.testing import ScriptedSource


def _snapshot(*, interleaved: bool, present: bool) -> Snapshot:
    """Three partitions, one of them empty; of a topic read 4 offsets at a time, or of shards."""
    starts, stops = np.array([5, 0, 0], np.int64), np.array([16, 0, 7], np.int64)
    runs = Extents(*(np.array(each, np.int64) for each in ([0, 0, 2], [5, 9, 1], [7, 16, 4])))
    known = Present.of(runs, 3) if present else None
    return Snapshot(
        "s", ("a", "b", "c"), starts, stops, 4, 4 << 20,
        random_access=not interleaved, interleaved=interleaved, fingerprint="f", present=known,
    )  # fmt: skip


def from_on(line: Numbered, number: int, most: int = 100) -> list[int]:
    """The ids of all records from a number on, as they are read."""
    samples: list[int] = []
    while number + len(samples) < len(line):
        samples += line.run(number + len(samples), most).ids().tolist()
    return samples


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("present", [False, True])
def test_a_line_goes_on_at_any_number_as_it_would_have(interleaved: bool, present: bool) -> None:
    """Every record has one number, whichever it is begun at; holes that are known are not in it."""
    line = Numbered.of(_snapshot(interleaved=interleaved, present=present))
    whole = from_on(line, 0)
    assert len(whole) == len(set(whole)) == len(line) == (12 if present else 18)
    for number in range(len(line)):
        assert from_on(line, number) == whole[number:]
        assert from_on(line, number, 2) == whole[number:]
        partition, position = line.at(number)
        assert (partition << 40) + position == whole[number]
    partitions = [sample >> 40 for sample in whole]
    assert (partitions == sorted(partitions)) == (not interleaved)


def test_the_mark_waits_for_the_slowest() -> None:
    """What is delivered behind a record that is not is counted once that one is settled, and survives as JSON."""
    acks = Acks(10, Tally(), lambda number: f"s#{number}")
    acks.end(12, 100)
    acks.end(11, "too large: 17")
    assert (acks.mark, acks.tally.records) == (10, 0)
    acks.end(10, None)
    assert acks.mark == 13
    acks.end(13, 5)
    assert acks.mark == 14
    tally = Tally.of(json.loads(json.dumps(acks.tally.to_json())))
    assert tally == acks.tally
    assert (tally.records, tally.size, tally.absent, tally.failed) == (2, 105, 1, 1)
    assert tally.failures["too large: N"].first == ["s#11: too large: 17"]
    for number in range(100):
        tally.fail(f"reason {'x' * number}", "s")
    assert len(tally.failures) == KINDS + 1
    assert tally.failed == 101


def test_a_position_that_the_broker_forgot_is_no_beginning(real_kafka: Kafka, tmp_path: Path) -> None:
    """Its group is gone, as after seven days: a named error, and nothing is written."""
    topic = real_kafka.create(real_kafka.topic)
    shard_of(tmp_path, numbered(40))
    run = (tmp_path / "s.tar", real_kafka.servers, topic, tmp_path / "journal", True)
    assert killed_at(30, *run) == -9
    name = f"dali_feed-produce-{json.loads(run[3].read_text())['run']}"
    admin = AdminClient({"bootstrap.servers": real_kafka.servers})
    (gone,) = admin.delete_consumer_groups([name]).values()
    gone.result(60)
    with pytest.raises(DataLostError, match=f"^{topic}: the position of the run {name} must be at"):
        produced(*run)


def test_a_run_that_was_taken_over_writes_nothing(real_kafka: Kafka) -> None:
    """Who comes later goes on; who was there before ends with an error, and its open transaction is taken back."""
    topic = real_kafka.create(real_kafka.topic)
    to = Connection(topic, real_kafka.servers, config={"linger.ms": 0})
    settled: list[Any] = []

    def made() -> Sender:
        kind: dict[str, Any] = {"compression": "none", "queue_bytes": 1 << 20, "transactional_id": topic}
        return Sender(to, lambda token, _, outcome: settled.append((token, type(outcome).__name__)), **kind)

    before = made()
    before.begin()
    before.send(Written(b"before", None, []), 0, 0)
    after = made()
    with pytest.raises(ProduceError, match=f"^{topic}: one process at a time may do a run"):
        before.commit([], None)
    after.begin()
    after.send(Written(b"after", None, []), 0, 1)
    after.commit([], None)
    for each in (before, after):
        each.close()
    assert sorted(settled)[1] == (1, "Message")
    assert values_in(real_kafka.servers, topic) == [[b"after"]]


def test_a_journal_is_of_one_run(embedded: Kafka, tmp_path: Path) -> None:
    """Another source, topic or option, a file that is no journal, and a second process: a named error each."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    source, other = shard_of(tmp_path / "a", numbered(4)), shard_of(tmp_path / "b", numbered(5))
    topic, journal = embedded.create(embedded.topic, 2), tmp_path / "journal"
    Producer(topic, embedded.servers).run(source, journal=journal)
    with pytest.raises(SourceChangedError, match=f"^{journal}: a run must continue with the source that it began with"):
        Producer(topic, embedded.servers).run(other, journal=journal)
    with pytest.raises(StateError, match="key: None, found 'txt'; label: 'label', found None"):
        Producer(topic, embedded.servers).run(source, key="txt", label=None, journal=journal)
    with pytest.raises(StateError, match=f"topic: '{topic}', found '{topic}2'"):
        Producer(embedded.create(topic + "2"), embedded.servers).run(source, journal=journal)
    with journal_lock(journal), pytest.raises(ConfigError, match="one process at a time may use a journal"):
        Producer(topic, embedded.servers).run(source, journal=journal)
    told = json.loads(journal.read_text())
    odd: Any = ({"version": 2}, {"position": 5}, {"partitions": 0}, {"partitions": "x"}, {"options": []}, {"pin": 5})
    for text in ("{}", "no", "[]", "[" * 100_000, *(json.dumps(told | {"done": False} | each) for each in odd)):
        journal.write_text(text)
        with pytest.raises(StateError, match=f"^{journal}: "):
            Producer(topic, embedded.servers).run(source, journal=journal)
    with pytest.raises(ConfigError, match="a journal must be a file .* in a folder that can be"):
        Producer(topic, embedded.servers).run(source, journal=tmp_path / "none" / "journal")


def test_memory_is_bounded_whatever_map_makes(embedded: Kafka, tmp_path: Path) -> None:
    """A piece of the source becomes 600 MB, and a process that may have 256 MB more writes them all, in order."""
    values = [b"%06d" % n * 3_500 for n in range(400)]  # 21 KB each
    shard_of(tmp_path, values)
    topic = embedded.create(embedded.topic, 2)
    command = [
        sys.executable,
        "-P",
        growing_map.__file__,
        str(tmp_path / "s.tar"),
        embedded.servers,
        topic,
        "256000000",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["400", str(growing_map.GROWS * sum(map(len, values)))]
    for p, part in enumerate(values_in(embedded.servers, topic)):
        assert [(value[:6], len(value)) for value in part] == [(v[:6], 75 * len(v)) for v in values[p::2]]


def test_chunks_of_a_map_come_in_order_and_are_begun_again(
    embedded: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of which some grow without warning, whatever the number of threads: each once, in its place."""
    values = numbered(500, 2_000)
    monkeypatch.setattr(ahead, "CHUNK_BYTES", 1 << 20)

    def uneven(payload: bytes) -> bytes:
        return payload * (300 if int(payload[:6]) % 97 == 96 else 1)

    source = shard_of(tmp_path, values)
    for readers in (1, 3):
        topic = embedded.create(f"{embedded.topic}-{readers}", 4)
        assert Producer(topic, embedded.servers).run(source, map=uneven, readers=readers).tally.records == 500
        assert values_in(embedded.servers, topic) == [[uneven(v) for v in values[p::4]] for p in range(4)]


def test_one_large_record_costs_no_reads() -> None:
    """Of 1,000 records map= makes one large: each piece is read once, and those behind it are made many at once."""
    values = numbered(1_000)
    source = ScriptedSource(values, extent=50, interleaved=True)

    def outlier(payload: bytes) -> bytes:
        return payload * (25_000 if payload.startswith(b"000300") else 1)

    line = Numbered.of(source.snapshot())
    chunks = [items for items in made_ahead(Writing("t", source, map=outlier), 2, line, 0) if items]
    records = [item for items in chunks for item in items if isinstance(item, Written)]
    assert [item.value for item in records] == [outlier(value) for value in values]
    assert (len(source.reads), len(line.pieces)) == (20, 20)
    assert len(chunks) < 30


def shifted(payload: bytes, by: int) -> bytes:
    """With an argument that is given beforehand."""
    return payload[by:]


class Suffixed:
    """A function of a user's, which is an object."""

    def __init__(self, suffix: str) -> None:
        self.suffix = suffix

    def __call__(self, payload: bytes) -> bytes:
        """With the suffix."""
        return payload + self.suffix.encode()


@pytest.mark.parametrize(
    "made",
    [
        lambda n: Reencode(64 + n, 90),
        lambda n: Suffixed("ab"[n]),
        lambda n: partial(shifted, by=n),
    ],
    ids=["reencode", "object", "partial"],
)
def test_a_function_that_is_an_object_is_the_same_in_another_process(
    embedded: Kafka, tmp_path: Path, made: Any
) -> None:
    """A run with `map=` goes on with another object of the same class and settings, and with no other settings."""
    source, topic, journal = shard_of(tmp_path, numbered(4)), embedded.create(embedded.topic, 2), tmp_path / "journal"
    first, same = made(0), made(0)
    Producer(topic, embedded.servers).run(source, map=first, journal=journal)
    assert Producer(topic, embedded.servers).run(source, map=same, journal=journal).begun == 4
    with pytest.raises(StateError, match="map: "):
        Producer(topic, embedded.servers).run(source, map=made(1), journal=journal)


def test_an_object_without_a_name_runs_where_no_journal_needs_one(embedded: Kafka, tmp_path: Path) -> None:
    """It holds a lock: with a journal it is asked for its `facts`."""
    source, topic = shard_of(tmp_path, numbered(4)), embedded.create(embedded.topic, 2)
    one: Any = Suffixed("a")
    one.lock = threading.Lock()
    assert Producer(topic, embedded.servers).run(source, map=one).tally.records == 4
    with pytest.raises(ConfigError, match=r"found a Suffixed: .* Give it an attribute facts"):
        Producer(topic, embedded.servers).run(source, map=one, journal=tmp_path / "journal")


def test_a_run_whose_consumer_cannot_be_made_leaves_no_client(
    embedded: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options that only a consumer refuses: the error, and the producer that was made before it is dropped."""
    source, topic = shard_of(tmp_path, numbered(4)), embedded.create(embedded.topic)
    dropped: list[Any] = []
    drop = sender._drop

    def noted(client: Any) -> None:
        dropped.append(client)
        drop(client)

    monkeypatch.setattr(sender, "_drop", noted)
    config = {"max.poll.interval.ms": 1000, "session.timeout.ms": 6000}
    with pytest.raises(ConfigError, match="max.poll.interval.ms"):
        Producer(topic, embedded.servers, transactional_id="auto", config=config).run(source)
    assert len(dropped) == 1


@pytest.mark.parametrize("every", [0.0, 100.0])
def test_a_topic_that_was_made_again_meanwhile_ends_the_run(
    embedded: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: float
) -> None:
    """What was acknowledged before has gone with it: the run is not done, and its journal is of no use any more."""
    source, topic, journal = shard_of(tmp_path, numbered(4)), embedded.create(embedded.topic), tmp_path / "journal"
    ids = iter(["first"])
    # The embedded broker's topics have no ids.
    monkeypatch.setattr(produce, "topic_at", lambda _: (1, next(ids, "second"), None))
    monkeypatch.setattr(Cluster, "topic_id", lambda _: "second")
    with pytest.raises(SourceChangedError, match="must end in the topic that it began with, whose id is first"):
        Producer(topic, embedded.servers).run(source, journal=journal, every=every)
    assert not json.loads(journal.read_text())["done"]
    with pytest.raises(SourceChangedError, match="it was deleted and made again; remove the journal"):
        Producer(topic, embedded.servers).run(source, journal=journal)


def test_a_record_that_is_refused_before_it_is_sent_takes_its_transaction_back(real_kafka: Kafka) -> None:
    """One that is too large for the queue; and a transaction is inside of no other."""
    topic = real_kafka.create(real_kafka.topic)
    with Producer(topic, real_kafka.servers, transactional_id=topic, queue_bytes=20_000) as producer:

        def refused() -> None:
            with producer.transaction():
                producer.send(b"before")
                producer.send(bytes(50_000))
                producer.send(b"behind")

        def nested() -> None:
            with producer.transaction():
                producer.send(b"outer")
                with producer.transaction():
                    producer.send(b"inner")

        with pytest.raises(ProduceError, match="larger than queue_bytes.*none of its transaction is in the topic"):
            refused()
        with pytest.raises(ConfigError, match="a transaction must not be inside of another one"):
            nested()
        with producer.transaction():
            producer.send(b"last")
    assert values_in(real_kafka.servers, topic) == [[b"last"]]


def test_what_is_acknowledged_is_with_all_brokers_and_comes_once(
    embedded: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The embedded cluster's brokers share their records, so that it does not show an answer that comes too early."""
    made: list[Any] = []

    def seen(to: Connection, trouble: Any, tuning: Any, settings: Any) -> Any:
        made.append((settings["acks"], settings["enable.idempotence"]))
        return client.producer(to, trouble, tuning, settings)

    monkeypatch.setattr(sender, "producer", seen)
    topic = embedded.create(embedded.topic)
    Producer(topic, embedded.servers).run(shard_of(tmp_path, numbered(3)))
    with Producer(topic, embedded.servers) as producer:
        producer.send(b"one")
    assert made == [("all", True)] * 2
