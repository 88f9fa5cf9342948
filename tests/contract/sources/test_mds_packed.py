"""MDS sets whose shards are there only as Zstandard packed them."""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from pathlib import Path

import pytest
import zstandard
from kit.blocks import pictures
from kit.images import jpeg
from kit.record_files import mds
from torchvision.transforms import v2

from dali_feed.errors import DaliFeedError, DataLostError, MissingPackageError, SourceError
from dali_feed.external_sources import MDS
from dali_feed.testing import assert_resumes_anywhere

IMAGES = [jpeg(n % 16, 16 + n % 3 * 4) for n in range(22)]


def made(folder: Path, hashes: tuple[str, ...] = ("sha1",), compression: str = "zstd:7") -> Path:
    """A set of two shards as MDSWriter(compression="zstd:7", hashes=hashes) leaves it."""
    rows = [(image, struct.pack("<q", n)) for n, image in enumerate(IMAGES)]
    mds(folder, {"image": "jpeg", "label": "int"}, [rows[:15], rows[15:]])
    told = json.loads((folder / "index.json").read_text())
    for shard in told["shards"]:
        raw = folder / shard["raw_data"]["basename"]
        whole = zstandard.ZstdCompressor(7).compress(raw.read_bytes())
        name = f"{raw.name}.zstd"
        (folder / name).write_bytes(whole)
        raw.unlink()
        digests = {each: hashlib.new(each, whole).hexdigest() for each in hashes}
        shard |= {"compression": compression, "zip_data": {"basename": name, "bytes": len(whole), "hashes": digests}}
        shard["raw_data"]["hashes"] = {each: shard["raw_data"]["hashes"][each] for each in hashes}
    (folder / "index.json").write_text(json.dumps(told))
    return folder


def read(source: MDS) -> list[tuple[bytes | None, int | None]]:
    """All records in order."""
    return [(image, label) for image, label, _ in pictures(source)]


def test_packed_shards_are_read_as_what_they_were(tmp_path: Path) -> None:
    """The records, and the fingerprint, are those of the set that is not packed; a shard is an extent."""
    packed = MDS(made(tmp_path / "set"))
    assert read(packed) == [(image, n) for n, image in enumerate(IMAGES)]
    assert [member.name for member in packed.members()] == ["image", "label"]
    assert packed.snapshot().extent >= 15
    assert not packed.snapshot().random_access
    for name in ("shard.00000.mds", "shard.00001.mds"):
        whole = (tmp_path / "set" / f"{name}.zstd").read_bytes()
        (tmp_path / "set" / name).write_bytes(zstandard.ZstdDecompressor().decompress(whole))
    plain = MDS(tmp_path / "set")
    assert plain.snapshot().fingerprint == packed.snapshot().fingerprint
    assert plain.snapshot().random_access
    assert sorted(each.name for each in (tmp_path / "set").glob("*.zstd")) == [
        "shard.00000.mds.zstd",
        "shard.00001.mds.zstd",
    ]


@pytest.mark.parametrize("shuffle", [True, False], ids=["shuffled", "in order"])
def test_packed_shards_resume_anywhere(tmp_path: Path, shuffle: bool) -> None:
    """As any source."""
    crop = v2.RandomResizedCrop(16, scale=(0.3, 1.0))
    assert_resumes_anywhere(MDS(made(tmp_path / "set")), transform=crop, shuffle=shuffle, positions=3, absent=0)


@pytest.mark.parametrize("hashes", [("sha1",), ()], ids=["with hashes", "without"])
def test_any_damage_of_a_packed_shard_is_named(tmp_path: Path, hashes: tuple[str, ...]) -> None:
    """Of any byte flipped, and cut anywhere; without a hash at least no other error comes, and none that is cut."""
    folder = made(tmp_path / "set", hashes)
    shard = folder / "shard.00001.mds.zstd"
    whole = shard.read_bytes()
    right = read(MDS(folder))
    flips = [whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :] for at in range(0, len(whole), 41)]
    cuts = [whole[:at] for at in range(0, len(whole), 400)] + [whole + b"x"]
    missed = 0
    for k, harmed in enumerate([*flips, *cuts]):
        shard.write_bytes(harmed)
        try:
            found = read(MDS(folder))
        except DataLostError as error:
            assert "shard.00001.mds" in str(error)
        except DaliFeedError as error:
            msg = f"harm {k}: {error}"
            raise AssertionError(msg) from error
        else:
            assert k < len(flips)
            missed += found != right
    assert not hashes or not missed


def test_other_compressions_are_refused_with_the_cure(tmp_path: Path) -> None:
    """By what they are compressed, and what to do."""
    for compression, name in (("gz:6", "gz"), ("br", "br")):
        text = f"must be uncompressed, or compressed with zstd; found it compressed with {name}; unpack all files"
        with pytest.raises(SourceError, match=text):
            MDS(made(tmp_path / name, compression=compression))


def test_zstandard_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two cures: the package, or the set unpacked."""
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(
        MissingPackageError, match=r"mds\.zstd: zstandard: .*pip install zstandard .*; or unpack all: zstd -d --rm "
    ):
        MDS(made(tmp_path / "set"))
