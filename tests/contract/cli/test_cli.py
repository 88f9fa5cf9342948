"""The command line: what people read, and how it ends."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kit.broker.handle import Kafka
from kit.command import Cli, assert_one_line, cli
from kit.inside import write_shard
from PIL import Image

from dali_feed.testing import Message

__all__ = ["cli"]  # a fixture


def jpeg(width: int = 40, height: int = 30) -> bytes:
    """A small picture."""
    file = io.BytesIO()
    Image.new("RGB", (width, height), (200, 90, 40)).save(file, "JPEG")
    return file.getvalue()


@pytest.fixture
def shards(tmp_path: Path) -> str:
    """A pattern: two shards of five records, two of them bad."""
    write_shard(tmp_path / "train-0.tar", [(jpeg(), 3), (b"<html>404</html>", 1), (jpeg(64, 48), 9)])
    write_shard(tmp_path / "train-1.tar", [(jpeg(), 0), (jpeg()[:-40], 4)])
    return str(tmp_path / "train-*.tar")


def test_inspect_shards(cli: Cli, shards: str) -> None:
    """Tar shards: records, partitions, label range, formats, sizes, and each bad record with its place and reason."""
    done = cli("inspect", shards)
    assert done.code == 0
    assert "5 in 2 partitions" in done.out
    assert "3 good, 2 bad, 0 absent" in done.out
    assert "label: in 5 of 5, 0..9" in done.out
    assert "jpeg (3)" in done.out
    assert "40x30 (2), 64x48 (1)" in done.out
    assert 'train-0.tar#1: text, not an image (starts with "<html>40")' in done.out
    assert "train-1.tar#1: JPEG cut off" in done.out


def test_bad_records_change_the_exit_code_only_when_asked(cli: Cli, shards: str) -> None:
    """--strict makes bad records in the sample an exit code of 1; without it only a source without a good one does."""
    assert cli("inspect", shards).code == 0
    assert cli("inspect", "--strict", shards).code == 1
    assert cli("inspect", "--strict", shards.replace("*", "0"), "--sample", 1).code == 0


@pytest.mark.parametrize("name", ["cls", "json"])
def test_inspect_tells_text_labels_from_none(cli: Cli, tmp_path: Path, name: str) -> None:
    """Labels that are text are shown as such, with the cure; no record is good with them, so it exits with 1."""
    texts = {"cls": b"cat", "json": b'{"label": "cat"}'}
    write_shard(tmp_path / "a.tar", [{"jpg": jpeg(), name: texts[name]}] * 4)
    done = cli("inspect", tmp_path / "a.tar")
    assert done.code == 1
    assert "0 good, 4 bad" in done.out
    assert "no label" not in done.out
    words = " ".join(done.out.split())
    assert "label: found, but not as an integer in any record of the sample: column 'label' of member" in words
    assert "number is needed; found 'cat'" in words
    assert "ShardSet(..., label=None)" in words
    write_shard(tmp_path / "a.tar", [jpeg()] * 4)
    done = cli("inspect", tmp_path / "a.tar")
    assert done.code == 0
    assert "no label: neither a .cls member nor a .json" in done.out


def test_one_source_without_a_good_record_is_enough_to_fail(cli: Cli, tmp_path: Path) -> None:
    """Of two targets the second is all bad: inspect exits with 1, as a run over it would end."""
    for name, held in (("good", jpeg()), ("bad", b"<html>")):
        (tmp_path / name).mkdir()
        for k in range(3):
            (tmp_path / name / f"{k}.jpg").write_bytes(held)
    assert cli("inspect", tmp_path / "good").code == 0
    assert cli("inspect", tmp_path / "good", tmp_path / "bad").code == 1


def test_inspect_folders(cli: Cli, tmp_path: Path) -> None:
    """A folder per class is read as training reads it; a flat one has no labels and says so."""
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.jpg").write_bytes(jpeg())
    (tmp_path / "dog" / "1.jpg").write_bytes(b"hello")
    done = cli("inspect", tmp_path, tmp_path / "cat")
    assert "3 in 1 partition" in done.out
    assert "2 classes: cat, dog" in done.out
    assert f"{tmp_path}/dog/1.jpg: text, not an image" in done.out
    assert "no label: the images lie in one folder" in done.out


def test_inspect_names_the_engine_of_what_not_all_take(cli: Cli, tmp_path: Path) -> None:
    """A GIF is a good image with its size, in a folder or named alone, and the report says which engine decodes it."""
    Image.new("P", (70, 50)).save(tmp_path / "0.gif")
    (tmp_path / "1.jpg").write_bytes(jpeg())
    done = cli("inspect", tmp_path, tmp_path / "*.gif")
    assert "2 good, 0 bad, 0 absent" in done.out
    assert "1 good, 0 bad, 0 absent" in done.out
    assert "jpeg (1)" in done.out
    assert done.out.count("gif (1)") == 2
    assert done.out.count("70x50 (1)") == 2


def test_inspect_counts_what_is_not_upright(cli: Cli, tmp_path: Path) -> None:
    """With the argument that turns it; where all is upright nothing is said of it."""
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0112] = 6
    Image.new("RGB", (40, 30)).save(file, "JPEG", exif=exif)
    write_shard(tmp_path / "a.tar", [(jpeg(), 3), (file.getvalue(), 1), (file.getvalue(), 1)])
    write_shard(tmp_path / "b.tar", [(jpeg(), 3)])
    told = " ".join(cli("inspect", tmp_path / "a.tar").out.split())
    assert "2 of 3 have an EXIF orientation and are not upright as stored; Decode(exif=True) turns them" in told
    assert "EXIF" not in cli("inspect", tmp_path / "b.tar").out


def test_inspect_topic(cli: Cli, embedded: Kafka) -> None:
    """A topic: records over its partitions, headers, label range, tombstones and records without a label."""
    records = [(jpeg(), n) for n in range(40)]
    odd: list[tuple[bytes, int] | Message] = [
        (b"oops", 1),
        Message(None),
        Message(jpeg()),
        Message(jpeg(), headers=(("label", b"x"), ("when", b"now"))),
    ]
    embedded.publish(embedded.topic, [*records, *odd], partitions=4)
    done = cli("inspect", f"kafka://{embedded.servers}/{embedded.topic}")
    assert done.code == 0, done.err
    assert "44 in 4 partitions" in done.out
    assert "40 good, 4 bad, 0 absent" in done.out
    assert "label: in 42 of 44, 0..39" in done.out
    assert "when: in 1 of 44, no numbers" in done.out
    assert f"{embedded.topic}[0]@10: text, not an image" in done.out
    assert f"{embedded.topic}[1]@10: a record must hold an image; this one is a tombstone" in done.out
    label = "column 'label' of member 'headers.label'"
    assert f"{embedded.topic}[2]@10: {label}: the record has no" in done.out
    assert f"{embedded.topic}[3]@10: {label}: a decimal number is needed; found 'x'" in done.out


def test_a_topic_without_labels_is_not_bad(cli: Cli, embedded: Kafka) -> None:
    """Where no record has a label the topic is one without labels, and the report says how to read it."""
    embedded.publish(embedded.topic, [(jpeg(), None)] * 3, partitions=1)
    done = cli("inspect", f"kafka://{embedded.servers}/{embedded.topic}")
    assert "3 good, 0 bad" in done.out
    assert "label=None" in done.out


@pytest.mark.parametrize("values", [[b"", jpeg()], [b""], [None, b""]], ids=["and an image", "alone", "tombstone"])
def test_a_topic_that_begins_with_an_empty_value(cli: Cli, kafka: Kafka, values: list[bytes | None]) -> None:
    """Its records without bytes are bad records like others, to inspect and to verify."""
    kafka.publish(kafka.topic, [Message(value, headers=(("label", b"1"),)) for value in values], partitions=1)
    bad = len(values) - values.count(jpeg())
    done = cli("inspect", f"kafka://{kafka.servers}/{kafka.topic}")
    assert f"{len(values) - bad} good, {bad} bad, 0 absent" in done.out
    done = cli("verify", f"kafka://{kafka.servers}/{kafka.topic}")
    assert (done.code, done.err) == (1, "")
    assert f"{len(values):,} of {len(values):,} positions" in done.out


def test_long_lists_are_cut(cli: Cli, tmp_path: Path) -> None:
    """More than 20 partitions, or bad records, are counted and not listed."""
    for n in range(23):
        write_shard(tmp_path / f"{n:02d}.tar", [b"no image"])
    done = cli("inspect", tmp_path / "*.tar")
    assert done.out.count("... and 3 more") == 2
    assert "19.tar#0" in done.out
    assert "20.tar" not in done.out


def test_a_topic_that_is_none_is_answered_with_one_that_is(cli: Cli, embedded: Kafka) -> None:
    """Of a name that is nearly right."""
    embedded.publish("near-miss", [(jpeg(), 1)], partitions=1)
    assert_one_line(cli("inspect", f"kafka://{embedded.servers}/near-mis"), "did you mean near-miss?")


def test_a_terminal_obeys_no_name_and_no_reason(cli: Cli, tmp_path: Path) -> None:
    """What a file's name or a reason holds for it is blank: in what is printed, and in an error."""
    (tmp_path / "a\x1b[2J\x07.jpg").write_bytes(jpeg())
    (tmp_path / "b\x1b]0;x\n.jpg").write_bytes(b"none")
    for command in ("inspect", "verify"):
        done = cli(command, tmp_path)
        assert "b ]0;x" in done.out
        assert not re.search(r"[\x00-\x09\x0b-\x1f]", done.out)
    cli("verify", tmp_path, "--dead-letter", tmp_path / "dead")
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", cli("dead-letters", tmp_path / "dead").out)
    (tmp_path / "no\x1b[2Jfolder").mkdir()
    assert_one_line(cli("inspect", tmp_path / "no\x1b[2Jfolder"), "no [2Jfolder: a folder must hold images")


def test_missing_packages_are_named(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo says which packages are missing and how to get them, before it starts."""
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert_one_line(cli("demo"), "scikit-learn", "pip install 'dali-feed[demo]'")


def test_help_is_light() -> None:
    """--help loads nothing that a command needs."""
    heavy = ["confluent_kafka", "matplotlib", "numpy", "nvidia", "torch"]
    code = (
        "import json, sys\nfrom dali_feed.cli import main\n"
        f"try: main(['demo', '--help'])\nfinally: print(json.dumps([n for n in {heavy} if n in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == []
    assert "--epochs" in done.stdout


@pytest.mark.slow
@pytest.mark.whole_machine
@pytest.mark.usefixtures("warm_children")
def test_the_demo_resumes(cli: Cli) -> None:
    """It learns, is killed and resumed without a difference, and its bad records are told."""
    done = cli("demo", "--device", "cpu", "--epochs", 2)
    assert "resumed: identical (23 batches, ids and pixels of " in done.out, done.err + done.out
    assert "2 bad records replaced: digits[1]@17: JPEG cut off" in done.out
    assert "digits[3]@51: text, not an image" in done.out
    assert "who waits: " in done.out
    assert done.code == 0
