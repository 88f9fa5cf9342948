"""Insides of files of records: indexes that are never believed, few reads, damaged values, and packed shards."""

from __future__ import annotations

import os
import struct
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from kit.blocks import Reads
from kit.record_files import frame, packed, tfrecord

from dali_feed.errors import DataLostError, SourceDeniedError
from dali_feed.external_sources import Table, TFRecords
from dali_feed.external_sources.file_source import load
from dali_feed.external_sources.index import ReadWindow
from dali_feed.external_sources.mds import MdsFile, PackedFile, columns_of, decoder
from dali_feed.external_sources.recordio import RecordIO
from dali_feed.external_sources.tfrecord import TFRECORD, crc32c, masked
from dali_feed.records.extents import Extents
from dali_feed.records.pieces import Pieces
from dali_feed.storage.store import LOCAL

pytestmark = pytest.mark.usefixtures("cache_home")


def test_an_index_is_built_once_and_never_believed_blindly(tmp_path: Path) -> None:
    """Kept beside the file; flipped or cut anywhere it is built anew; a file of others of that name stays."""
    path = tmp_path / "a.tfrecord"
    path.write_bytes(tfrecord([b"abc", b"", b"x" * 50]))
    wanted = load(str(path), TFRECORD)
    home = tmp_path / "a.tfrecord.dfidx"
    whole = home.read_bytes()
    never = replace(TFRECORD, frames=None)  # type: ignore[arg-type]
    assert load(str(path), never).digest == wanted.digest
    flipped = [whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :] for at in range(len(whole))]
    for harmed in (*flipped, whole[:-8], b""):
        home.write_bytes(harmed)
        found = load(str(path), TFRECORD)
        assert (found.at.tolist(), found.size.tolist()) == (wanted.at.tolist(), wanted.size.tolist())
    home.write_bytes(b"somebody else's")
    assert load(str(path), TFRECORD).digest == wanted.digest
    assert home.read_bytes() == b"somebody else's"
    assert load(str(path), never).digest == wanted.digest  # from the user's cache
    (tmp_path / "file").touch()
    with pytest.raises(SourceDeniedError, match="index_dir=.* must be a folder that can be written"):
        load(str(path), TFRECORD, tmp_path / "file")
    path.write_bytes(tfrecord([b"abcd"] * 2))
    assert len(load(str(path), TFRECORD).at) == 2


