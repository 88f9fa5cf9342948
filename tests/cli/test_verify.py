"""dali-feed verify and dead-letters: a whole source looked at, and what was kept of it looked at again."""

from __future__ import annotations

import io
import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest
from broker.handle import Kafka
from broker.real import free_ports
from command import Cli, assert_one_line, cli
from images import bad_tables, broken_png, jpeg, labelled, text
from shelves import letter, opened
from web import Web

from dali_feed.cli.verify import runs, verify
from dali_feed.errors import DeadLetterError, SourceError
from dali_feed.external_sources import DeadLetterFolder, DeadLetterTopic, ShardSet
from dali_feed.records.tally import SHOWN, kind_of
from dali_feed.testing import Message
from dali_feed.testing.scripted import Abort, Corrupt, Gap, ScriptedSource, Stall
from dali_feed.testing.shards import write_shard

__all__ = ["cli"]

BAD: dict[int, Any] = {3: Corrupt(), 10: (broken_png(), 0), 40: Corrupt("label: 'x' is no number", jpeg(0)), 77: Gap()}


def _source(count: int = 200, **options: Any) -> ScriptedSource:
    items = labelled(count)
    for n, item in BAD.items():
        items[n] = item
    return ScriptedSource(items, partitions=3, **options)


@pytest.mark.parametrize("readers", [1, 4])
def test_every_position_is_looked_at_once(readers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads it: the counts add up, the first places stand in the source's order, letters are kept."""
    source = _source()
    snapshot = source.snapshot()
    monkeypatch.setattr("dali_feed.cli.verify.RUN_BYTES", snapshot.record_bytes * 7)
    assert len(list(runs(snapshot))) == 30
    held, done = opened(), list[int]()
    report = verify(source, snapshot, letters=held, readers=readers, advance=done.append)
    assert (report.records, report.absent, report.failed, sum(done)) == (197, 1, 2, 200)
    whole = sum(len(jpeg(n)) for n in range(200) if n not in BAD)
    assert report.size == whole + len(BAD[3].payload) + len(BAD[10][0]) + len(jpeg(0))
    assert {found.position: found.stage for found in held.letters} == {3: "screen", 40: "source"}
    decoded = verify(source, snapshot, decode=True, readers=readers)
    assert (decoded.records, decoded.failed) == (196, 3)
    assert [first for kind in decoded.failures.values() for first in kind.first if "decoder" in first] == [
        "scripted[0]@10: decoder: nvImageCodec cannot decode it"
    ]


def test_what_is_held_does_not_grow_with_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any number of bad records the report keeps a few places of each kind, the first ones."""
    monkeypatch.setattr("dali_feed.cli.verify.RUN_BYTES", 200)
    source = ScriptedSource([b"<html>%05d" % n if n % 2 else jpeg(0)[: 20 + n] for n in range(400)])
    report = verify(source, source.snapshot())
    assert report.failed == 400
    assert len(report.failures) < 12
    assert all(len(kind.first) <= SHOWN for kind in report.failures.values())
    texts = report.failures["text, not an image"]
    assert texts.count == 200
    assert [first.partition(":")[0] for first in texts.first] == [f"scripted[0]@{n}" for n in (1, 3, 5)]


def test_reasons_of_a_kind_fall_together() -> None:
    """Numbers and quoted bytes differ from record to record, the kind does not."""
    for a, b in (
        (
            "JPEG cut off: segment c4 at byte 21 ends at 33",
            "JPEG cut off: segment d8 at byte 1 ends at 2",
        ),
        ('text, not an image (starts with "<html>40")', 'text, not an image (starts with "(a) ")'),
        (
            "header label: a number is needed; found b'x'",
            'header label: a number is needed; found b"\'"',
        ),
        ("unknown format (starts with de ad be ef)", "unknown format (starts with 00 ff aa bb)"),
    ):
        assert kind_of(a) == kind_of(b) != a
    assert kind_of("empty payload") == "empty payload"


def test_a_source_that_fails_ends_it() -> None:
    """What one thread's read raises is raised, and reads that wait elsewhere end."""
    items: list[Any] = [*labelled(8), Abort(), *labelled(7), Stall(threading.Event())]
    source = ScriptedSource(items, partitions=2)
    snapshot = ScriptedSource(labelled(17), partitions=2).snapshot()
    with pytest.raises(SourceError, match="scripted"):
        verify(source, snapshot, readers=2)
    with pytest.raises(DeadLetterError, match="shelf is full"):
        verify(_source(), _source().snapshot(), letters=opened(fails=1))


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


def test_a_record_without_a_payload_is_bad_and_not_absent(tmp_path: Path) -> None:
    """A sample of a shard that has a label and no image counts, and its letter has no bytes."""
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name, held in (("0.jpg", jpeg(0)), ("0.cls", b"1"), ("1.cls", b"2"), ("2.jpg", jpeg(2)), ("2.cls", b"3")):
            member = tarfile.TarInfo(name)
            member.size = len(held)
            tar.addfile(member, io.BytesIO(held))
    source, held_letters = ShardSet(str(tmp_path / "a.tar")), opened()
    report = verify(source, source.snapshot(), letters=held_letters)
    assert (report.records, report.absent, report.failed) == (2, 0, 1)
    (found,) = held_letters.letters
    assert (found.stage, found.reason, found.payload) == ("source", "the sample has no image member", b"")


def test_verify_a_topic(cli: Cli, kafka: Kafka) -> None:
    """A topic with labels: a record without one is bad too; letters go to a topic with key and headers kept."""
    records = [Message(jpeg(n), headers=(("label", b"%d" % n),), partition=n % 2) for n in range(20)]
    records += [Message(jpeg(0), b"k", (("by", b"cam"),), 0), Message(None, b"t", (), 1)]
    kafka.publish(kafka.topic, records, partitions=2)
    dead = kafka.create(f"{kafka.topic}.dead")
    done = cli("verify", f"kafka://{kafka.servers}/{kafka.topic}", "--dead-letter", f"kafka://{kafka.servers}/{dead}")
    assert done.code == 1, done.err
    assert "20, by their headers" in done.out
    assert f"{kafka.topic}[0]@10: header label: a decimal number is needed; the record has no such" in done.out
    assert f"{kafka.topic}[1]@10: a record must hold an image; this one is a tombstone" in done.out
    letters = list(DeadLetterTopic(dead, kafka.servers).read())
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
    option = ("--storage-option", "headers.Authorization=env:SHARDS_TOKEN")
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
            assert {headers["Authorization"] for headers in web.headers} == {"Bearer hunter2"}
