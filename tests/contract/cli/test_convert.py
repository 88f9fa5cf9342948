"""`pack --to` as a command: it writes what Python writes, and says in one line what it will not."""

from __future__ import annotations

from pathlib import Path

from kit.command import Cli, assert_one_line, cli
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
