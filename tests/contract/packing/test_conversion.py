"""Conversion to TFRecord and MDS: read back the same, the same bytes each time, whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kit import blocks
from kit.images import jpeg, png
from kit.inside import write_shard
from kit.member_shards import shards

from dali_feed.errors import ConfigError, SourceError
from dali_feed.external_sources import MDS, ShardSet, TFRecords
from dali_feed.packing import pack


def rows(source: Any, *members: str) -> list[tuple[Any, ...]]:
    """All records: the members in this order; views as bytes."""
    found = blocks.rows(source, *members)
    assert not any("fault" in row for row in found)
    return [tuple(row[name] for name in members) for row in found]


def held(folder: Path) -> dict[str, bytes]:
    """The files of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


WANTED = sorted((jpeg(n % 16), n, f"sample {n} é".encode()) for n in range(24))


def test_tar_to_tfrecord_and_back(tmp_path: Path) -> None:
    """Images and texts are the same bytes, labels the same numbers; twice gives the same files."""
    source = shards(tmp_path)
    done = pack(source, tmp_path / "tf", to="tfrecord", shard_bytes=30_000)
    assert (done.total, done.tally.records, done.tally.failed) == (24, 24, 0)
    files = sorted(held(tmp_path / "tf"))
    assert len(files) == done.shards > 1
    assert files[0] == f"tf-00000-of-{done.shards:05d}.tfrecord"
    found = TFRecords(str(tmp_path / "tf" / "*.tfrecord"), index_dir=tmp_path)
    assert sorted(rows(found, "image/encoded", "image/class/label", "txt")) == WANTED
    assert list(found.preset) == ["image", "label"]
    (tmp_path / "2").mkdir()
    pack(source, tmp_path / "2" / "tf", to="tfrecord", shard_bytes=30_000)
    assert held(tmp_path / "2" / "tf") == held(tmp_path / "tf")


def test_tar_to_mds_and_back(tmp_path: Path) -> None:
    """The same; index.json has the columns of all shards and their hashes, which fit."""
    source = shards(tmp_path)
    done = pack(source, tmp_path / "mds", to="mds", shard_bytes=30_000)
    told = json.loads((tmp_path / "mds" / "index.json").read_text())
    assert len(told["shards"]) == done.shards > 1
    first = told["shards"][0]
    encodings = dict(zip(first["column_names"], first["column_encodings"], strict=True))
    assert encodings == {"label": "int", "image": "jpeg", "f32": "bytes", "json": "bytes", "txt": "str"}
    found = MDS(tmp_path / "mds")
    assert sorted(rows(found, "image", "label", "txt")) == WANTED
    (tmp_path / "2").mkdir()
    pack(source, tmp_path / "2" / "mds", to="mds", shard_bytes=30_000)
    assert held(tmp_path / "2" / "mds") == held(tmp_path / "mds")


def test_back_to_tar(tmp_path: Path) -> None:
    """From MDS to a set of tar shards: images and labels as they were."""
    pack(shards(tmp_path), tmp_path / "mds", to="mds")
    pack(MDS(tmp_path / "mds"), tmp_path / "t" / "x.dfset", to="tar", members={"jpg": "image", "cls": "label"})
    found = rows(ShardSet(str(tmp_path / "t" / "*.tar")), "jpg", "cls")
    assert sorted((image, int(label)) for image, label in found) == [row[:2] for row in WANTED]


def test_images_of_several_kinds_are_a_column_of_bytes(tmp_path: Path) -> None:
    """Mosaic's reader would take a PNG in a column of JPEGs for one; names that were given are kept."""
    write_shard(tmp_path / "a.tar", [{"img": jpeg(1), "cls": b"1"}, {"img": png(2), "cls": b"-2"}])
    source = ShardSet(str(tmp_path / "a.tar"), image=("img",))
    pack(source, tmp_path / "m", to="mds", members={"image": "img", "y": "cls"})
    assert rows(MDS(tmp_path / "m", label="y"), "image", "y") == [(jpeg(1), 1), (png(2), -2)]
    first = json.loads((tmp_path / "m" / "index.json").read_text())["shards"][0]
    assert first["column_encodings"] == ["bytes", "int"]


def test_what_cannot_be_written_is_counted(tmp_path: Path) -> None:
    """A label that is no number, a sample that lacks a column: named with their place, and the others are written."""
    samples = [{"jpg": jpeg(n), "cls": b"1"} for n in range(3)]
    write_shard(tmp_path / "a.tar", [*samples, {"jpg": jpeg(3), "cls": b"cat"}, {"jpg": jpeg(4)}])
    source = ShardSet(str(tmp_path / "a.tar"), label=None)
    done = pack(source, tmp_path / "m", to="mds")
    places = [place for failure in done.tally.failures.values() for place in failure.first]
    names = json.loads((tmp_path / "m" / "index.json").read_text())["shards"][0]["column_names"]
    assert done.tally.records == 3
    assert places == [
        "a.tar#3: member 'cls': must be a whole number; found b'cat'",
        f"a.tar#4: all samples of an MDS set have the same columns, {', '.join(names)}; 'label' is missing",
    ]


def test_a_folder_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    """One that is there is left alone; where reading fails nothing is left."""
    source = shards(tmp_path, 4)
    (tmp_path / "there").mkdir()
    with pytest.raises(ConfigError, match="a conversion makes a new folder"):
        pack(source, tmp_path / "there", to="mds")
    write_shard(tmp_path / "b.tar", [{"jpg": jpeg(0), "cls": b"cat"}])
    bad = ShardSet(str(tmp_path / "b.tar"), label=None, index_dir=tmp_path)
    bad.snapshot()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(SourceError, match="none could be written"):
        pack(bad, tmp_path / "out", to="mds")
    with pytest.raises(ConfigError, match="to: must be one of tar, tfrecord, mds; found 'lmdb'"):
        pack(source, tmp_path / "out", to="lmdb")
    assert sorted(tmp_path.iterdir()) == before
