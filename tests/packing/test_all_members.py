"""All that a record has is packed, or it is said what is not; and a set's tar files alone give its samples back."""

from __future__ import annotations

import datetime as dt
import io
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from kit.images import jpeg
from kit.written import example_bytes

from dali_feed.errors import ConfigError
from dali_feed.external_sources import FileList, ShardSet, Table, TFRecords
from dali_feed.packing import index, pack
from dali_feed.packing.sinks import tfrecord_bytes
from dali_feed.storage.manifest import Manifest, Shard, manifest_bytes
from dali_feed.storage.sets import SetStore


def named(path: Path) -> list[str]:
    """The files of a tar."""
    with tarfile.open(path) as tar:
        return tar.getnames()


@pytest.mark.parametrize("mapped", [True, False])
def test_columns_that_are_no_members_are_named(tmp_path: Path, mapped: bool) -> None:
    """A set without them is written where members= says so; one of nulls holds nothing, and is left out."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for name, column in {
        "captions": pa.array([["a dog", "two"]] * 4),
        "taken": pa.array([dt.datetime(2020, 1, 1)] * 4),  # noqa: DTZ001  as tables have them
        "price": pa.array([1] * 4).cast(pa.decimal128(30, 2)),
        "code": pa.array([b"abcd"] * 4, pa.binary(4)),
        "about.objects": pa.array([[{"id": 1}]] * 4),
    }.items():
        outer, _, inner = name.partition(".")
        if inner:
            column = pa.StructArray.from_arrays([pa.array(range(4)), column], ["id", inner])  # noqa: PLW2901
        table = pa.table({"image": [jpeg(0)] * 4, "label": range(4), "empty": pa.nulls(4), outer: column})
        pq.write_table(table, tmp_path / "t.parquet")
        source = Table(tmp_path / "t.parquet") if mapped else Table(table)
        what = f"found column '{name}' of .*, which cannot be; name the members to pack by members="
        with pytest.raises(ConfigError, match=f"all that a record has is packed unless members= says .*; {what}"):
            pack(source, tmp_path / "set")
        assert not list((tmp_path / "set").glob("*"))
        out = tmp_path / outer
        assert pack(source, out, members=["image", "label"]).tally.records == 4
        assert named(out / f"{outer}-000000.tar")[:2] == ["000000000.jpg", "000000000.cls"]


def test_a_column_with_a_dot_is_no_part_of_another(tmp_path: Path) -> None:
    """`image.width` beside `image` is packed; parts of a struct of bytes and path come with it."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"image": [jpeg(0)] * 2, "image.width": [8, 9]}), tmp_path / "t.parquet")
    pack(Table(tmp_path / "t.parquet"), tmp_path / "set.dfset")
    assert named(tmp_path / "set-000000.tar")[:2] == ["000000000.jpg", "000000000.image.width.txt"]
    pq.write_table(pa.table({"image": [{"bytes": jpeg(0), "path": "a.jpg"}] * 2}), tmp_path / "s.parquet")
    pack(Table(tmp_path / "s.parquet"), tmp_path / "struct.dfset")
    assert named(tmp_path / "struct-000000.tar") == ["000000000.jpg", "000000001.jpg"]


def test_features_that_few_records_have(tmp_path: Path) -> None:
    """All are written, those too that none of the 64 records has which are looked at first, and in each format."""
    rows: list[dict[str, Any]] = [{"image": jpeg(k % 4), "label": k} for k in range(300)]
    for row in rows[101:104]:
        row["image.box"] = [1.0, 2.0]
    with (tmp_path / "a.tfrecord").open("wb") as file:
        file.writelines(tfrecord_bytes(example_bytes(row)) for row in rows)
    source = TFRecords(str(tmp_path / "a.tfrecord"))
    assert [member.name for member in source.members()] == ["image", "label"]
    assert pack(source, tmp_path / "set.dfset").tally.failed == 0
    boxes = [name for name in named(tmp_path / "set-000000.tar") if not name.endswith((".jpg", ".cls"))]
    assert boxes == [f"{k:09d}.image.box.npy" for k in range(101, 104)]
    assert named(tmp_path / "set-000000.tar")[:2] == ["000000000.jpg", "000000000.cls"]
    done = pack(source, tmp_path / "mds", to="mds")
    assert (done.tally.records, done.tally.failed) == (297, 3)
    assert "'image.box' is one more" in next(iter(done.tally.failures.values())).first[0]


