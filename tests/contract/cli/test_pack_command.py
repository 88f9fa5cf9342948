"""`dali-feed pack`, `convert` and `verify` of a set: what people read, and how it ends."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from kit.broker.handle import Kafka
from kit.command import Cli, assert_one_line, cli
from kit.images import jpeg
from kit.inside import write_shard
from kit.member_shards import shards

from dali_feed.external_sources import MDS, KafkaTopic, ShardSet
from dali_feed.packing import pack

__all__ = ["cli"]  # a fixture


def test_a_folder_is_packed_verified_and_found_damaged(cli: Cli, tmp_path: Path) -> None:
    """Packed with --verify, called again it does nothing; a flipped byte is told by `verify` with its record."""
    for k in range(4):
        (tmp_path / "images" / "ab"[k % 2]).mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / "ab"[k % 2] / f"{k}.jpg").write_bytes(jpeg(k, 16, 16))
    command = ("pack", tmp_path / "images", tmp_path / "set", "--verify")
    done = cli(*command)
    words = " ".join(done.out.split())
    assert (done.code, done.err) == (0, "")
    assert f"set {tmp_path}/set/set.dfset written 4 records" in words
    assert "shards 1 with 4 samples" in words
    assert "continued at record 4 of 4 (everything was written already)" in " ".join(cli(*command).out.split())
    shard = tmp_path / "set" / "set-000000.tar"
    whole = bytearray(shard.read_bytes())
    whole[600] ^= 1
    shard.write_bytes(whole)
    done = cli("verify", tmp_path / "set" / "set.dfset")
    assert done.code == 1
    assert "set-000000.tar: its SHA-256 is not that of the manifest, in #0" in done.out
    assert_one_line(cli(*command, "--members", "a=b,c"), "--members: must be NAME,NAME or SUFFIX=NAME")


def test_the_folder_of_a_set_is_answered_with_the_set(cli: Cli, tmp_path: Path) -> None:
    """Who names the folder that `pack` wrote into is told the set in it, as `ShardSet` takes it."""
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "0.jpg").write_bytes(jpeg(0, 16, 16))
    assert cli("pack", tmp_path / "images", tmp_path / "set").code == 0
    assert_one_line(cli("inspect", tmp_path / "set"), f"for its shards write '{tmp_path}/set/set.dfset'")


def test_sets_from_the_command_line(cli: Cli, tmp_path: Path) -> None:
    """`pack --part`, `merge` and `index`, and what is no part."""
    write_shard(tmp_path / "a.tar", [{"txt": b"%d" % k} for k in range(20)])
    done = cli("pack", tmp_path / "a.tar", tmp_path / "p", "--part", "val=5", "--part", "train=rest")
    assert (done.code, done.err) == (0, "")
    assert "written 5 records" in " ".join(done.out.split())
    assert "written 15 records" in " ".join(done.out.split())
    done = cli("merge", tmp_path / "p" / "val.dfset", tmp_path / "p" / "train.dfset", tmp_path / "m.dfset")
    assert (done.code, done.out) == (0, f"set {tmp_path / 'm.dfset'}\n")
    assert cli("index", tmp_path / "m.dfset").out == "2 indexes written\n"
    assert_one_line(cli("pack", tmp_path / "a.tar", tmp_path / "q", "--part", "val"), "--part: must be NAME")
    shares = ("--part", "val=0.5", "--part", "train=rest")
    assert cli("pack", tmp_path / "a.tar", tmp_path / "s", *shares).code == 0
    twice = cli("pack", tmp_path / "a.tar", tmp_path / "q", *shares, "--part", "val=0.1")
    assert_one_line(twice, "a name of its own; found 'val' twice")
    assert_one_line(cli("pack", tmp_path / "a.tar", tmp_path / "q", "--seed", 1), "--seed: decides which record goes")


def test_a_topic_from_the_command_line_is_the_one_of_a_training_run(cli: Cli, embedded: Kafka, tmp_path: Path) -> None:
    """The set's fingerprint is that of KafkaTopic as a loader has it."""
    topic = embedded.topic
    embedded.publish(topic, [(jpeg(n), n) for n in range(6)], 2)
    done = cli("pack", f"kafka://{embedded.servers}/{topic}", tmp_path / "x.dfset")
    assert (done.code, done.err) == (0, "")
    found = ShardSet(tmp_path / "x.dfset").snapshot()
    wanted = KafkaTopic(topic, embedded.servers).snapshot()
    assert (found.fingerprint, found.names, len(found)) == (wanted.fingerprint, wanted.names, 6)


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
    layout = json.loads((tmp_path / "x.dfset").read_text())["set"]["layout"]
    assert layout == {"targets": ["t0", "t1", "t2"], "stripe_count": 2, "stripe_size": 4096}  # they move with the set
    assert [sorted(path.name for path in folder.iterdir()) for folder in folders] == [
        ["x-000000.tar.0of2"], ["x-000000.tar.1of2"], [],
    ]  # fmt: skip
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
        layout = json.loads((tmp_path / "p" / f"{name}.dfset").read_text())["set"]["layout"]
        assert (layout["targets"], layout["stripe_count"]) == (["t0"], 1)
        found = ShardSet(tmp_path / "p" / f"{name}.dfset", label=None)
        assert (len(found.snapshot()), [member.name for member in found.members()]) == (count, ["txt"])


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
