"""`dali-feed produce` and `topic`: what people read, and how it ends."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest
from kit.blocks import rows
from kit.broker.handle import Kafka
from kit.command import Cli, assert_one_line, cli
from kit.produced import numbered, shard_of, values_in

from dali_feed.external_sources import KafkaTopic
from dali_feed.testing import Message

__all__ = ["cli"]  # a fixture


def test_a_source_from_the_command_line(
    cli: Cli, embedded: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards into a topic, and that one into another; called again nothing is sent."""
    monkeypatch.chdir(tmp_path)
    values = numbered(9)
    shard_of(tmp_path, values)
    first, other = embedded.create(embedded.topic, 2), embedded.create(embedded.topic + "-2", 1)
    command = ("produce", tmp_path / "s.tar", f"kafka://{embedded.servers}/{first}", "--payload", "bin")
    done = cli(*command, "--key", "cls", "--header", "txt")
    words = " ".join(done.out.split())
    assert (done.code, done.err) == (0, "")
    assert (
        f"kafka topic {first} at {embedded.servers} written 9 records, {sum(map(len, values))} bytes failed 0" in words
    )
    assert (tmp_path / f"{first}.produce").exists()
    done = cli(*command, "--key", "cls", "--header", "txt")
    assert "continued at record 9 of 9" in " ".join(done.out.split())
    assert_one_line(cli(*command), "must continue with the options that it began with", "key: 'cls', found None")
    done = cli("produce", f"kafka://{embedded.servers}/{first}", f"kafka://{embedded.servers}/{other}")
    assert done.code == 0
    found = rows(KafkaTopic(other, embedded.servers), "key", "label", "txt")
    assert sorted(row["txt"] for row in found) == [b"text %d" % n for n in range(9)]
    assert [row["key"] for row in found] == [row["label"] for row in found]
    assert sorted(itertools.chain(*values_in(embedded.servers, first))) == sorted(values)


def test_values_of_a_format_and_failures(cli: Cli, embedded: Kafka, tmp_path: Path) -> None:
    """JSON of several members; records that cannot be written are listed, and it ends with 1."""
    shard_of(tmp_path, [b"\xff" if n == 4 else b"%d" % n for n in range(6)])
    topic = embedded.create(embedded.topic)
    target = f"kafka://{embedded.servers}/{topic}"
    done = cli(
        "produce", tmp_path / "s.tar", target, "--format", "json", "--value", "text=bin", "--value", "cls",
        "--journal", tmp_path / "journal",
    )  # fmt: skip
    assert done.code == 1
    assert "failed 1" in " ".join(done.out.split())
    assert "s.tar#4: json: text: must be text in UTF-8" in done.out
    assert values_in(embedded.servers, topic)[0][:2] == [b'{"text":"0","cls":"0"}', b'{"text":"1","cls":"1"}']
    (tmp_path / "r.avsc").write_text('{"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}')
    other = embedded.create(f"{topic}-avro")
    done = cli(
        "produce", tmp_path / "s.tar", f"kafka://{embedded.servers}/{other}", "--format", "avro", "--schema",
        tmp_path / "r.avsc", "--value", "n=cls", "--journal", tmp_path / "other",
    )  # fmt: skip
    assert done.code == 0
    assert values_in(embedded.servers, other) == [[bytes([2 * n]) for n in range(6)]]


def test_coordinates_as_keys(cli: Cli, embedded: Kafka, tmp_path: Path) -> None:
    """--key where: each record's key says which one of the source it is, beside the headers or alone."""
    values = numbered(6)
    shard_of(tmp_path, values)
    for k, more in enumerate(((), ("--header", "txt"), ("--format", "json", "--value", "n=cls"))):
        topic = embedded.create(f"{embedded.topic}-{k}")
        target = f"kafka://{embedded.servers}/{topic}"
        journal = ("--journal", tmp_path / topic)
        assert (
            cli("produce", tmp_path / "s.tar", target, "--payload", "bin", "--key", "where", *journal, *more).code == 0
        )
        keys = [row["key"].decode() for row in rows(KafkaTopic(topic, embedded.servers), "key")]
        assert keys == [f"s.tar#{n}" for n in range(6)]