def tar_of(path: Path, *suffixes: str) -> ShardSet:
    """Two samples with these files."""
    with tarfile.open(path, "w") as tar:
        for k in range(2):
            for suffix in suffixes:
                info = tarfile.TarInfo(f"s{k}.{suffix}")
                info.size = 4
                tar.addfile(info, io.BytesIO(b"abcd"))
    return ShardSet(str(path), label=None)


def test_suffixes_of_any_letters(tmp_path: Path) -> None:
    """ASCII letters of either case are the same, as indexes have it; a set's index is that of its tar file."""
    source = tar_of(tmp_path / "a.tar", "jpg", "ÜBER", "Été.TXT")
    assert pack(source, tmp_path / "set.dfset").tally.records == 2
    assert index(tmp_path / "set.dfset") == 1
    for name in ("Über", "ÜBER", "Été.txt"):
        assert source.can_have(name)
    assert not source.can_have("über")
    assert ShardSet(tmp_path / "set.dfset").members() == source.members()


def test_files_that_no_column_can_name(tmp_path: Path) -> None:
    """They are not left out in silence; nor is a suffix with a slash written, of which no reader finds the sample."""
    source = tar_of(tmp_path / "a.tar", "jpg", "a:b")
    with pytest.raises(ConfigError, match=r"found a file \.a:b, which no column can name, .* by members="):
        pack(source, tmp_path / "set.dfset")
    assert pack(source, tmp_path / "set.dfset", members=["jpg"]).tally.records == 2
    with pytest.raises(ConfigError, match="members: a suffix must be .*, without a slash; found 'img/x'; give another"):
        pack(source, tmp_path / "b.dfset", members={"img/x": "jpg"})


def test_folders_that_readers_of_tar_files_skip(tmp_path: Path) -> None:
    """WebDataset's `__name__` is none of a sample: below such a folder samples are numbered."""
    for folder in ("__a__", "b"):
        (tmp_path / "in" / folder).mkdir(parents=True)
        (tmp_path / "in" / folder / "0.jpg").write_bytes(jpeg(0))
    source = FileList.from_folder(str(tmp_path / "in"))
    done = pack(source, tmp_path / "set.dfset")
    shutil.copy(tmp_path / "set-000000.tar", tmp_path / "plain.tar")
    assert ShardSet(str(tmp_path / "plain.tar")).snapshot().positions == done.tally.records == 2
    with pytest.raises(ConfigError, match='keys="own": records of .* have no names'):
        pack(source, tmp_path / "own.dfset", keys="own")
    for name in ("__a__", "b"):
        shutil.copy(tmp_path / "plain.tar", tmp_path / f"{name}.tar")
    pack(ShardSet([str(tmp_path / "__a__.tar"), str(tmp_path / "b.tar")]), tmp_path / "both.dfset")
    shutil.copy(tmp_path / "both-000000.tar", tmp_path / "plain.tar")
    assert ShardSet(str(tmp_path / "plain.tar")).snapshot().positions == 4


def test_no_file_of_a_tar_leaves_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths that go up are no names of samples: who unpacks the tar would write there."""
    (tmp_path / "in").mkdir()
    for name in ("a.jpg", "in/b.jpg"):
        (tmp_path / name).write_bytes(jpeg(0))
    monkeypatch.chdir(tmp_path / "in")
    pack(FileList(["../a.jpg", "b.jpg"]), tmp_path / "set.dfset")
    assert named(tmp_path / "set-000000.tar") == ["000000000.jpg", "000000001.jpg"]


def test_sets_by_braces(tmp_path: Path) -> None:
    """In a set's path, and in the names of its shards."""
    for k in range(3):
        (tmp_path / f"{k}.jpg").write_bytes(jpeg(k))
    for name in ("a", "b"):
        pack(FileList([str(tmp_path / f"{k}.jpg") for k in range(3)]), tmp_path / f"{name}.dfset", shard_bytes=1)
    assert len(ShardSet(str(tmp_path / "{a,b}.dfset")).paths) == 6
    assert len(ShardSet(str(tmp_path / "a.dfset/a-{000001..000002}.tar")).paths) == 2


def test_a_topic_in_a_folder_with_brackets(tmp_path: Path) -> None:
    """It is read as that topic, in its order, wherever it lies."""
    home = tmp_path / "run[1]" / "t.dfset"
    home.parent.mkdir()
    topic = {"pin": {"topic": "t"}, "held": {}}
    home.write_bytes(manifest_bytes(Manifest((Shard("t-000000.tar", 1, 1, "x", 1, "y"),), {}, topic)))
    assert SetStore().replay([str(home)]) == topic
    assert SetStore().replay([str(tmp_path / "run[[]1]" / "*.dfset")]) is None
