"""What is done with sets: split, merged, indexed and packed again; checks, and what damage is found."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from kit.blocks import rows
from kit.killed_pack import contents
from kit.member_shards import shards
from kit.packed_images import packed_images

from dali_feed.errors import ConfigError, DaliFeedError, DataLostError, SourceNotFoundError
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


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six images of two classes in one shard."""
    folder = tmp_path_factory.mktemp("packed")
    packed_images(folder, folder / "set", 6, 16)
    return folder / "set"


def copied(packed: Path, to: Path) -> Path:
    """A copy of the shard and its index, as `cp` makes it."""
    for path in packed.glob("*.tar*"):
        shutil.copyfile(path, to / path.name)
    return to / "set-000000.tar"


def read(source: Any) -> tuple[list[tuple[bytes, bytes]], dict[int, str]]:
    """Image and label of each sample of a single shard, and the faults."""
    found = rows(source)
    faults = {k: row["fault"] for k, row in enumerate(found) if "fault" in row}
    return [(row.get("image", b""), row.get("label", b"")) for row in found], faults


def test_any_flipped_byte_of_a_member_makes_its_record_bad(packed: Path, tmp_path: Path) -> None:
    """In a copy of a shard that lies elsewhere too; other records stay good, and nothing wrong passes as right."""
    shard = copied(packed, tmp_path)
    whole = shard.read_bytes()
    with tarfile.open(shard) as tar:
        members = [range(info.offset_data, info.offset_data + info.size) for info in tar]
    good, none = read(ShardSet(shard))
    assert none == {}
    for at in range(0, len(whole), 97):
        shard.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        found, faults = read(ShardSet(shard))
        assert list(faults) == [k // 2 for k, member in enumerate(members) if at in member]
        assert all(row == good[k] for k, row in enumerate(found) if k not in faults)
        assert all("is not what was packed: its CRC-32 is" in reason for reason in faults.values())


def test_columns_are_checked_too_and_check_false_believes_all(packed: Path, tmp_path: Path) -> None:
    """A member that was asked for by name has its own checksum; who does not want it compared says so."""
    shard = copied(packed, tmp_path)
    whole = bytearray(shard.read_bytes())
    at = bytes(whole).index(b"a/2.cls") + 512
    whole[at] ^= 1
    shard.write_bytes(whole)
    for check, reason in ((True, "member 'cls' is not what was packed"), (False, "")):
        found = rows(ShardSet(shard, check=check), "cls")
        assert [k for k, row in enumerate(found) if "fault" in row] == ([1] if check else [])
        assert reason in found[1].get("fault", "")
        others = [row["cls"] for k, row in enumerate(found) if k != 1]
        assert others == [b"0", b"0", b"1", b"1", b"1"]
        assert check or found[1]["cls"] == b"1"


Rows = list[tuple[bytes, int]]


@pytest.fixture(scope="module")
def two_shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six images of two classes in two shards."""
    folder = tmp_path_factory.mktemp("two_shards")
    done = packed_images(folder, folder / "set", 6, 16, 9000)
    assert done.shards == 2
    return folder / "set"


def pairs(path: Path) -> tuple[Rows, dict[int, str]]:
    """Payload and label of every sample of a set, and the faults."""
    found = rows(ShardSet(path))
    faults = {k: row["fault"] for k, row in enumerate(found) if "fault" in row}
    return [(row.get("image", b""), int(row.get("label", b"-1"))) for row in found], faults


@pytest.mark.parametrize("name", ["set.dfset", "set-000001.tar", "set-000001.tar.dfidx"])
def test_a_flip_or_a_cut_anywhere_is_found(two_shards: Path, tmp_path: Path, name: str) -> None:
    """`verify` names the file; a run has a bad record there, or ends with an error of ours, and all else is right."""
    home = tmp_path / "set"
    shutil.copytree(two_shards, home, copy_function=shutil.copyfile)
    good, none = pairs(home / "set.dfset")
    assert (none, verify(home / "set.dfset").damages) == ({}, ())
    whole = (home / name).read_bytes()
    step = max(1, len(whole) // 60)
    for at in range(0, len(whole), step):
        for broken in (whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :], whole[:at]):
            (home / name).write_bytes(broken)
            found = verify(home / "set.dfset").damages
            assert [Path(damage.path).name for damage in found] == [name], at
            try:
                rows, faults = pairs(home / "set.dfset")
            except DaliFeedError:
                continue
            assert [row for k, row in enumerate(rows) if k not in faults] == [
                row for k, row in enumerate(good) if k not in faults
            ]
    (home / name).unlink()
    with pytest.raises((DataLostError, SourceNotFoundError), match=r"set\.dfset"):
        pairs(home / "set.dfset")


def test_damage_is_told_with_its_records(two_shards: Path, tmp_path: Path) -> None:
    """Which samples of a shard have other bytes; a flip in a header is in none of them."""
    home = tmp_path / "set"
    shutil.copytree(two_shards, home, copy_function=shutil.copyfile)
    shard = home / "set-000000.tar"
    whole = bytearray(shard.read_bytes())
    whole[600] ^= 1
    shard.write_bytes(whole)
    (damage,) = verify(home / "set.dfset").damages
    assert str(damage).endswith("set.dfset/set-000000.tar: its SHA-256 is not that of the manifest, in #0")
    whole[600] ^= 1
    whole[3] ^= 1
    shard.write_bytes(whole)
    (damage,) = verify(home / "set.dfset").damages
    assert "in no member: a header" in damage.what