def test_large_records_are_stepped_over_and_small_ones_read_in_one_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index costs little of a file of large records; a length that cannot be costs no memory."""
    real, reads = os.pread, list[int]()

    def counted(fd: int, size: int, at: int) -> bytes:
        reads.append(len(piece := real(fd, size, at)))
        return piece

    monkeypatch.setattr(os, "pread", counted)
    for size, count, most in ((100_000, 30, 31 * 4096), (20, 5_000, 200_000)):
        (tmp_path / "a").write_bytes(tfrecord([bytes(size)] * count))
        data = (tmp_path / "a").read_bytes()
        reads.clear()
        file = LOCAL.open(str(tmp_path / "a"))
        at, _ = TFRECORD.frames(ReadWindow(file), len(data))
        assert len(at) == count
        assert sum(reads) <= most
        assert len(reads) <= count + 1
    assert len(reads) < 8
    assert ReadWindow(file)(len(data) - 3, 12) == data[-3:]
    file.close()
    length = struct.pack("<Q", 1 << 62)
    (tmp_path / "a.tfrecord").write_bytes(length + struct.pack("<I", masked(crc32c(length))) + b"abc")
    with pytest.raises(DataLostError, match=r"#0: .* bytes of a record"):
        TFRecords(tmp_path / "a.tfrecord", index_dir=tmp_path).snapshot()


ENCODINGS = ("uint16", "str_int", "ndarray", "ndarray:int16", "ndarray:float32:2", "str_float")
SIZES = (2, None, None, None, 8, None)
VALUES = [
    struct.pack("<H", 60000),
    b"-12",
    bytes([33, 1 << 2, 2]) + np.array([5, -6], "<i4").tobytes(),
    bytes([2 << 2 | 1, 1, 0, 2, 0]) + np.array([7, 8], "<i2").tobytes(),
    np.array([0.5, 1], "<f4").tobytes(),
    b"1e3",
]
ROW = np.array([3, len(VALUES[2]), len(VALUES[3]), 3], "<u4").tobytes() + b"".join(VALUES)


def values_of(*samples: bytes) -> tuple[list[list[Any]], dict[int, str]]:
    """The values of each column of MDS samples, and why a sample has none."""
    sizes = np.array([len(sample) for sample in samples], np.int64)
    pieces = Pieces([memoryview(b"".join(samples))], np.zeros_like(sizes), np.cumsum(sizes) - sizes, sizes)
    reasons: dict[int, str] = {}
    columns = columns_of(pieces, SIZES, reasons)
    decoders = [decoder(encoding) for encoding in ENCODINGS]
    return [list(decode(column, reasons)) for decode, column in zip(decoders, columns, strict=True) if decode], reasons


@given(value=st.binary(max_size=60))
def test_any_header_of_mxnet_gives_members_or_a_fault(value: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Of a record that is too short for its header or for the labels that it announces; its neighbour is whole."""
    path = tmp_path_factory.mktemp("rec") / "a.rec"
    path.write_bytes(frame(0, value) + frame(0, packed(b"good", 3.0)))
    with closing(Reads(RecordIO(path), "image", "label", "id")) as reads:
        block = reads.first(2)
        assert set(block.faults) <= {0}
        assert (bytes(block.values["image"][1]), float(block.values["label"][1])) == (b"good", 3.0)
        if not block.faults:
            assert len(block.values["image"][0]) <= len(value)


@given(
    at=st.integers(0, len(ROW) - 1), by=st.integers(0, 255), cut=st.integers(0, len(ROW)), more=st.binary(max_size=9)
)
def test_any_bytes_give_values_or_a_fault(at: int, by: int, cut: int, more: bytes) -> None:
    """Of a sample; those beside it are as they were."""
    harmed = bytearray(ROW)
    harmed[at] ^= by
    for value in (bytes(harmed[:cut]) + more, more):
        columns, reasons = values_of(ROW, value, ROW)
        assert set(reasons) <= {1}
        assert columns[0][0] == columns[0][2] == 60000
        if not reasons:
            assert sum(getattr(column[1], "nbytes", 0) for column in columns) <= len(value) + 8 * 6


@pytest.mark.parametrize("raw", [993, 1009])
def test_a_shard_unpacks_to_what_index_json_says(tmp_path: Path, raw: int) -> None:
    """Neither more nor less: a small file must not fill the memory."""
    path, whole = tmp_path / "a.zstd", zstandard.ZstdCompressor(7).compress(bytes(1000))
    path.write_bytes(whole)
    file = PackedFile(LOCAL.open(str(path)), MdsFile("a", raw, {}), MdsFile(str(path), len(whole), {}))
    with pytest.raises(DataLostError, match="bytes in it, but index.json says"):
        file.read(memoryview(bytearray(9)), 1)


def test_a_footer_is_parsed_once_however_many_files_a_shuffle_goes_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More files than few are read in turns: none of their footers is parsed again."""
    for n in range(20):
        pq.write_table(pa.table({"n": [n, n]}), tmp_path / f"{n:02d}.parquet", row_group_size=1)
    source, parsed, real = Table(str(tmp_path / "*.parquet"), image=None), list[str](), pq.read_metadata

    def counted(path: str) -> Any:
        parsed.append(path)
        return real(path)

    monkeypatch.setattr(pq, "read_metadata", counted)
    reader = Reads(source, "n")
    parsed.clear()  # those that the source looked at
    every = np.concatenate([np.arange(0, 40, 2), np.arange(1, 40, 2)])
    block = reader.read(Extents(every, np.zeros(40, np.int64), np.ones(40, np.int64)))
    assert block.values["n"].tolist() == [*range(20)] * 2
    assert len(parsed) == 20
