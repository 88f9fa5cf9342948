"""`pack --to` as a command: it writes what Python writes, and says in one line what it will not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kit.command import Cli, assert_one_line, cli
from kit.inside import write_shard
from kit.member_shards import shards

from dali_feed.external_sources import MDS
from dali_feed.packing import pack

__all__ = ["cli"]  # a fixture


def test_convert(cli: Cli, tmp_path: Path) -> None:
    """The files are those that the function makes; what was done is told; again is refused."""
    source = shards(tmp_path, 6)
    done = cli("pack", *source.paths, tmp_path / "c" / "m", "--to", "mds", "--members", "picture=jpg,label=cls")
    assert (done.code, "6 records" in done.out) == (0, True), done.err
    assert done.out.startswith("folder ")
    assert "set" not in done.out.replace(str(tmp_path), "")
    pack(source, tmp_path / "p" / "m", to="mds", members={"picture": "jpg", "label": "cls"})
    for path in (tmp_path / "p" / "m").iterdir():
        assert path.read_bytes() == (tmp_path / "c" / "m" / path.name).read_bytes()
    assert [member.name for member in MDS(tmp_path / "c" / "m", image=None).members()] == ["picture", "label"]
    assert_one_line(cli("pack", *source.paths, tmp_path / "c" / "m", "--to", "mds"), "this one exists already")


def test_what_is_of_tar_shards_alone_is_refused(cli: Cli, tmp_path: Path) -> None:
    """Of TFRecords and MDS each other option is named, and never passed over."""
    source = shards(tmp_path, 2)
    for name, *value in (
        *(("keys", "own"), ("resize", 8), ("quality", 8), ("text", "txt"), ("decoded",), ("workers", 2)),
        *(("engine", "ray"), ("part", "a=1"), ("targets", "a,b"), ("stripe-count", 2), ("stripe-size", "1MiB")),
        *(("verify",), ("tokens", tmp_path / "t.json")),
    ):
        done = cli("pack", *source.paths, tmp_path / "x", "--to", "tfrecord", f"--{name}", *value)
        assert_one_line(done, f"--{name}: is of tar shards; found --to tfrecord")


COMMANDS = {
    "pack": ("pack", "a.tar", "OUT"),
    "pack to mds": ("pack", "a.tar", "OUT", "--to", "mds"),
    "pack in parts": ("pack", "a.tar", "OUT", "--part", "a=1", "--part", "b=rest"),
    "merge": ("merge", "p.dfset", "q.dfset", "OUT"),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a shard, a file and a link that leads nowhere."""
    write_shard(tmp_path / "a.tar", [{"txt": b"1"}, {"txt": b"2"}])
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "dangling").symlink_to("nowhere")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_no_place_is_told_and_nothing_is_written(cli: Cli, here: Path, name: str) -> None:
    """No name, which would be the current folder; a file or a link in the way; an address; what cannot be written."""
    if name == "merge":
        for each in ("p", "q"):
            assert cli("pack", "a.tar", f"{each}.dfset").code == 0
    before = sorted(os.listdir(here))
    for out, *words in (
        ("", "out: must be a folder", "found '', which has no name; for the current folder give '.'"),
        (" ", "found ' ', which has no name"),
        ("file", f"found 'file', where {here}/file is a file; give another name"),
        ("file/x/y", f"found 'file/x/y', where {here}/file is a file"),
        ("dangling/x", f"{here}/dangling is a broken link"),
        ("s3://bucket/x", "of this machine; found 's3://bucket/x'; write to a disk or a mount, and copy it from there"),
        (
            "/proc/self/x",
            "that can be written; found",
            "; /proc/self cannot be written; check its permissions and owner",
        ),
    ):
        command = [out if each == "OUT" else each for each in COMMANDS[name]]
        assert_one_line(cli(*command), *words)
        assert sorted(set(os.listdir(here)) - {"a.tar.dfidx"}) == [each for each in before if each != "a.tar.dfidx"]


def test_a_folder_in_the_manifests_place_and_a_set_without_a_name_are_told(cli: Cli, here: Path) -> None:
    """`x.dfset` is a file; a set that is to be merged, and a source, have names too."""
    (here / "x.dfset").mkdir()
    assert_one_line(cli("pack", "a.tar", "x.dfset"), f"{here}/x.dfset must be a set's manifest, a file; found a folder")
    assert_one_line(cli("merge", "x.dfset", "", "y.dfset"), "merge: takes the manifests of sets", "'x.dfset', ''")
    assert_one_line(cli("pack", "", "set"), "source: must be named; found ''")
    assert not list((here / "x.dfset").iterdir())
