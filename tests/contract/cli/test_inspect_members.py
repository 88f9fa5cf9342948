"""What `inspect` says of members: a line each, and columns that can be pasted and run."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.broker.handle import Kafka
from kit.command import Cli, assert_one_line, cli
from kit.images import QUICK, cut_jpeg, encoded, jpeg
from kit.inside import Source, write_shard
from kit.member_shards import shards
from PIL import Image

from dali_feed import DataLoader, columns, formats
from dali_feed.external_sources import FileList, KafkaTopic, ShardSet
from dali_feed.testing import Message

__all__ = ["cli"]  # a fixture


def pasted(printed: str, source: Source) -> dict[str, Any]:
    """The first batch of a loader with the columns that were printed."""
    (line,) = re.findall(r"^  columns=(.*)$", printed, re.MULTILINE)
    named = eval(line, {name: getattr(columns, name) for name in columns.__all__})  # noqa: S307 - our own line
    with DataLoader(source, 4, columns=named, tuning=QUICK) as loader:
        batch: dict[str, Any] = next(iter(loader))
    assert list(batch) == list(named)
    return batch


def row(printed: str, member: str) -> str:
    """The line of a member, spaces as one."""
    (line,) = re.findall(rf"^\s*{re.escape(member)}  .*$", printed, re.MULTILINE)
    return " ".join(line.split())


def test_of_shards(cli: Cli, tmp_path: Path) -> None:
    """Share, size and kind by suffix; JSON is looked into; the columns make a batch."""
    source = shards(tmp_path, 8, {"3.txt": None})
    done = cli("inspect", *source.paths)
    assert row(done.out, "jpg").startswith("jpg 100%")
    assert row(done.out, "jpg").endswith("jpeg image")
    assert row(done.out, "txt") == "txt 88% 11 bytes text"
    assert row(done.out, "cls") == "cls 100% 1 bytes int, as text"
    assert row(done.out, "f32") == "f32 100% 24 bytes float32 (6,)"
    assert row(done.out, "json:list") == "json:list 100% - int64 (2,)"
    batch = pasted(done.out, ShardSet(source.paths, index_dir=tmp_path))
    assert list(batch) == ["image", "label", "f32", "n", "list", "text"]
    assert batch["label"].tolist() == batch["n"].tolist()


def test_of_a_topic(cli: Cli, embedded: Kafka) -> None:
    """Without --format value, key and headers; with it what it finds, and what does not parse is bad."""
    values = [
        json.dumps({"image": base64.b64encode(jpeg(n)).decode(), "body": {"x": [n, 0.5], "label": n}}).encode()
        for n in range(8)
    ]
    headed = (("from", b"gate"),)
    embedded.publish("members", [Message(value, key=b"k", headers=headed) for value in values], partitions=1)
    target = f"kafka://{embedded.servers}/members"
    done = cli("inspect", target)
    assert row(done.out, "value").endswith("json")
    assert row(done.out, "from") == "from 100% 4 bytes text"
    assert "inspect --format json looks into them" in done.out
    done = cli("inspect", "--format", "json", target)
    assert (done.code, done.err) == (0, "")
    assert "8 records: 8 good, 0 bad" in done.out
    assert row(done.out, "image").endswith("jpeg image, in base64")
    assert row(done.out, "body.x") == "body.x 100% - float32 (2,)"
    assert 'format=Json(base64=("image",))' in done.out
    source = KafkaTopic("members", embedded.servers, label=None, format=formats.Json(base64=("image",)))
    batch = pasted(done.out, source)
    assert batch["label"].tolist() == [0, 1, 2, 3]
    assert batch["from"] == ["gate"] * 4
    embedded.publish("broken", [Message(values[0]), Message(b"{no json")], partitions=1)
    done = cli("inspect", "--format", "json", f"kafka://{embedded.servers}/broken")
    assert (done.code, "broken[0]@1: json: " in done.out) == (0, True)


ODD: dict[str, Any] = {"a.b": 1, "n\nl": 2, "back\\slash": 3, "": 4, "x": {"y.z": [1, 2]}, "pairs": [[1, 2], [3, 4]]}


def test_odd_names_in_shards(cli: Cli, tmp_path: Path) -> None:
    """Whatever members are called, the columns are Python, their names are identifiers, and they make a batch."""
    members = {"jpg": jpeg(0), "left.jpg": jpeg(1), "seg.png": jpeg(3), 'q"t.txt': b"dog", "x;y.txt": b"none"}
    write_shard(tmp_path / "odd.tar", [{**members, "json": json.dumps(ODD).encode()} for _ in range(4)])
    done = cli("inspect", tmp_path / "odd.tar")
    assert (done.code, done.err) == (0, "")
    batch = pasted(done.out, ShardSet(tmp_path / "odd.tar", label=None, index_dir=tmp_path))
    assert all(name.isidentifier() for name in batch)
    assert {"image", "left", "seg", "q_t_txt", "json"} == set(batch), "what is crowded is given whole"
    few = {name: ODD[name] for name in ("a.b", "n\nl", "x")} | {"image": 7, "pairs": [[1, 2], [3, 4]]}
    write_shard(tmp_path / "few.tar", [{"jpg": jpeg(n), "json": json.dumps(few).encode()} for n in range(4)])
    batch = pasted(cli("inspect", tmp_path / "few.tar").out, ShardSet(tmp_path / "few.tar", index_dir=tmp_path))
    assert list(batch) == ["image", "a_b", "n_l", "y_z", "json_image", "pairs_0", "pairs_1"]
    assert (batch["n_l"].tolist(), batch["pairs_1"].tolist()[0]) == ([2] * 4, [3, 4])


def test_odd_names_in_a_topic(cli: Cli, embedded: Kafka) -> None:
    """A header, and a path, that are called as another member is; the image of a record of many members."""
    value = json.dumps({"image": base64.b64encode(jpeg(1)).decode(), "key": 5, "label": 3, **ODD}).encode()
    headed = (("image", b"no image"), ("a.b", b"7"))
    embedded.publish("odd", [Message(value, key=b"k", headers=headed)] * 4, partitions=1)
    done = cli("inspect", "--format", "json", f"kafka://{embedded.servers}/odd")
    assert 'format=Json(base64=("image",))' in done.out
    assert row(done.out, "value:key") == "value:key 100% - int"
    source = KafkaTopic("odd", embedded.servers, label=None, format=formats.Json(base64=("image",)))
    batch = pasted(done.out, source)
    assert (batch["headers_image"], batch["a_b"].tolist()) == (["no image"] * 4, [7] * 4)
    assert (batch["image"].shape, batch["label"].tolist()) == ((4, 3, 16, 16), [3] * 4)


def test_of_files(cli: Cli, tmp_path: Path) -> None:
    """Bytes, path and label."""
    for n in range(4):
        (tmp_path / f"class{n % 2}").mkdir(exist_ok=True)
        (tmp_path / f"class{n % 2}" / f"{n}.jpg").write_bytes(jpeg(n))
    done = cli("inspect", tmp_path)
    assert row(done.out, "label") == "label 100% - int"
    batch = pasted(done.out, FileList.from_folder(tmp_path))
    assert batch["label"].tolist() == [0, 0, 1, 1]


def test_a_format_is_for_topics(cli: Cli, tmp_path: Path) -> None:
    """And must be one."""
    done = cli("inspect", "--format", "json", *shards(tmp_path, 2).paths)
    assert (done.code, "--format: is only for the values of topics" in done.err) == (1, True)
    assert "format 'jsn': must be one of" in cli("inspect", "--format", "jsn", tmp_path / "*.tar").err


def words(printed: str) -> str:
    """Spaces as one."""
    return " ".join(printed.split())


def test_classes_are_counted(cli: Cli, tmp_path: Path) -> None:
    """The rarest, the most frequent and how far they are apart; and that it was a sample, where it was one."""
    labels = [0] * 6 + [1] * 3 + [2] * 2 + [3] * 1
    write_shard(tmp_path / "a.tar", [(jpeg(n), label) for n, label in enumerate(labels)])
    told = words(cli("inspect", tmp_path / "a.tar").out)
    assert "4 in all records, 3.0 records each; most frequent 0 (6), 1 (3), 2 (2); rarest 3 (1), 2 (2), 1 (3)" in told
    assert "the most frequent is 6.0 times the rarest; as balanced as 3.3 classes of equal size" in told
    assert "classes 3 in the sample of 5" in words(cli("inspect", tmp_path / "a.tar", "--sample", 5).out)


def test_sizes_are_bars(cli: Cli, tmp_path: Path) -> None:
    """Of bytes and of pixels, the longest bar for the most; nothing where all are one size."""
    sizes = [(16, 16)] * 5 + [(64, 64)] * 10
    write_shard(tmp_path / "a.tar", [(jpeg(3, *size), 1) for size in sizes])
    out = cli("inspect", tmp_path / "a.tar").out
    drawn = dict(re.findall(r"^ *([\d,]+ to [\d,]+) +(█*\S*) +\d+ *$", out, re.MULTILINE))
    assert (len(drawn["256 to 512"]), len(drawn["4,096 to 8,192"])) == (15, 30)
    write_shard(tmp_path / "b.tar", [(jpeg(3), 1)] * 4)
    assert "█" not in cli("inspect", tmp_path / "b.tar").out


def test_a_contact_sheet(cli: Cli, tmp_path: Path) -> None:
    """A PNG with the images of the sample, a frame with the reason for what is none."""
    red = encoded(np.full((40, 40, 3), (250, 10, 10), np.uint8))
    write_shard(tmp_path / "a.tar", [(red, 1), (b"<html>", 2), (cut_jpeg(), 3)], suffix="png")
    done = cli("inspect", tmp_path / "a.tar", "--sheet", tmp_path / "s.png")
    assert (done.code, done.err) == (0, "")
    assert "s.png: 3 records" in done.out
    with Image.open(tmp_path / "s.png") as sheet:
        assert sheet.format == "PNG"
        pixels = np.asarray(sheet)
    assert pixels[96, 96].tolist() == [250, 10, 10]
    inside = pixels[16:176, 188:348].reshape(-1, 3)
    assert (0xB4, 0x5F, 0x06) in {tuple(map(int, pixel)) for pixel in inside}
    below = pixels[176:210, 16:176]
    assert (below < 128).any()


@pytest.mark.parametrize("name", ["s.jpg", "no/s.png", "folder.png"])
def test_a_sheet_that_cannot_be_written_is_said_first(cli: Cli, tmp_path: Path, name: str) -> None:
    """Before anything is read, in one line, and nothing is left."""
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "set").mkdir()
    write_shard(tmp_path / "set/a.tar", [(jpeg(1), 1)])
    assert_one_line(cli("inspect", tmp_path / "set/a.tar", "--sheet", tmp_path / name), "--sheet: must be a")
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["a.tar", "folder.png", "set"]
