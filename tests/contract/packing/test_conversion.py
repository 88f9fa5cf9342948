"""Conversion to TFRecord and MDS: read back the same, the same bytes each time, whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import blocks
from kit.broker.handle import Kafka
from kit.images import QUICK, jpeg, png
from kit.inside import Extents, Feed, write_shard
from kit.member_shards import shards
from kit.resumes import assert_resumes_in_turn
from torchvision.transforms import v2

from dali_feed import Shuffle
from dali_feed.errors import ConfigError, SourceError
from dali_feed.external_sources import MDS, KafkaTopic, ShardSet, TFRecords
from dali_feed.packing import pack
from dali_feed.testing import Message


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


CROP = v2.RandomResizedCrop(16)
PARTITIONS = 3


@pytest.fixture
def topic(embedded: Kafka) -> KafkaTopic:
    """30 labelled images in three partitions of ten, with two that no decoder takes, a key here and a header there."""
    records = [
        Message(
            b"no image" if n in (7, 20) else jpeg(n % 16),
            key=b"key %d" % n if n % 2 else None,
            headers=(("label", b"%d" % n), *((("rare", b"!"),) if n == 11 else ())),
            partition=n % PARTITIONS,
        )
        for n in range(30)
    ]
    embedded.publish(embedded.topic, records, PARTITIONS)
    return KafkaTopic(embedded.topic, embedded.servers)


def opened(folder: Path) -> ShardSet:
    """The set in a folder."""
    return ShardSet(folder / f"{folder.name}.dfset")


def dealt(source: Any, state: dict[str, Any] | None = None, stop: int = 99) -> tuple[list[Any], dict[str, Any]]:
    """Ids, labels, ok and pixels of an epoch's batches, from a state on; and the state after `stop` of them."""
    with Feed(source, 4, shuffle=Shuffle(2, 3), transform=CROP, seed=3, lanes=2, tuning=QUICK) as feed:
        if state is not None:
            feed.load_state_dict(state)
        found = []
        for _, batch in zip(range(stop), feed, strict=False):
            pixels = np.array(np.from_dlpack(batch))
            found.append((batch.ids.tolist(), batch.fields["label"].tolist(), batch.ok.tolist(), pixels))
        return found, feed.state_dict()


def same(a: list[Any], b: list[Any]) -> bool:
    """Whether two runs gave the same."""
    return len(a) == len(b) and all(x[:3] == y[:3] and np.array_equal(x[3], y[3]) for x, y in zip(a, b, strict=True))


def test_a_replay_from_shards_is_the_topic_and_its_states_go_on_there(topic: KafkaTopic, tmp_path: Path) -> None:
    """Ids, labels, ok and pixels of every batch are equal; a state of the topic's run goes on from shards, and back."""
    done = pack(topic, tmp_path / "set", shard_bytes=6000)
    assert done.tally.records == 30
    assert done.shards > PARTITIONS
    shards = opened(tmp_path / "set")
    whole, _ = dealt(topic)
    assert same(dealt(shards)[0], whole)
    for first, then in ((topic, shards), (shards, topic)):
        begun, state = dealt(first, stop=3)
        assert same([*begun, *dealt(then, state)[0]], whole)


def test_keys_are_offsets_and_all_that_a_record_has_is_kept(topic: KafkaTopic, tmp_path: Path) -> None:
    """Key, timestamp and each header as members, also one that hardly any record has."""
    pack(topic, tmp_path / "set", shard_bytes=10_000_000)
    shards = opened(tmp_path / "set")
    found = blocks.rows(shards, "key", "cls", "rare", "timestamp.txt", extents=Extents.one(2, 0, 10))
    assert [row["cls"] for row in found] == [b"%d" % n for n in range(2, 30, 3)]
    assert [row["rare"] for row in found] == [None] * 3 + [b"!"] + [None] * 6
    assert found[1]["key"] == b"key 5"
    assert int(found[0]["timestamp.txt"]) > 1_600_000_000_000
    assert shards.where(1, 4).endswith("[1]@4 (set-000001.tar#4)")
    whole = (tmp_path / "set" / "set-000001.tar").read_bytes()
    assert b"p00001-0000000000004.jpg" in whole


def test_a_set_of_a_topic_resumes_anywhere(topic: KafkaTopic, tmp_path: Path) -> None:
    """The contract of sources holds, where a record could not be packed too: its offset is absent."""
    pack(topic, tmp_path / "set", shard_bytes=6000, resize=8)
    source = opened(tmp_path / "set")
    found = blocks.rows(source, extents=Extents.one(1, 0, 10))
    assert [k for k, row in enumerate(found) if not row] == [2]
    assert [int(row["label"]) for row in found if row] == [1, 4, *range(10, 30, 3)]
    assert_resumes_in_turn(source, transform=CROP)
