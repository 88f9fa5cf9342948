"""Records of each source into a topic, a copy of a topic, and what is said of those that did not come there."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
from kit.broker.handle import Kafka, in_transactions, labels, payloads
from kit.broker.real import ALICE, PASSWORD, Cluster, RealBroker
from kit.images import jpeg
from kit.inside import write_shard
from kit.killed_producer import killed_at, produced
from kit.produced import block_of, numbered, shard_of, values_in
from kit.written import message_class, npy

from dali_feed.errors import (
    ConfigError,
    ProduceError,
    SourceDeniedError,
    SourceNotFoundError,
    SourceUnreachableError,
)
from dali_feed.external_sources import (
    Claim,
    FileList,
    KafkaTopic,
    Producer,
    ShardSet,
    Table,
)
from dali_feed.formats import Avro, Json, Protobuf
from dali_feed.testing import Broker, Message


def _sent(values: list[bytes], partitions: int) -> list[list[bytes]]:
    """Where they lie, dealt in turn."""
    return [values[p::partitions] for p in range(partitions)]


def test_a_topic_holds_the_records_of_its_source_in_order_with_their_labels(kafka: Kafka, tmp_path: Path) -> None:
    """Partitions take records in turn; KafkaTopic reads each payload and label as the source has them."""
    values = numbered(40)
    topic = kafka.create(kafka.topic, 3)
    done = Producer(topic, kafka.servers).run(shard_of(tmp_path, values))
    assert (done.total, done.begun, done.position) == (40, 0, 40)
    assert (done.tally.records, done.tally.size, done.tally.failed) == (40, sum(map(len, values)), 0)
    for p in range(3):
        block = block_of(KafkaTopic(topic, kafka.servers), p)
        assert payloads(block) == values[p::3]
        assert labels(block) == list(range(40))[p::3]


def test_files_tables_and_topics_are_sources_too(embedded: Kafka, tmp_path: Path) -> None:
    """Each gives its payloads and labels; offsets without a record are left out and counted."""
    values = numbered(10)
    for n, value in enumerate(values):
        (tmp_path / f"{n}.jpg").write_bytes(value)
    files = FileList([tmp_path / f"{n}.jpg" for n in range(10)], range(10))
    rows = Table(pa.table({"image": pa.array(values, pa.binary()), "label": list(range(10))}))
    sources: list[Any] = [files, rows]
    for k, source in enumerate(sources):
        topic = embedded.create(f"{embedded.topic}-{k}")
        assert Producer(topic, embedded.servers).run(source).tally.records == 10
        sources[k + 1 : k + 2] = [KafkaTopic(topic, embedded.servers)] if k < 2 else []
        block = block_of(KafkaTopic(topic, embedded.servers), 0)
        assert payloads(block) == values
        assert labels(block) == list(range(10))


@pytest.mark.parametrize("holes", ["replace", "scan"])
def test_a_topic_is_copied_whole_but_for_what_was_aborted(real_kafka: Kafka, holes: Literal["replace", "scan"]) -> None:
    """Keys and all headers are there; aborted records are not, and count as absent where nobody looked before."""
    to = real_kafka.create(f"{real_kafka.topic}-to", 1)
    records = [Message(b"%d" % n, b"key %d" % n, (("a", b"1"), ("a", b"%d" % n)), 0) for n in range(20)]
    in_transactions(real_kafka, real_kafka.create(real_kafka.topic), records, 5, lambda k: k == 1)
    source = KafkaTopic(real_kafka.topic, real_kafka.servers, label=None, holes=holes)
    done = Producer(to, real_kafka.servers).run(source, copy=True)
    assert (done.tally.records, done.tally.absent, done.position) == (
        (15, 9, 24) if holes == "replace" else (15, 0, 15)
    )
    copied = KafkaTopic(to, real_kafka.servers)
    found = [copied.original(0, n) for n in range(15)]
    kept = [each for n, each in enumerate(records) if n // 5 != 1]
    assert [(o.key, o.value, o.headers) for o in found if o] == [(m.key, m.value, m.headers) for m in kept]


def test_keys_and_headers_are_members(embedded: Kafka, tmp_path: Path) -> None:
    """Equal keys meet in one partition, in order; with by="turn" partitions are equally long all the same."""
    topic = embedded.create(embedded.topic, 3)
    values = numbered(30)
    source = Table(pa.table({"image": pa.array(values, pa.binary()), "who": [f"w{n % 5}" for n in range(30)]}))
    way: dict[str, Any] = {"key": "who", "headers": ("who",), "label": None}
    Producer(topic, embedded.servers).run(source, **way)
    found: list[Any] = [block_of(KafkaTopic(topic, embedded.servers, label=None), p, "key", "who") for p in range(3)]
    places = {bytes(key): p for p, block in enumerate(found) for key in block.values["key"]}
    assert sorted(places) == [b"w%d" % n for n in range(5)]
    for block in found:
        assert list(map(bytes, block.values["key"])) == list(map(bytes, block.values["who"]))
    whole = values_in(embedded.servers, topic)
    assert [sorted(part) == part for part in whole] == [True] * 3
    turn = embedded.create(f"{topic}-turn", 3)
    Producer(turn, embedded.servers, by="turn").run(source, **way)
    assert values_in(embedded.servers, turn) == _sent(values, 3)


def test_several_members_in_one_value_are_read_by_the_format(embedded: Kafka, tmp_path: Path) -> None:
    """JSON with base64, and MessagePack: columns of KafkaTopic(format=...) have what the source had."""
    values = numbered(6)
    source = shard_of(tmp_path, values)
    members = {"image": "bin", "n": "cls", "text": "txt"}
    forms: list[Any] = [Json(base64=("image",)), "msgpack"]
    for n, form in enumerate(forms):
        topic = embedded.create(f"{embedded.topic}-{n}")
        Producer(topic, embedded.servers).run(source, columns=members, format=form)
        there = KafkaTopic(topic, embedded.servers, label=None, format=form)
        block: Any = block_of(there, 0, "image", "n", "text")
        assert payloads(block) == values
        texts = [
            [each if isinstance(each, str) else bytes(each).decode() for each in block.values[name]]
            for name in ("n", "text")
        ]
        assert texts == [[str(n) for n in range(6)], [f"text {n}" for n in range(6)]]
    with pytest.raises(ConfigError, match=r"Avro\(schema\) or Protobuf\(message\); found 'avro'"):
        Producer("t", "127.0.0.1:1").run(source, columns=("cls",), format="avro")
    with pytest.raises(ConfigError, match=r"found \['a.b'\]"):
        Producer("t", "127.0.0.1:1").run(source, columns=("a.b",), format="json")


def test_what_a_schema_says_is_read_by_the_same_format(embedded: Kafka, tmp_path: Path) -> None:
    """Avro, Protobuf and .npy: a shard's texts become the fields' numbers; a record that does not fit costs itself."""
    arrays = [np.arange(n, n + 3, dtype=np.float32) for n in range(5)]
    rows = [{"npy": npy(each), "cls": b"%d" % n, "bin": b"\xff%d" % n} for n, each in enumerate(arrays)]
    rows[3]["npy"] = b"no array"
    write_shard(tmp_path / "s.tar", rows)
    source = ShardSet(tmp_path / "s.tar", image=("bin",), index_dir=tmp_path)
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "label", "type": "int"},
            {"name": "image", "type": ["null", "bytes"]},
            {"name": "features", "type": {"type": "array", "items": "float"}},
        ],
    }
    fields = {"body.label": "cls", "body.image": "bin", "body.features": "npy"}
    forms: list[tuple[Any, dict[str, str]]] = [
        (Avro(schema), {name.removeprefix("body."): member for name, member in fields.items()}),
        (Protobuf(message_class()), fields),
        ("npy", {"array": "npy"}),
    ]
    for n, (form, names) in enumerate(forms):
        topic = embedded.create(f"{embedded.topic}-{n}")
        done = Producer(topic, embedded.servers).run(source, columns=names, format=form, journal=tmp_path / f"{n}")
        assert (done.tally.records, done.tally.failed) == (4, 1)
        ((reason, _),) = done.tally.failures.items()
        assert "must be" in reason
        there = KafkaTopic(topic, embedded.servers, label=None, format=form)
        found: Any = block_of(there, 0, *names).values
        kept = [k for k in range(5) if k != 3]
        *others, features = (found[name] for name in names)
        assert [each.tolist() for each in features] == [arrays[k].tolist() for k in kept]
        if others:
            assert (others[0], list(map(bytes, others[1]))) == (kept, [b"\xff%d" % k for k in kept])


def test_a_full_queue_is_waited_for(kafka: Kafka, tmp_path: Path) -> None:
    """Far more records than the queue holds, and none is lost."""
    values = numbered(60, 30_000)
    topic = kafka.create(kafka.topic, 4)
    producer = Producer(topic, kafka.servers, queue_bytes=100_000, config={"linger.ms": 0})
    done = producer.run(shard_of(tmp_path, values))
    assert (done.tally.records, done.tally.failed) == (60, 0)
    assert values_in(kafka.servers, topic) == _sent(values, 4)


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("config", [{}, {"message.max.bytes": 1_000_000, "batch.size": 10_000}])
def test_a_record_that_is_too_large_costs_itself(
    real_broker: Cluster, tmp_path: Path, transactional: bool, config: dict[str, int]
) -> None:
    """Whether it is known before or the broker refuses it: it is counted, with its place, and the others arrive."""
    topic = f"large-{tmp_path.name}"
    real_broker.create(topic, 2, {"max.message.bytes": "20000"})
    values = numbered(20)
    rng = np.random.default_rng(0)
    values[7], values[8] = rng.bytes(30_000), rng.bytes(40_000)
    source, servers = shard_of(tmp_path, values), real_broker.servers
    transactional_id = "auto" if transactional else None
    done = Producer(topic, servers, config=config, transactional_id=transactional_id).run(source)
    assert (done.position, done.tally.records, done.tally.failed) == (20, 18, 2)
    ((reason, kind),) = done.tally.failures.items()
    assert "max.message.bytes" in reason
    assert [first.split(":")[0] for first in kind.first] == ["s.tar#7", "s.tar#8"]
    assert sorted(itertools.chain(*values_in(servers, topic))) == sorted(v for v in values if len(v) < 20_000)


def test_what_cannot_be_made_is_counted_by_reason(embedded: Kafka, tmp_path: Path) -> None:
    """A file that is gone, and a map that raises; the reasons say where, the others are what map made of them."""
    paths = [tmp_path / f"{n}.jpg" for n in range(5)]
    for n, path in enumerate(paths):
        path.write_bytes(b"%d" % n)
    source = FileList(paths, range(5))
    source.snapshot()
    paths[1].unlink()

    def doubled(payload: bytes) -> bytes:
        return payload * 2 if payload != b"3" else bytes(payload[9])

    topic = embedded.create(embedded.topic)
    done = Producer(topic, embedded.servers).run(source, map=doubled)
    assert (done.tally.records, done.tally.failed, done.position) == (3, 2, 5)
    firsts = [kind.first[0] for kind in done.tally.failures.values()]
    assert [text.partition(": ")[0] for text in firsts] == [str(paths[1]), str(paths[3])]
    assert "map: IndexError: " in firsts[1]
    assert f"{__file__}:" in firsts[1]
    assert values_in(embedded.servers, topic) == [[b"00", b"22", b"44"]]


def test_no_such_topic(kafka: Kafka, tmp_path: Path) -> None:
    """The error names a topic that is called alike, and the command that makes one; none is made."""
    kafka.create(kafka.topic)
    source = shard_of(tmp_path, numbered(2))
    for _ in range(2):
        with pytest.raises(
            SourceNotFoundError, match=rf"did you mean {kafka.topic}\b.*\?; `dali-feed topic create kafka://"
        ):
            Producer(kafka.topic + "x", kafka.servers).run(source)


def test_a_broker_that_is_silent_ends_the_run(embedded: Kafka, tmp_path: Path) -> None:
    """The error comes after `timeout`; the journal has what was acknowledged, and a later run sends the rest."""
    values = numbered(60, 20_000)
    topic, source, cluster = embedded.create(embedded.topic, 2), shard_of(tmp_path, values), embedded.cluster
    assert isinstance(cluster, Broker)
    options: dict[str, Any] = {"queue_bytes": 100_000, "config": {"linger.ms": 0}}
    run: dict[str, Any] = {"journal": tmp_path / "journal", "every": 0}
    with pytest.raises(SourceUnreachableError, match=f"^{topic}: the broker must answer"):
        Producer(topic, embedded.servers, timeout=1.0, **options).run(source, tell=lambda _: cluster.down(), **run)
    cluster.up()
    done = Producer(topic, embedded.servers, **options).run(source, **run)
    assert done.begun < 60
    assert (done.position, done.tally.records) == (60, 60)
    assert [sorted(set(part)) for part in values_in(embedded.servers, topic)] == _sent(values, 2)


def test_no_right_to_write(real_broker: RealBroker, tmp_path: Path) -> None:
    """A wrong password, and a user whom no ACL lets write: the error names the rights, and no password."""
    topic, source = f"denied-{tmp_path.name}", shard_of(tmp_path, numbered(2))
    real_broker.create(topic)
    for password in ("wrong", PASSWORD):
        with pytest.raises(SourceDeniedError, match=f"^{topic}: ") as told:
            Producer(topic, real_broker.sasl_servers, config={**ALICE, "sasl.password": password}).run(source)
        assert password not in str(told.value)


@pytest.mark.parametrize("transactional", [False, True])
def test_a_killed_run_goes_on(real_kafka: Kafka, tmp_path: Path, transactional: bool) -> None:
    """After kill -9 at several records every record is there; with transactions none is there twice."""
    values, topic = numbered(60), real_kafka.create(real_kafka.topic, 3)
    shard_of(tmp_path, values)
    run = (tmp_path / "s.tar", real_kafka.servers, topic, tmp_path / "journal", transactional)
    for record in (13, 59):
        assert killed_at(record, *run) == -9
    done = produced(*run)
    assert (done.position, done.tally.records, done.tally.size) == (60, 60, sum(map(len, values)))
    found = values_in(real_kafka.servers, topic)
    assert [sorted(set(part)) for part in found] == _sent(values, 3)
    if transactional:
        assert found == _sent(values, 3)
    again = produced(*run)
    assert (again.begun, again.tally.records) == (60, 60)
    assert values_in(real_kafka.servers, topic) == found


def test_values_of_both_kinds_keep_their_order(real_kafka: Kafka, tmp_path: Path) -> None:
    """Images and texts go through one producer, whose codec the first records decide; each is there once."""
    values = [jpeg(n) if n % 2 else b"text %d" % n for n in range(24)]
    topic = real_kafka.create(real_kafka.topic, 1)
    shard_of(tmp_path, values)
    run = (tmp_path / "s.tar", real_kafka.servers, topic, tmp_path / "journal", True)
    assert killed_at(9, *run) == -9
    assert produced(*run).tally.records == 24
    (found,) = values_in(real_kafka.servers, topic)
    assert found == values
    assert json.loads(run[3].read_text())["codec"] == "lz4"


def test_the_embedded_broker_keeps_no_position_in_transactions(embedded: Kafka, tmp_path: Path) -> None:
    """It says so before anything is sent."""
    topic = embedded.create(embedded.topic)
    with pytest.raises(ProduceError, match="leave transactional_id= out"):
        Producer(topic, embedded.servers, transactional_id="auto").run(shard_of(tmp_path, numbered(2)))
    assert values_in(embedded.servers, topic) == [[]]


def test_the_codec_of_a_run_is_that_of_most_of_its_first_records(embedded: Kafka, tmp_path: Path) -> None:
    """Photographs are not compressed again, texts are; a run that goes on has the codec that it began with."""
    for name, values, codec in (
        ("photos", [jpeg(n) for n in range(9)] + [b"text"] * 9, "none"),
        ("texts", [b"text"] * 9 + [jpeg(n) for n in range(9)], "lz4"),
    ):
        (tmp_path / name).mkdir()
        source, journal = shard_of(tmp_path / name, values), tmp_path / name / "journal"
        Producer(embedded.create(f"{embedded.topic}-{name}"), embedded.servers).run(source, journal=journal)
        assert json.loads(journal.read_text())["codec"] == codec


ODD = [
    Message(b"value", b"k", (("a", b"1"),), 0),
    Message(None, b"k", (("why", b"\xff"),), 0),  # deletes k where the topic is compacted
    Message(b"", None, (), 0),
    Message(None, None, (), 0),
    Message(b"\x00", b"\xff\xfe", (("", b""), ("a", b"1"), ("a", b"2")), 0),
]


def records_of(kafka: Kafka, topic: str) -> list[tuple[Any, ...]]:
    """Value, key and headers of a topic's records."""
    source = KafkaTopic(topic, kafka.servers)
    found = [source.original(0, n) for n in range(len(ODD))]
    return [(each.value, each.key, tuple(each.headers)) for each in found if each]


