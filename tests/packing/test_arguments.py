"""What `pack`, `split` and `merge` take, and what they refuse before anything is written."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.images import jpeg

from dali_feed.errors import ConfigError, SourceChangedError, StateError
from dali_feed.external_sources import MDS, Arrays, Concat, FileList, Mix, ShardSet, TFRecords
from dali_feed.packing import PackedSet, index, merge, pack, split, verify
from dali_feed.packing.work import WorkFolder
from dali_feed.storage.manifest import load_manifest


class StoppedError(Exception):
    """A run that was killed."""


def stop(done: PackedSet) -> None:
    """In the middle."""
    if done.done >= 2:
        raise StoppedError


def files(folder: Path, count: int = 10) -> FileList:
    """Pictures with labels."""
    paths = [folder / f"{k}.jpg" for k in range(count)]
    for k, path in enumerate(paths):
        path.write_bytes(jpeg(k))
    return FileList([str(path) for path in paths], list(range(count)))


@pytest.mark.parametrize("to", ["mds", "tfrecord"])
def test_parts_in_formats_of_others_hold_their_records_alone(tmp_path: Path, to: str) -> None:
    """As sets do, in folders that their readers open; options of tar shards are refused."""
    source = files(tmp_path)
    done = split(source, tmp_path / to, {"train": 8, "val": 2}, to=to)
    assert {name: part.tally.records for name, part in done.items()} == {"train": 8, "val": 2}
    val: Any = MDS(str(done["val"].path)) if to == "mds" else TFRecords(str(done["val"].path / "*.tfrecord"))
    assert val.snapshot().positions == 2
    for option in ({"resize": 8}, {"workers": 2}, {"decoded": True}):
        with pytest.raises(ConfigError, match=f"{next(iter(option))}: is of tar shards; found to='{to}'"):
            split(source, tmp_path / "b", {"train": 8, "val": 2}, to=to, **option)
    assert not (tmp_path / "b").exists()


def test_weights_are_refused(tmp_path: Path) -> None:
    """A set holds each record once, and no epoch of a mix; its sources one after another are packed."""
    parts = [Arrays(np.arange(5)), Arrays(np.arange(100, 120))]
    for write in (pack, lambda source, out: split(source, out, {"a": None})):
        with pytest.raises(ConfigError, match=r"Mix\(.*each record of its source once; found .* weights; pack each"):
            write(Mix(parts, [0, 1], samples=3), tmp_path / "set")
    assert pack(Concat(parts), tmp_path / "set").tally.records == 25


@pytest.mark.parametrize(
    ("source", "out", "options", "words"),
    [
        ("a.tar", "set", {}, "source: must be a source that ends, .*; found 'a.tar'; make one"),
        (None, None, {}, "out: must be a path; found None"),
        (None, "set", {"shard_bytes": "256MB"}, "shard_bytes: must be 1 or more; found '256MB'; give a whole number"),
        (None, "set", {"workers": "4"}, "workers: must be 1 or more; found '4'"),
        (None, "set", {"map": 5}, "map: must be a function of an encoded image that gives another; found 5"),
        (None, "set", {"resize": 0}, "resize: must be an int of at least 1; found 0"),
        (None, "set", {"resize": -5}, "resize: must be an int of at least 1; found -5"),
        (None, "set", {"quality": 0}, "quality: must be an int of at least 1; found 0"),
        (None, "set", {"quality": 1000}, "quality: must be 1 to 100; found 1000"),
        (None, "set", {"quality": "90"}, "quality: must be an int of at least 1; found '90'"),
    ],
)
def test_arguments_that_cannot_be(tmp_path: Path, source: Any, out: Any, options: Any, words: str) -> None:
    """Each is named, and no record is read."""
    with pytest.raises(ConfigError, match=words):
        pack(source or files(tmp_path, 1), out and tmp_path / out, **options)
    assert not list(tmp_path.rglob("*.tar"))


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"a": "0.9", "b": None}, "a part must be a share, a count, or None for the rest; found a='0.9'"),
        ({"a": True, "b": None}, "a part must be a share, .*; found a=True"),
        (["a"], "parts must be a mapping of names to shares or counts; found"),
        ({"../a": 0.5, "b": None}, "a part's name must be one of a file; found '../a'; give another"),
    ],
)
def test_parts_that_cannot_be(tmp_path: Path, parts: Any, words: str) -> None:
    """Each is named; a share of NumPy's is one."""
    source = files(tmp_path, 4)
    with pytest.raises(ConfigError, match=words):
        split(source, tmp_path / "out", parts)
    done = split(source, tmp_path / "out", {"a": np.float32(0.5), "b": None})  # type: ignore[dict-item]
    assert sum(part.tally.records for part in done.values()) == 4