def test_large_values_into_a_folder(cli: Cli, embedded: Kafka, tmp_path: Path) -> None:
    """--claim and --claim-above: the topic has the small ones, the folder the others, and the bytes of both count."""
    values, topic = numbered(9), embedded.create(embedded.topic)
    shard_of(tmp_path, values)
    command = ("produce", tmp_path / "s.tar", f"kafka://{embedded.servers}/{topic}", "--payload", "bin")
    options = ("--claim-above", "110B", "--journal", tmp_path / "journal")
    assert_one_line(cli(*command, *options, "--claim", tmp_path / "none"), "the folder must exist")
    (tmp_path / "claims").mkdir()
    done = cli(*command, *options, "--claim", tmp_path / "claims")
    assert (done.code, done.err) == (0, "")
    assert f"written 9 records, {sum(map(len, values))} bytes" in " ".join(done.out.split())
    source = KafkaTopic(topic, embedded.servers, claims=tmp_path / "claims")
    assert [row["value"] for row in rows(source, "value")] == values
    assert values_in(embedded.servers, topic)[0].count(b"") == sum(len(value) > 110 for value in values)


def test_a_topic_must_exist(cli: Cli, embedded: Kafka, tmp_path: Path) -> None:
    """And the command that makes one is said."""
    shard_of(tmp_path, numbered(2))
    target, more = f"kafka://{embedded.servers}/x", ("--journal", tmp_path / "journal")
    done = cli("produce", tmp_path / "s.tar", target, *more)
    assert_one_line(done, "x: the topic must exist", "`dali-feed topic create kafka://")


def test_a_topic_from_the_command_line(cli: Cli, real_kafka: Kafka) -> None:
    """Made with the advice, described with its warnings."""
    target = f"kafka://{real_kafka.servers}/{real_kafka.topic}"
    done = cli("topic", "create", target, "--partitions", 3, "--retention", "2h", "--max-message", "1MB")
    assert (done.code, done.err) == (0, "")
    assert f"{real_kafka.topic}: made, with 3 partitions\n  2 to 4 partitions per GPU" in done.out
    real_kafka.publish(real_kafka.topic, [Message(bytes(1000), partition=k % 3) for k in range(30)])
    done = cli("topic", "describe", target, "--gpus", 2)
    assert done.code == 0
    words = " ".join(done.out.split())
    for text in (
        f"kafka topic {real_kafka.topic} at {real_kafka.servers}",
        "partitions 3, replication 1, 1 broker",
        "records 30 offsets, about 30.0 kB (1,000 bytes each)",
        "compression producer",
        "largest record 1.0 MB (1000000)",
        f"{real_kafka.topic}[2] 0 10 10 10.0 kB 1 1 of 1",
        "warning retention.ms=7200000: ",
        "warning replication 1: ",
        "warning max.message.bytes=1000000: ",
        "warning 3 partitions for 2 GPUs: ",
    ):
        assert text in words
    assert re.search(
        "retention 2 h; the oldest may be deleted in (2 h|1 h 5. min)", words
    )  # they are as old as the test
    assert "warning retention" not in cli("topic", "describe", target, "--run", "30m").out
    assert cli("topic", "describe", target, "--strict").code == 1
    told = json.loads(cli("topic", "describe", target, "--json").out)
    assert (told["offsets"], told["bytes"], len(told["warnings"])) == (30, 30_000, 3)


def test_a_broker_that_makes_no_topics_is_told(cli: Cli, embedded: Kafka) -> None:
    """And so is a topic that is not there."""
    assert_one_line(cli("topic", "create", f"kafka://{embedded.servers}/x"), "x: an admin client needs a controller")
    missing = f"kafka://{embedded.servers}/{embedded.topic}-missing"
    assert_one_line(cli("topic", "describe", missing), embedded.topic, "there is none")


def test_the_embedded_broker_is_described(cli: Cli, embedded: Kafka) -> None:
    """What it knows is shown, and why the rest is not."""
    embedded.publish(embedded.topic, [Message(bytes(500))] * 10, partitions=2)
    done = cli("topic", "describe", f"kafka://{embedded.servers}/{embedded.topic}")
    words = " ".join(done.out.split())
    assert done.code == 0
    assert "records 10 offsets, about 5,000 bytes (500 bytes each)" in words
    assert "settings not known: this broker does not answer questions about settings" in words
