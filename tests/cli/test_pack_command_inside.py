"""Insides that contract/cli/test_pack_command.py needs not: they go with what they test."""

from __future__ import annotations

from pathlib import Path

from kit.command import Cli, assert_one_line, cli

from dali_feed.external_sources import ShardSet
from dali_feed.storage.manifest import load_manifest
from dali_feed.storage.striping import Layout
from dali_feed.testing.shards import write_shard

__all__ = ["cli"]  # a fixture


def test_targets_from_the_command_line(cli: Cli, tmp_path: Path) -> None:
    """--targets, --stripe-count and --stripe-size lay shards over folders, which must be there and be named."""
    write_shard(tmp_path / "a.tar", [{"txt": bytes(9000)}])
    command = ("pack", tmp_path / "a.tar", tmp_path / "x.dfset", "--stripe-count", "2")
    folders = [tmp_path / name for name in ("t0", "t1", "t2")]
    over = ("--targets", ",".join(map(str, folders)), "--stripe-size", "4KiB")
    assert_one_line(cli(*command, *over), "must be a folder that can be written to")
    for folder in folders:
        folder.mkdir()
    done = cli(*command, *over, "--verify")
    assert (done.code, done.err) == (0, "")
    made = load_manifest(str(tmp_path / "x.dfset"))
    assert made.layout == Layout(("t0", "t1", "t2"), 2, 4096)  # inside the set's folder: they move with it
    found = {(path.parent.name, path.name, path.stat().st_size) for folder in folders for path in folder.iterdir()}
    assert found == {(f"t{part.target}", part.file, part.size) for part in made.parts(0)}
    assert_one_line(cli(*command, "--targets", "", "--stripe-size", "4KiB"), "targets: must be one folder or more")


def test_parts_are_packed_as_sets_are(cli: Cli, tmp_path: Path) -> None:
    """Options of a set hold for each part: members, names, targets; and --verify reads all of them."""
    write_shard(tmp_path / "a.tar", [{"txt": b"%d" % k, "cls": b"1"} for k in range(12)])
    (tmp_path / "p" / "t0").mkdir(parents=True)
    command = ("pack", tmp_path / "a.tar", tmp_path / "p", "--part", "val=5", "--part", "train=rest", "--seed", 3)
    done = cli(*command, "--members", "txt", "--keys", "number", "--targets", tmp_path / "p" / "t0", "--verify")
    assert (done.code, done.err) == (0, "")
    assert done.out.count("damaged  0 files") == 2
    for name, count in (("val", 5), ("train", 7)):
        made = load_manifest(str(tmp_path / "p" / f"{name}.dfset"))
        assert made.layout == Layout(("t0",), 1)
        found = ShardSet(tmp_path / "p" / f"{name}.dfset", label=None)
        assert (len(found.snapshot()), [member.name for member in found.members()]) == (count, ["txt"])
