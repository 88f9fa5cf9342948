"""dali-feed verify and dead-letters: a whole source looked at, and what was kept of it looked at again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kit.broker.handle import Kafka
from kit.broker.real import free_ports
from kit.command import Cli, assert_one_line, cli
from kit.images import bad_tables, broken_png, jpeg, text
from kit.inside import write_shard
from kit.shelves import letter
from kit.web import Web

from dali_feed.external_sources import DeadLetterFolder, Producer, ShardSet
from dali_feed.packing import pack
from dali_feed.testing import Message

__all__ = ["cli"]  # a fixture


def test_verify_shards(cli: Cli, tmp_path: Path) -> None:
    """Every record of a set: counts, kinds with their first places, an exit code of 1 for any that is bad."""
    write_shard(tmp_path / "a.tar", [(jpeg(n), n) for n in range(20)])
    assert cli("verify", tmp_path / "a.tar", "--decode").code == 0
    write_shard(tmp_path / "b.tar", [(text(), 1), (jpeg(1), 2), (text(), 3), (bad_tables(), 4)])
    done = cli("verify", tmp_path / "*.tar", "--dead-letter", tmp_path / "dead")
    assert done.code == 1
    assert "24 of 24 positions; 0 absent" in done.out
    assert "22, by their headers" in done.out
    assert "2 records: text, not an image" in done.out
    assert "b.tar#0: text, not an image (starts with" in done.out
    assert len(list(DeadLetterFolder(tmp_path / "dead").read())) == 2
    done = cli("verify", tmp_path / "*.tar", "--decode")
    assert done.code == 1
    assert "21, decoded" in done.out
    assert "b.tar#3: decoder: nvImageCodec cannot decode it" in done.out


def test_hashes_of_an_mds_set_are_compared(cli: Cli, tmp_path: Path) -> None:
    """A shard whose bytes are others than index.json says ends it, by name; without a hash a line says so."""
    write_shard(tmp_path / "a.tar", [(jpeg(n), n) for n in range(3)])
    pack(ShardSet(tmp_path / "a.tar"), tmp_path / "m", to="mds")
    assert cli("verify", tmp_path / "m").code == 0
    shard, index = tmp_path / "m" / "shard.00000.mds", tmp_path / "m" / "index.json"
    data = bytearray(shard.read_bytes())
    data[-2] ^= 1
    shard.write_bytes(data)
    assert_one_line(cli("verify", tmp_path / "m"), "shard.00000.mds", "found sha1", "but index.json says")
    told = json.loads(index.read_text())
    told["shards"][0]["raw_data"]["hashes"] = {}
    index.write_text(json.dumps(told))
    assert "1 shard without a hash that can be checked" in cli("verify", tmp_path / "m").out


def test_empty_files_are_bad_records_wherever_they_stand(cli: Cli, tmp_path: Path) -> None:
    """Inspect and verify count a file of no bytes, the first of a folder, and a folder of nothing else."""
    for name, held in (("0.jpg", b""), ("1.jpg", jpeg(1)), ("2.jpg", b"")):
        (tmp_path / name).write_bytes(held)
    done = cli("inspect", tmp_path)
    assert (done.code, done.err) == (0, "")
    assert "1 good, 2 bad" in done.out
    assert f"{tmp_path}/0.jpg: empty payload" in done.out
    for options in ((), ("--decode",)):
        done = cli("verify", tmp_path, *options)
        assert (done.code, done.err) == (1, "")
        assert "2 records: empty payload" in done.out
    (tmp_path / "1.jpg").write_bytes(b"")
    for command in ("inspect", "verify"):
        done = cli(command, tmp_path)
        assert (done.code, done.err) == (1, "")
        assert done.out.count(".jpg: empty payload") == 3


def test_verify_a_topic(cli: Cli, kafka: Kafka) -> None:
    """A topic with labels: a record without one is bad too; letters go to a topic with key and headers kept."""
    records = [Message(jpeg(n), headers=(("label", b"%d" % n),), partition=n % 2) for n in range(20)]
    records += [Message(jpeg(0), b"k", (("by", b"cam"),), 0), Message(None, b"t", (("label", b"1"),), 1)]
    kafka.publish(kafka.topic, records, partitions=2)
    dead = kafka.create(f"{kafka.topic}.dead")
    done = cli("verify", f"kafka://{kafka.servers}/{kafka.topic}", "--dead-letter", f"kafka://{kafka.servers}/{dead}")
    assert done.code == 1, done.err
    assert "20, by their headers" in done.out
    assert f"{kafka.topic}[0]@10: column 'label' of member 'headers.label': the record has no such" in done.out
    assert f"{kafka.topic}[1]@10: a record must hold an image; this one is a tombstone" in done.out
    letters = list(Producer(dead, kafka.servers).read())
    assert {found.original.key for found in letters if found.original} == {b"k", b"t"}
    listed = cli("dead-letters", f"kafka://{kafka.servers}/{dead}")
    assert listed.code == 0
    assert "2 dead letters: refused 2 by the source" in listed.out


def test_good_records_without_a_label_are_told(cli: Cli, kafka: Kafka, tmp_path: Path) -> None:
    """A topic, shards or a folder of which no good record has a label: a line says so; with labels there is none."""
    kafka.publish(kafka.topic, [Message(jpeg(n)) for n in range(9)], partitions=2)
    done = cli("verify", f"kafka://{kafka.servers}/{kafka.topic}")
    assert (done.code, done.err) == (0, "")
    assert "labels    no header `label`: read it with KafkaTopic(..., label=None), or" in done.out
    for folder, members in (("bare", {"jpg": jpeg(1)}), ("whole", {"jpg": jpeg(1), "cls": b"3"})):
        (tmp_path / folder).mkdir()
        write_shard(tmp_path / folder / "a.tar", [members])
        (tmp_path / folder / "flat" / folder).mkdir(parents=True)
        (tmp_path / folder / "flat" / folder / "0.jpg").write_bytes(jpeg(1))
    assert "labels    no label: neither a .cls member nor a .json" in cli("verify", tmp_path / "bare" / "a.tar").out
    assert "labels    no label: the images lie in one folder" in cli("verify", tmp_path / "bare" / "flat" / "bare").out
    assert "labels " not in cli("verify", tmp_path / "whole" / "a.tar").out
    assert "labels " not in cli("verify", tmp_path / "whole" / "flat").out


def test_letters_are_listed_and_looked_at_again(cli: Cli, tmp_path: Path) -> None:
    """--check screens, decodes what the decoder had refused, believes the source; 1 where some are still bad."""
    folder = DeadLetterFolder(tmp_path)
    folder.writer().write(
        [
            letter(0, payload=jpeg(0)),
            letter(1, payload=text(), reason="text"),
            letter(2, payload=broken_png(), stage="decode", reason="decoder"),
            letter(3, payload=jpeg(3), stage="decode", reason="decoder", gone=True),
            letter(4, payload=jpeg(4), stage="source", reason="no label"),
        ]
    )
    done = cli("dead-letters", tmp_path)
    assert done.code == 0
    assert "bad   s[0]@0: why  (screen, " in done.out
    assert "5 dead letters: refused 2 by the decoder, 2 by the screen, 1 by the source" in " ".join(done.out.split())
    done = cli("dead-letters", "--check", tmp_path)
    assert done.code == 1
    for line in ("good  s[0]@0: why", "good  s[0]@3", "bad   s[0]@1: text, not", "bad   s[0]@2: decoder: nvImageCodec"):
        assert line in done.out
    assert "bad   s[0]@4: no label; the image itself is good" in done.out
    assert "the record itself was gone" in done.out
    assert "2 good now, 3 still bad" in done.out
    (tmp_path / "letters.jsonl").unlink()
    folder.writer().write([letter(0, payload=jpeg(0))])
    assert cli("dead-letters", "--check", tmp_path).code == 0


def test_letters_that_nobody_takes_or_has_are_told(cli: Cli, tmp_path: Path) -> None:
    """Nobody listens: one line, after the time that was given."""
    write_shard(tmp_path / "a.tar", [text()])
    nowhere = f"127.0.0.1:{free_ports(1)[0]}"
    assert_one_line(cli("dead-letters", f"kafka://{nowhere}/t", "--timeout", 0.5), nowhere)
    done = cli("verify", tmp_path / "a.tar", "--dead-letter", f"kafka://{nowhere}/t", "--timeout", 0.5)
    assert_one_line(done, nowhere, "must be acknowledged")


def test_remote_shards_by_their_address(
    cli: Cli, embedded: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command that takes a source reads shards from a server, with options that are sent and not shown."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SHARDS_TOKEN", "Bearer hunter2")
    monkeypatch.chdir(tmp_path)
    write_shard(tmp_path / "a.tar", [(jpeg(n), n) for n in range(3)])
    option = ("--storage-option", "client_options.default_headers.Authorization=env:SHARDS_TOKEN")
    topic = embedded.create(embedded.topic)
    with Web({"a.tar": (tmp_path / "a.tar").read_bytes()}) as web:
        for command, *more in (
            *(("verify",), ("inspect",), ("show", "--batch-size", 3), ("pack", "set"), ("pack", "mds", "--to", "mds")),
            *(
                ("pack", "parts", "--part", "a=1", "--part", "b=rest"),
                ("produce", f"kafka://{embedded.servers}/{topic}"),
            ),
        ):
            web.headers.clear()
            done = cli(command, f"{web.url}/a.tar", *more, *option)
            assert done.code == 0, done.err
            assert "hunter2" not in done.out + done.err
            assert {headers["authorization"] for headers in web.headers} == {"Bearer hunter2"}