@pytest.mark.parametrize("options", [{}, {"compression": "lz4"}, {"map": lambda value: value}, {"claim": 1}])
def test_tombstones_are_copied(embedded: Kafka, tmp_path: Any, options: dict[str, Any]) -> None:
    """A record without a value is not one of no bytes: a copy that left it out would bring its key back."""
    embedded.publish(embedded.topic, ODD, 1)
    to = embedded.create(f"{embedded.topic}-to")
    options = {"claim": Claim(tmp_path, 100)} if "claim" in options else options
    mapped = {"map": options.pop("map")} if "map" in options else {}
    source = KafkaTopic(embedded.topic, embedded.servers)
    done = Producer(to, embedded.servers, **options).run(source, copy=True, **mapped)
    assert (done.tally.records, done.tally.failed) == (len(ODD), 0)
    assert sorted(records_of(embedded, to), key=repr) == sorted(records_of(embedded, embedded.topic), key=repr)
    assert sorted((m.value, m.key, m.headers) for m in ODD if m.value) == sorted(
        each for each in records_of(embedded, to) if each[0]
    )
    assert [each[0] for each in records_of(embedded, to)].count(None) == 2


def test_a_copy_maps_no_tombstone(embedded: Kafka) -> None:
    """`map=` is of values; where there is none it is not called."""
    embedded.publish(embedded.topic, ODD, 1)
    to = embedded.create(f"{embedded.topic}-to")
    source = KafkaTopic(embedded.topic, embedded.servers)
    Producer(to, embedded.servers).run(source, copy=True, map=lambda value: b"<" + value + b">")
    found = [each[0] for each in records_of(embedded, to)]
    assert sorted(value for value in found if value is not None) == [b"<\x00>", b"<>", b"<value>"]
    assert found.count(None) == 2


def test_images_alone_have_no_tombstones(embedded: Kafka) -> None:
    """Where payloads are written anew a record without one is a failure, with its coordinates."""
    embedded.publish(embedded.topic, ODD[:2], 1)
    to = embedded.create(f"{embedded.topic}-to")
    source = KafkaTopic(embedded.topic, embedded.servers, label=None)
    done = Producer(to, embedded.servers).run(source, label=None)
    ((reason, failure),) = done.tally.failures.items()
    assert "tombstone" in reason
    assert "[0]@1: " in failure.first[0]
