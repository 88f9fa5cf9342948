"""Insides that contract/sources/test_mds.py needs not: they go with what they test."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.images import jpeg
from kit.record_files import frame, mds, packed

from dali_feed.cli.targets import Access, sources
from dali_feed.errors import FormatError
from dali_feed.external_sources import MDS, FileList, RecordIO
from dali_feed.external_sources.mds import MdsSample
from dali_feed.external_sources.recordio import RECORDIO, IRHeader
from dali_feed.formats import bound
from dali_feed.records import Extents

COLUMNS = {"image": "jpeg", "label": "int", "pickled": "pkl", "caption": "str"}
SAMPLE = [jpeg(0), struct.pack("<q", 7), b"\x80\x04.", b"hello"]


def made(folder: Path, **changes: Any) -> Path:
    """A set of one shard, with changes to what index.json says of it."""
    path = mds(folder / "set", COLUMNS, [[SAMPLE, SAMPLE]]) / "index.json"
    told = json.loads(path.read_text())
    told["shards"][0] |= changes
    path.write_text(json.dumps(told))
    return path.parent


SCHEMA = MdsSample(
    ("n", "text", "a", "b", "x", "f"),
    ("uint16", "str_int", "ndarray", "ndarray:int16", "ndarray:float32:2", "str_float"),
    (2, None, None, None, 8, None),
)
VALUES = [
    struct.pack("<H", 60000),
    b"-12",
    bytes([33, 1 << 2, 2]) + np.array([5, -6], "<i4").tobytes(),
    bytes([2 << 2 | 1, 1, 0, 2, 0]) + np.array([7, 8], "<i2").tobytes(),
    np.array([0.5, 1], "<f4").tobytes(),
    b"1e3",
]
ROW = np.array([3, len(VALUES[2]), len(VALUES[3]), 3], "<u4").tobytes() + b"".join(VALUES)


def test_values_by_their_encodings() -> None:
    """Numbers, numbers in text, arrays with and without dtype and shape in front."""
    n, text, a, b, x, f = bound(SCHEMA, SCHEMA.names)(ROW)
    assert (n, text, f) == (60000, -12, 1000.0)
    assert (a.dtype, a.tolist()) == (np.int32, [5, -6])
    assert (b.dtype, b.tolist()) == (np.int16, [[7, 8]])
    assert x.tolist() == [0.5, 1]
    with pytest.raises(FormatError, match="columns must fill its [0-9]+ bytes; found sizes for"):
        bound(SCHEMA, ["n"])(ROW + b"x")


@given(
    at=st.integers(0, len(ROW) - 1), by=st.integers(0, 255), cut=st.integers(0, len(ROW)), more=st.binary(max_size=9)
)
def test_any_bytes_give_values_or_a_fault(at: int, by: int, cut: int, more: bytes) -> None:
    """Of a sample, and of what MXNet has before a record."""
    harmed = bytearray(ROW)
    harmed[at] ^= by
    for value in (bytes(harmed[:cut]) + more, more):
        for form, names in ((SCHEMA, SCHEMA.names), (IRHeader(), IRHeader.names)):
            try:
                found = bound(form, names)(value)
            except FormatError as error:
                assert not isinstance(error.__cause__, MemoryError)
            else:
                assert sum(getattr(each, "nbytes", 0) for each in found) <= len(value) + 8 * 6


def test_a_folder_is_known_by_its_index(tmp_path: Path) -> None:
    """To the command line; one of images that has some other index.json stays one of images."""
    (found,) = sources([str(made(tmp_path))], Access())
    assert isinstance(found, MDS)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "0.jpg").write_bytes(jpeg(0))
    (tmp_path / "other" / "index.json").write_text('{"shards": [{"format": "csv"}, 3]}')
    (found,) = sources([str(tmp_path / "other")], Access())
    assert isinstance(found, FileList)


def test_a_record_in_parts_is_put_together(tmp_path: Path) -> None:
    """With the mark between them that its writer left out; parts that do not fit are a bad record."""
    whole = packed(b"ab" * 4, 3)
    (tmp_path / "a.rec").write_bytes(
        frame(1, whole[:8]) + frame(2, whole[8:16]) + frame(3, whole[16:]) + frame(0, whole)
    )
    block = RecordIO(tmp_path / "a.rec", index_dir=tmp_path).giving(None, ("id", "image")).reader()
    found = block.read(Extents.one(0, 0, 2))
    mark = bytes.fromhex("0a23d7ce")
    assert bytes(found.fields["image"][0]) == (whole[:8] + mark + whole[8:16] + mark + whole[16:])[24:]
    assert bytes(found.fields["image"][1]) == b"ab" * 4
    assert RECORDIO.value(memoryview(b"\x05\0\0\x20abc")) == (
        "the last part of the record does not end where the record ends: the file was not written to its end"
    )
