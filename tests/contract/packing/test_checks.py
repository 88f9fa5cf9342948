"""Checksums: what was packed is what is read, or the record is bad."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from kit.inside import Extents
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


def test_columns_are_checked_too_and_check_false_believes_all(packed: Path, tmp_path: Path) -> None:
    """A member that was asked for by name has its own checksum; who does not want it compared says so."""
    shard = copied(packed, tmp_path)
    whole = bytearray(shard.read_bytes())
    at = bytes(whole).index(b"a/2.cls") + 512
    whole[at] ^= 1
    shard.write_bytes(whole)
    for check, reason in ((True, "member 'cls' is not what was packed"), (False, "")):
        source = ShardSet(shard, check=check).giving(None, ("cls",))
        reader = source.reader()
        block = reader.read(Extents.one(0, 0, 6))
        assert list(block.faults) == ([1] if check else [])
        assert reason in block.faults.get(1, "")
        assert [bytes(view or b"") for view in block.fields["cls"]] == [b"0", b"1", b"0", b"1", b"1", b"1"]
        block.lease.release()
        reader.close()
