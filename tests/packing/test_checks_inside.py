"""Insides that contract/packing/test_checks.py needs not: they go with what they test."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from kit.blocks import taken
from kit.packed_images import packed_images

from dali_feed.external_sources import ShardSet
from dali_feed.external_sources import tar as tar_index
from dali_feed.records.extents import Extents
from dali_feed.records.source import Source


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six images of two classes in one shard."""
    folder = tmp_path_factory.mktemp("packed")
    packed_images(folder, folder / "set", 6, 16)
    return folder / "set"


def read(source: Source) -> tuple[list[tuple[bytes, bytes]], dict[int, str]]:
    """Payload and label of each sample of a single shard, and the faults."""
    reader = source.reader()
    block = reader.read(Extents.one(0, 0, len(source.snapshot())))
    rows = [(taken(payload), str(block.fields["label"][k]).encode()) for k, payload in enumerate(block.payloads)]
    block.lease.release()
    reader.close()
    return rows, block.faults


def copied(packed: Path, to: Path) -> Path:
    """A copy of the shard and its index, as `cp` makes it."""
    for path in packed.glob("*.tar*"):
        shutil.copyfile(path, to / path.name)
    return to / "set-000000.tar"


def test_any_flipped_byte_of_a_member_makes_its_record_bad(packed: Path, tmp_path: Path) -> None:
    """In a copy of a shard that lies elsewhere too; other records stay good, and nothing wrong passes as right."""
    shard = copied(packed, tmp_path)
    whole = shard.read_bytes()
    index = tar_index.load(str(shard))
    members = [range(at, at + size) for at, size in zip(index.offset.tolist(), index.length.tolist(), strict=True)]
    good, none = read(ShardSet(shard))
    assert none == {}
    for at in range(0, len(whole), 97):
        shard.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        found, faults = read(ShardSet(shard))
        assert list(faults) == [k // 2 for k, member in enumerate(members) if at in member]
        assert all(row == good[k] for k, row in enumerate(found) if k not in faults)
        assert all("is not what was packed: its CRC-32 is" in reason for reason in faults.values())
