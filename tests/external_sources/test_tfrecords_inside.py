"""Insides that contract/sources/test_tfrecords.py needs not: they go with what they test."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from kit.record_files import tfrecord
from kit.tf_example import example_bytes

from dali_feed.errors import ConfigError, DataLostError
from dali_feed.external_sources import TFRecords
from dali_feed.external_sources import file_source as kept_index
from dali_feed.external_sources import tfrecord as crc32c
from dali_feed.external_sources import tfrecord as tfrecord_frames
from dali_feed.external_sources.file_source import ReadWindow


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
    assert ReadWindow(pread).piece(len(data) - 3, 12) == data[-3:]


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
