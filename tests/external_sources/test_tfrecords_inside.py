"""Insides that contract/sources/test_tfrecords.py needs not: they go with what they test."""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google_crc32c import value as theirs
from hypothesis import given
from hypothesis import strategies as st
from kit.record_files import tfrecord
from kit.tf_example import example_bytes

from dali_feed.errors import ConfigError, DataLostError
from dali_feed.external_sources import TFRecords
from dali_feed.external_sources.record_files import crc32c, kept_index, tfrecord_frames
from dali_feed.external_sources.record_files.frames import Window
from dali_feed.records import Extents


def source(folder: Path, records: list[Any], **options: Any) -> TFRecords:
    """A file of records: bytes, or features of an Example."""
    data = tfrecord(record if isinstance(record, bytes) else example_bytes(record) for record in records)
    (folder / "a.tfrecord").write_bytes(data)
    return TFRecords(folder / "a.tfrecord", index_dir=folder / "index", **options)


def block(found: Any, count: int) -> Any:
    """Its first records."""
    return found.reader().read(Extents.one(0, 0, count))


@given(data=st.binary(max_size=5000))
def test_the_crc_is_the_same_without_a_package(data: bytes) -> None:
    """By NumPy, of any length; that of rows too."""
    assert crc32c.by_numpy(data) == crc32c.crc32c(memoryview(data)) == theirs(data)
    rows = np.frombuffer(data[: len(data) // 8 * 8], np.uint8).reshape(-1, 8)
    assert crc32c.crc32c_rows(rows).tolist() == [theirs(row.tobytes()) for row in rows]


def test_the_crc_of_known_texts() -> None:
    """Of RFC 3720, appendix B.4; and of more than is looked up at once."""
    assert crc32c.by_numpy(bytes(32)) == 0x8A9136AA
    assert crc32c.by_numpy(bytes(range(32))) == 0x46DD794E
    long = bytes(range(251)) * 10_000
    assert crc32c.by_numpy(long) == theirs(long)


def test_without_the_package_numpy_computes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing goes unchecked for want of it."""
    crc32c._quickest.cache_clear()
    monkeypatch.setitem(sys.modules, "google_crc32c", None)  # as if it were not installed
    try:
        assert crc32c._quickest() is crc32c.by_numpy
    finally:
        crc32c._quickest.cache_clear()


def test_a_record_whose_crc_is_wrong_is_a_bad_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone; its neighbours are read, with the package and without."""
    made = source(tmp_path, [{"image": b"abc", "label": n} for n in range(3)])
    data = bytearray((tmp_path / "a.tfrecord").read_bytes())
    data[len(data) // 2] ^= 32
    (tmp_path / "a.tfrecord").write_bytes(data)
    reasons = ["the record's CRC is wrong: its bytes are not what was written"]
    for by in (crc32c.crc32c, crc32c.by_numpy):
        monkeypatch.setattr(tfrecord_frames, "crc32c", by)
        found = block(made, 3)
        assert (list(found.faults), list(found.faults.values())) == ([1], reasons)
        assert found.fields["label"].tolist() == [0, -1, 2]


def test_a_length_that_cannot_be_costs_no_memory(tmp_path: Path) -> None:
    """Its CRC is right, and the file is not that long."""
    size = struct.pack("<Q", 1 << 62)
    (tmp_path / "a.tfrecord").write_bytes(size + struct.pack("<I", crc32c.masked(crc32c.crc32c(size))) + b"abc")
    with pytest.raises(DataLostError, match=r"#0: .* bytes of a record"):
        TFRecords(tmp_path / "a.tfrecord", index_dir=tmp_path).snapshot()


def test_large_records_are_stepped_over_and_small_ones_read_in_one_go(tmp_path: Path) -> None:
    """An index costs little of a file of large records."""
    for size, count, most in ((100_000, 30, 31 * 4096), (20, 20_000, 800_000)):
        (tmp_path / "a").write_bytes(tfrecord([bytes(size)] * count))
        data, reads = (tmp_path / "a").read_bytes(), list[int]()

        def pread(size: int, at: int, data: bytes = data, reads: list[int] = reads) -> bytes:
            piece = data[at : at + size]
            reads.append(len(piece))
            return piece

        at, _ = tfrecord_frames.TFRECORD.frames(pread, len(data))
        assert len(at) == count
        assert sum(reads) <= most
        assert len(reads) <= count + 1
    assert len(reads) < 20
    assert Window(pread).piece(len(data) - 3, 12) == data[-3:]


def test_several_files_are_named_by_a_pattern(tmp_path: Path) -> None:
    """In order; each once; a kept index of one that was written again is not used."""
    for n in range(3):
        (tmp_path / f"t-{n:05d}-of-00003").write_bytes(tfrecord([example_bytes({"image": b"abc", "label": n})]))
    made = TFRecords(str(tmp_path / "t-{00000..00002}-of-00003"))
    assert made.snapshot().names == tuple(f"t-{n:05d}-of-00003" for n in range(3))
    with pytest.raises(ConfigError, match="TFRecords: each file may be named once"):
        TFRecords([str(tmp_path / "t-*"), tmp_path / "t-00001-of-00003"])
    with pytest.raises(ConfigError, match="TFRecords: must name at least one file"):
        TFRecords([])
    path = tmp_path / "t-00001-of-00003"
    before = kept_index.load(str(path), tfrecord_frames.TFRECORD)
    path.write_bytes(tfrecord([b"abcd"] * 2))
    assert len(before.at) == 1
    assert len(kept_index.load(str(path), tfrecord_frames.TFRECORD).at) == 2
