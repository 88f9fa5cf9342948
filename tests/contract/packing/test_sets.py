"""What is done with sets: split, merged, indexed again, packed again."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from kit.blocks import rows
from kit.killed_pack import contents
from kit.member_shards import shards

from dali_feed.errors import ConfigError, DataLostError
from dali_feed.external_sources import ShardSet
from dali_feed.packing import index, merge, pack, split, verify

COUNT = 40


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A set of 40 samples in a few shards."""
    (tmp_path / "tars").mkdir()
    pack(shards(tmp_path / "tars", COUNT), tmp_path / "whole" / "whole.dfset", shard_bytes=60_000)
    return tmp_path / "whole" / "whole.dfset"


def keys(path: Path) -> list[str]:
    """The keys of a set's samples, in order, as tarfile has them."""
    found = []
    for shard in ShardSet(path).paths:
        with tarfile.open(path.parent / Path(shard).name) as tar:
            found += [info.name.partition(".")[0] for info in tar]
    return list(dict.fromkeys(found))


def test_a_split_is_by_key_and_seed_alone(whole: Path, tmp_path: Path) -> None:
    """Each record is in one part; by shares it is the same part of another source that has more records."""
    shares = {"train": 0.75, "val": 0.25}
    done = split(ShardSet(whole), tmp_path / "a", shares, seed=5)
    train, val = (keys(tmp_path / "a" / f"{name}.dfset") for name in shares)
    assert sorted([*train, *val]) == sorted(keys(whole))
    assert (len(train), len(val)) == (done["train"].tally.records, done["val"].tally.records)
    assert 2 <= len(val) <= 20
    split(shards(tmp_path / "tars", COUNT // 2), tmp_path / "b", shares, seed=5)
    assert set(keys(tmp_path / "b" / "val.dfset")) == set(val) & {f"{k:05}" for k in range(COUNT // 2)}
    split(ShardSet(whole), tmp_path / "c", {"val": 7, "train": None}, seed=6)
    assert len(keys(tmp_path / "c" / "val.dfset")) == 7
    assert len(keys(tmp_path / "c" / "train.dfset")) == COUNT - 7
    assert set(keys(tmp_path / "c" / "val.dfset")) != set(val)
    split(ShardSet(whole), tmp_path / "r", {"train": None, "val": 0.25}, seed=5)
    assert set(keys(tmp_path / "r" / "train.dfset")) == set(train), "the rest is what the shares leave"
    wrong: dict[str, dict[str, float | int | None]] = {
        "split: shares must be above 0 and add up to 1; found a=0.5, b=0.4": {"a": 0.5, "b": 0.4},
        "leave something of 1 for the rest, 'b'; found a=1.0, b=rest": {"a": 1.0, "b": None},
        "shares must be above 0 .* found a=-0.5, b=rest": {"a": -0.5, "b": None},
        "one part at most can be the rest; found a=0.5, b=rest, c=rest": {"a": 0.5, "b": None, "c": None},
        "one part at most can be the rest; found a=rest, b=rest": {"a": None, "b": None},
        "counts must be at most the .* records together; found a=30, b=11": {"a": 30, "b": 11},
        "found no part": {},
    }
    for said, parts in wrong.items():
        with pytest.raises(ConfigError, match=said):
            split(ShardSet(whole), tmp_path / "d", parts)


def test_merged_sets_hold_the_shards_of_each(whole: Path, tmp_path: Path) -> None:
    """Byte for byte, in order, verified; damage in one of them is refused, and files in the way are not replaced."""
    split(ShardSet(whole), tmp_path / "a", {"one": 0.5, "two": 0.5})
    one, two = tmp_path / "a" / "one.dfset", tmp_path / "a" / "two.dfset"
    path = merge([one, two], tmp_path / "both")
    assert path == tmp_path / "both" / "both.dfset"
    assert keys(path) == keys(one) + keys(two)
    assert verify(path).damages == ()
    assert (tmp_path / "both" / "both-000000.tar").read_bytes() == (tmp_path / "a" / "one-000000.tar").read_bytes()
    with pytest.raises(ConfigError, match="must not replace files that are there; found both-000000.tar"):
        merge([one, two], tmp_path / "both")
    shard = tmp_path / "a" / "two-000000.tar"
    shard.write_bytes(b"x" + shard.read_bytes()[1:])
    with pytest.raises(DataLostError, match="two-000000.tar: a shard must be what its manifest says"):
        merge([one, two], tmp_path / "again")


def test_indexes_are_written_again_and_for_the_tars_of_others(whole: Path, tmp_path: Path) -> None:
    """Of a set they become what the manifest says; a foreign tar gets checksums, which a run compares."""
    before = contents(whole.parent)
    for path in whole.parent.glob("*.dfidx"):
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataLostError, match="`dali-feed index` writes it again|the manifest says"):
        ShardSet(whole).snapshot()
    assert index(whole) == len(ShardSet(whole).paths)
    assert contents(whole.parent) == before
    tar = tmp_path / "tars" / "0.tar"
    assert index([tar]) == 1
    damaged = bytearray(tar.read_bytes())
    damaged[600] ^= 1
    tar.write_bytes(damaged)
    assert "is not what was packed" in rows(ShardSet(tar))[0]["fault"]
