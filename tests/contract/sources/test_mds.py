"""MDS sets: what index.json must be, what is refused, and values by their encodings."""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
import zstandard
from kit.blocks import Reads, pictures, rows
from kit.images import jpeg
from kit.record_files import frame, mds, packed
from kit.resumes import assert_resumes_in_turn
from torchvision.transforms import v2

from dali_feed.errors import ConfigError, DaliFeedError, DataLostError, FormatError, MissingPackageError, SourceError
from dali_feed.external_sources import MDS, RecordIO

COLUMNS = {"image": "jpeg", "label": "int", "pickled": "pkl", "caption": "str"}
SAMPLE = [jpeg(0), struct.pack("<q", 7), b"\x80\x04.", b"hello"]


def made(folder: Path, **changes: Any) -> Path:
    """A set of one shard, with changes to what index.json says of it."""
    path = mds(folder / "set", COLUMNS, [[SAMPLE, SAMPLE]]) / "index.json"
    told = json.loads(path.read_text())
    told["shards"][0] |= changes
    path.write_text(json.dumps(told))
    return path.parent


def test_pickles_are_never_read(tmp_path: Path) -> None:
    """A set may have them; who asks for them is refused, and the other columns are read."""
    source = MDS(made(tmp_path))
    assert rows(source, "caption", "label") == [{"caption": b"hello", "label": 7}] * 2
    assert [member.name for member in source.members()] == ["image", "label", "caption"]
    with pytest.raises(ConfigError, match="member 'pickled': its encoding 'pkl' runs code, and is never unpickled"):
        Reads(source, "pickled")
    for options in ({"image": "pickled"}, {"label": "caption"}, {"label": "none"}):
        with pytest.raises(ConfigError, match=r"MDS\(.*\): .* must be a column of encoding"):
            MDS(tmp_path / "set", **options)


RAW = {"basename": "shard.00000.mds", "bytes": 1, "hashes": {}}
ZIP = {"basename": "shard.00000.mds.zstd", "bytes": 1, "hashes": {}}


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"raw_data": RAW | {"basename": "../x"}}, SourceError, "a shard's name must be that of a file in the folder"),
        ({"raw_data": RAW}, DataLostError, "bytes, but index.json says 1"),
        ({"samples": 3}, DataLostError, "2 samples, but index.json says 3"),
        ({"format": "csv"}, SourceError, "must describe MDS shards of version 2; .* format 'csv'"),
        ({"column_names": ["a"]}, SourceError, "must describe MDS shards"),
        ({"samples": -1}, SourceError, "a count or a size of -1"),
        (
            {"compression": "gz:7", "zip_data": ZIP, "raw_data": RAW | {"basename": "none.mds"}},
            SourceError,
            "found it compressed with gz; unpack all files",
        ),
    ],
)
def test_what_index_json_says_is_held_against_the_files(
    changes: dict[str, Any], error: type[SourceError], said: str, tmp_path: Path
) -> None:
    """A name that leaves the folder, sizes, counts, another format; shards that are there compressed alone."""
    with pytest.raises(error, match=said):
        MDS(made(tmp_path, **changes)).snapshot()


def test_a_compressed_set_that_was_unpacked_is_read(tmp_path: Path) -> None:
    """As one pass of StreamingDataset leaves it."""
    assert len(MDS(made(tmp_path, compression="zstd", zip_data=ZIP)).snapshot()) == 2


def test_any_damaged_index_json_gives_a_named_error_or_a_set(tmp_path: Path) -> None:
    """Of any byte flipped and of some cuts: never another error."""
    path = mds(tmp_path / "set", {"image": "jpeg", "label": "int"}, [[SAMPLE[:2]]]) / "index.json"
    whole = path.read_bytes()
    harms = [whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :] for at in range(len(whole))]
    errors = 0
    for harmed in [*harms, *(whole[:at] for at in range(0, len(whole), 9))]:
        path.write_bytes(harmed)
        try:
            source = MDS(path.parent)
            source.snapshot()
            Reads(source, "label").first(1)
        except DaliFeedError as error:
            errors += 1
            assert not isinstance(error, FormatError)
    assert errors > len(whole) / 3


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (frame(0, b"abc") + b"xxxxyyyy", "#1: .* at byte 12 of 20: a frame that begins with 78787878"),
        (frame(0, b"abc")[:-5], "#0: .* -?[0-9]+ of 3 bytes of a record|#0: .* of 8 bytes of a head"),
        (frame(1, b"abc") + frame(0, b"d"), "#0: .* part 0 of a record, inside of one"),
        (frame(3, b"abc"), "#0: .* part 3 of a record, outside of one"),
        (frame(1, b"abc") + frame(2, b"abc"), "#0: .* the end of the file, and not the last part of a record"),
        (frame(5, b"abc"), "#0: .* part 5 of a record"),
    ],
)
def test_frames_of_recordio_are_in_order(data: bytes, said: str, tmp_path: Path) -> None:
    """What is wrong is told with its record and byte."""
    (tmp_path / "a.rec").write_bytes(data)
    with pytest.raises(DataLostError, match=said):
        RecordIO(tmp_path / "a.rec", index_dir=tmp_path).snapshot()


def test_a_record_in_parts_is_put_together(tmp_path: Path) -> None:
    """With the mark between them that its writer left out."""
    whole = packed(b"ab" * 4, 3)
    (tmp_path / "a.rec").write_bytes(
        frame(1, whole[:8]) + frame(2, whole[8:16]) + frame(3, whole[16:]) + frame(0, whole)
    )
    found = rows(RecordIO(tmp_path / "a.rec", index_dir=tmp_path), "id", "image")
    mark = bytes.fromhex("0a23d7ce")
    assert found[0]["image"] == (whole[:8] + mark + whole[8:16] + mark + whole[16:])[24:]
    assert found[1]["image"] == b"ab" * 4


IMAGES = [jpeg(n % 16, 16 + n % 3 * 4) for n in range(22)]


def packed_set(folder: Path, hashes: tuple[str, ...] = ("sha1",), compression: str = "zstd:7") -> Path:
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
    packed = MDS(packed_set(tmp_path / "set"))
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
    assert_resumes_in_turn(MDS(packed_set(tmp_path / "set")), transform=crop, shuffle=shuffle, positions=3, absent=0)


@pytest.mark.parametrize("hashes", [("sha1",), ()], ids=["with hashes", "without"])
def test_any_damage_of_a_packed_shard_is_named(tmp_path: Path, hashes: tuple[str, ...]) -> None:
    """Of any byte flipped, and cut anywhere; without a hash at least no other error comes, and none that is cut."""
    folder = packed_set(tmp_path / "set", hashes)
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
            MDS(packed_set(tmp_path / name, compression=compression))


def test_zstandard_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two cures: the package, or the set unpacked."""
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(
        MissingPackageError, match=r"mds\.zstd: zstandard: .*pip install zstandard .*; or unpack all: zstd -d --rm "
    ):
        MDS(packed_set(tmp_path / "set"))
