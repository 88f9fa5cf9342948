"""Damage: whatever byte is another one, `verify` finds it, and no run gives it as right."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from kit.blocks import rows
from kit.packed_images import packed_images

from dali_feed.errors import DaliFeedError, DataLostError, SourceNotFoundError
from dali_feed.external_sources import ShardSet
from dali_feed.packing import verify

Rows = list[tuple[bytes, int]]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six images of two classes in two shards."""
    folder = tmp_path_factory.mktemp("packed")
    done = packed_images(folder, folder / "set", 6, 16, 9000)
    assert done.shards == 2
    return folder / "set"


def read(path: Path) -> tuple[Rows, dict[int, str]]:
    """Payload and label of every sample of a set, and the faults."""
    found = rows(ShardSet(path))
    faults = {k: row["fault"] for k, row in enumerate(found) if "fault" in row}
    return [(row.get("image", b""), int(row.get("label", b"-1"))) for row in found], faults


@pytest.mark.parametrize("name", ["set.dfset", "set-000001.tar", "set-000001.tar.dfidx"])
def test_a_flip_or_a_cut_anywhere_is_found_and_nothing_wrong_passes(packed: Path, tmp_path: Path, name: str) -> None:
    """`verify` names the file; a run has a bad record there, or ends with an error of ours, and all else is right."""
    home = tmp_path / "set"
    shutil.copytree(packed, home, copy_function=shutil.copyfile)
    good, none = read(home / "set.dfset")
    assert (none, verify(home / "set.dfset").damages) == ({}, ())
    whole = (home / name).read_bytes()
    step = max(1, len(whole) // 60)
    for at in range(0, len(whole), step):
        for broken in (whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :], whole[:at]):
            (home / name).write_bytes(broken)
            found = verify(home / "set.dfset").damages
            assert [Path(damage.path).name for damage in found] == [name], at
            try:
                rows, faults = read(home / "set.dfset")
            except DaliFeedError:
                continue
            assert [row for k, row in enumerate(rows) if k not in faults] == [
                row for k, row in enumerate(good) if k not in faults
            ]
    (home / name).unlink()
    with pytest.raises((DataLostError, SourceNotFoundError), match=r"set\.dfset"):
        read(home / "set.dfset")


def test_damage_is_told_with_its_records(packed: Path, tmp_path: Path) -> None:
    """Which samples of a shard have other bytes; a flip in a header is in none of them."""
    home = tmp_path / "set"
    shutil.copytree(packed, home, copy_function=shutil.copyfile)
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
