"""Verify: each position once, whoever reads it; memory that does not grow; errors as they are; no images too."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kit.images import broken_png, jpeg, labelled
from kit.record_files import tfrecord
from kit.shelves import opened
from kit.written import example_bytes

from dali_feed.bad_records import SHOWN
from dali_feed.cli.inspect import inspect_all
from dali_feed.cli.targets import Access
from dali_feed.cli.verify import runs, verify, verify_all
from dali_feed.errors import ConfigError, DeadLetterError, SourceError
from dali_feed.external_sources import ShardSet
from dali_feed.packing.sinks import write_shard
from dali_feed.testing.scripted import Abort, Corrupt, Gap, ScriptedSource, Stall

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


def test_a_source_that_fails_ends_it() -> None:
    """What one thread's read raises is raised, and reads that wait elsewhere end."""
    items: list[Any] = [*labelled(8), Abort(), *labelled(7), Stall(threading.Event())]
    source = ScriptedSource(items, partitions=2)
    snapshot = ScriptedSource(labelled(17), partitions=2).snapshot()
    with pytest.raises(SourceError, match="scripted"):
        verify(source, snapshot, readers=2)
    with pytest.raises(DeadLetterError, match="shelf is full"):
        verify(_source(), _source().snapshot(), letters=opened(fails=1))


def test_a_record_without_a_payload_is_bad_and_not_absent(tmp_path: Path) -> None:
    """A sample of a shard that has a label and no image counts, and its letter has no bytes."""
    write_shard(tmp_path / "a.tar", [{"jpg": jpeg(0), "cls": b"1"}, {"cls": b"2"}, {"jpg": jpeg(2), "cls": b"3"}])
    source, held_letters = ShardSet(str(tmp_path / "a.tar")), opened()
    report = verify(source, source.snapshot(), letters=held_letters)
    assert (report.records, report.absent, report.failed) == (2, 0, 1)
    (found,) = held_letters.letters
    assert (found.stage, found.reason, found.payload) == ("source", "the sample has no image member", b"")


def written(folder: Path, kind: str) -> str:
    """A file of nine rows."""
    path = folder / f"a.{kind}"
    if kind == "npy":
        np.save(path, np.ones((9, 2)))
        return str(path)
    rows = pa.table({"x": [[n, n + 0.5] for n in range(9)], "text": [None] + ["abcd"] * 8})
    if kind == "parquet":
        pq.write_table(rows, path)
    else:
        with pa.ipc.new_file(path, rows.schema) as writer:
            writer.write_table(rows)
    return str(path)


@pytest.mark.parametrize("kind", ["npy", "arrow", "feather", "parquet"])
def test_members_are_listed_and_records_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    """A member has its share of the records and its mean size; no record is bad for want of an image."""
    path = written(tmp_path, kind)
    assert inspect_all([path], Access(), sample=9) == (0, 0)
    told = [line.strip() for line in capsys.readouterr().out.splitlines()]
    member = next(line for line in told if line.startswith("row" if kind == "npy" else "x "))
    assert "100%" in member
    assert "16 bytes" in member
    assert kind == "npy" or any(line.startswith("text") and "89%" in line and "4 bytes" in line for line in told)
    assert verify_all([path], Access(), readers=1) == 0
    assert "9, read" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="--decode is for images; found none"):
        verify_all([path], Access(), decode=True)


def test_faults_of_records_without_images_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of TFRecords whose features are numbers and texts: a record whose CRC is wrong is bad, and named."""
    data = bytearray(tfrecord([example_bytes({"text": b"abcd", "n": n}) for n in range(3)]))
    data[len(data) // 2] ^= 32
    path = tmp_path / "a.tfrecord"
    path.write_bytes(data)
    assert inspect_all([str(path)], Access(), sample=3) == (1, 0)
    assert "a.tfrecord#1: the record's CRC is wrong" in capsys.readouterr().out
    assert verify_all([str(path)], Access(), readers=1) == 1
    assert "2, read" in capsys.readouterr().out