@pytest.mark.parametrize("look", [verify, index])
def test_workers_of_what_reads_a_set(tmp_path: Path, look: Any) -> None:
    """At least one, as of `pack`."""
    done = pack(files(tmp_path, 1), tmp_path / "set.dfset")
    with pytest.raises(ConfigError, match="workers: must be an int of at least 1; found 0"):
        look(done.path, workers=0)


def test_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`~` is the home folder, of sets and of indexes."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir()
    done = pack(files(tmp_path, 1), "~/set.dfset")
    assert done.path == tmp_path / "home/set.dfset"
    os.rename(tmp_path / "home/set-000000.tar", tmp_path / "a.tar")
    ShardSet("a.tar", index_dir="~/indexes").snapshot()
    assert len(list((tmp_path / "home/indexes").iterdir())) == 1
    assert not (tmp_path / "~").exists()


def test_a_name_with_brackets_replaces_nothing(tmp_path: Path) -> None:
    """It is a name and no pattern."""
    own = tmp_path / "run[1]-000000.tar"
    own.write_bytes(b"my own file")
    with pytest.raises(ConfigError, match=r"must not replace files that are there; found run\[1\]-000000.tar"):
        pack(files(tmp_path, 1), tmp_path / "run[1].dfset")
    assert own.read_bytes() == b"my own file"


def test_a_merge_leaves_a_set_that_is_being_packed(tmp_path: Path) -> None:
    """Its shards are as they were, and it goes on."""
    source = files(tmp_path)
    sets = [pack(source, tmp_path / f"{name}.dfset").path for name in "ab"]
    with pytest.raises(StoppedError):
        pack(source, tmp_path / "c.dfset", shard_bytes=1, workers=1, tell=stop)
    before = (tmp_path / "c-000000.tar").read_bytes()
    with pytest.raises(StateError, match="c.dfset: a set that is under way must be finished first; it is packed from"):
        merge(sets, tmp_path / "c.dfset")
    assert (tmp_path / "c-000000.tar").read_bytes() == before
    assert pack(source, tmp_path / "c.dfset", shard_bytes=1, workers=1).begun >= 2


def test_files_that_were_written_again_are_another_source(tmp_path: Path) -> None:
    """A run that was killed does not go on with them, though they may be as long; the manifest has no times."""
    source = files(tmp_path, 4)
    for name in ("a", "b"):
        with pytest.raises(StoppedError):
            pack(source, tmp_path / f"{name}.dfset", shard_bytes=1, workers=1, tell=stop)
    assert pack(source, tmp_path / "a.dfset", shard_bytes=1).begun >= 2
    assert b"stamps" not in (tmp_path / "a.dfset").read_bytes()
    for path in source.paths:
        os.utime(path, (1, 1))
    with pytest.raises(SourceChangedError, match="files of FileList.* were written since it was begun; give the same"):
        pack(source, tmp_path / "b.dfset", shard_bytes=1)
    assert pack(source, tmp_path / "a.dfset", shard_bytes=1).begun == 4


def test_a_run_of_earlier_code_is_not_gone_on_with(tmp_path: Path) -> None:
    """Its bytes may be others; a finished set is what it was, and its manifest says version 1 as before."""
    source = files(tmp_path, 4)
    for name in ("a", "b"):
        with pytest.raises(StoppedError):
            pack(source, tmp_path / f"{name}.dfset", shard_bytes=1, workers=1, tell=stop)
    work = WorkFolder(tmp_path, "b")
    plan = work.plan()
    assert plan is not None
    work.begin(plan | {"version": 1})
    with pytest.raises(StateError, match="version: 1, found 2; give the same, give another place, or remove"):
        pack(source, tmp_path / "b.dfset", shard_bytes=1)
    pack(source, tmp_path / "a.dfset", shard_bytes=1)
    pack(source, tmp_path / "whole" / "a.dfset", shard_bytes=1)
    assert (tmp_path / "a.dfset").read_bytes() == (tmp_path / "whole" / "a.dfset").read_bytes()
    assert load_manifest(str(tmp_path / "a.dfset")).made["version"] == 1
    assert pack(source, tmp_path / "a.dfset", shard_bytes=1).begun == 4


def test_texts_are_no_images(tmp_path: Path) -> None:
    """Labels that begin with the two letters of a BMP or a PGM stay labels, those in a file of a table too."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    from dali_feed.external_sources import Table

    labels = ["Audi A4", "BMW X5", "Ford", "P5 van"]
    pq.write_table(pa.table({"image": [jpeg(0)] * 4, "label": labels}), tmp_path / "cars.parquet")
    pack(Table(tmp_path / "cars.parquet", label=None), tmp_path / "cars.dfset")
    with tarfile.open(tmp_path / "cars-000000.tar") as tar:
        assert [name for name in tar.getnames() if not name.endswith((".jpg", ".cls"))] == []
