"""Checksums: what was packed is what is read, or the record is bad."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from kit.blocks import rows
from kit.packed_images import packed_images

from dali_feed.external_sources import ShardSet


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
