"""Table: record batches of Arrow files, streams and Feather, however they were written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pytest
from kit.blocks import Reads
from kit.blocks import rows as rows_of
from kit.images import QUICK, jpeg
from kit.inside import Extents

from dali_feed import DataLoader
from dali_feed.columns import Array, Text
from dali_feed.errors import ConfigError, DataLostError, SourceChangedError, SourceError
from dali_feed.external_sources import Table
from dali_feed.testing import assert_resumes_anywhere

IMAGES = [jpeg(n) for n in range(30)]
TEXTS = [None if n == 4 else f"row {n}" for n in range(30)]


def table(*, dictionary: bool = False) -> pa.Table:
    """Images as Hugging Face keeps them, labels, texts with a null, and numbers in lists."""
    texts = pa.array(TEXTS)
    return pa.table(
        {
            "image": [{"bytes": image, "path": None if n % 2 else f"{n}.jpg"} for n, image in enumerate(IMAGES)],
            "label": pa.array(range(30), pa.int32()),
            "text": texts.dictionary_encode() if dictionary else texts,
            "large": pa.array(TEXTS, pa.large_string()),
            "x": pa.array([[n, n + 0.5] for n in range(30)], pa.list_(pa.float32(), 2)),
        }
    )


def written(path: Path, form: str = "file", compression: str | None = None, rows: Any = None) -> str:
    """A file with record batches of 7 rows."""
    rows = table() if rows is None else rows
    if form == "feather":
        pa.feather.write_feather(rows, path, compression=compression or "uncompressed", chunksize=7)
        return str(path)
    make = pa.ipc.new_file if form == "file" else pa.ipc.new_stream
    with make(path, rows.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(rows, max_chunksize=7)
    return str(path)


@pytest.mark.parametrize("dictionary", [False, True], ids=["plain", "dictionary"])
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("form", ["file", "stream", "feather"])
def test_columns_come_as_they_were_written(
    tmp_path: Path, form: str, compression: str | None, dictionary: bool
) -> None:
    """Of every form and compression; a null is a missing member."""
    source = Table(written(tmp_path / "a.arrow", form, compression, table(dictionary=dictionary)))
    names = ("image.bytes", "image.path", "label", "text", "large", "x")
    snapshot = source.snapshot()
    assert snapshot.random_access == (compression is None and not dictionary)
    assert (snapshot.stops - snapshot.starts).tolist() == [7, 7, 7, 7, 2]
    found = rows_of(source, "image", *names)
    given = {name: [row[name] for row in found] for name in ("image", *names)}
    assert given["image"] == IMAGES == given["image.bytes"]
    assert given["image.path"][:2] == [b"0.jpg", None]
    assert given["label"] == list(range(30))
    for name in ("text", "large"):
        assert [None if text is None else text.decode() for text in given[name]] == TEXTS
    assert given["x"] == [[n, n + 0.5] for n in range(30)]


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_arrow_files_resume_anywhere(tmp_path: Path, compression: str | None) -> None:
    """A state taken after any batch gives the rest at world sizes 1 and 2: single rows of a map, or whole batches."""
    columns = {"x": Array("x", "float32", (2,)), "text": Text("large")}
    source = Table(written(tmp_path / "a.arrow", "stream", compression))
    assert_resumes_anywhere(source, columns=columns, shuffle=True, positions=2, absent=0)


def test_images_and_labels_without_columns(tmp_path: Path) -> None:
    """Of several files by a pattern; rows are named by file and number."""
    written(tmp_path / "a.arrow", rows=table().slice(0, 13))
    written(tmp_path / "b.arrow", "stream", rows=table().slice(13))
    source = Table(tmp_path / "*.arrow")
    assert (len(source), tuple(source.preset), source.where(2, 3)) == (30, ("image", "label"), "b.arrow#3")
    with DataLoader(source, 10, shuffle=True, device="cpu", tuning=QUICK) as loader:
        batches = list(loader)
    assert sorted(n for _, found in batches for n in found.tolist()) == list(range(30))
    assert batches[0][0].shape == (10, 3, 16, 16)


@pytest.mark.parametrize("form", ["file", "stream"])
def test_a_cut_file_is_refused(tmp_path: Path, form: str) -> None:
    """Wherever it is cut, between two batches too, and whatever stands behind its end."""
    path = Path(written(tmp_path / "a.arrow", form))
    whole = path.read_bytes()
    for size in {*range(0, len(whole), len(whole) // 20), len(whole) - 8, len(whole) - 1}:
        path.write_bytes(whole[:size])
        with pytest.raises(SourceError, match=r"a\.arrow: "):
            len(Table(path))
    path.write_bytes(whole + b"more")
    with pytest.raises(DataLostError, match=r"a\.arrow: the messages of an Arrow file must be whole"):
        len(Table(path))


@pytest.mark.parametrize("compression", [None, "lz4"])
@pytest.mark.parametrize("form", ["file", "stream"])
def test_a_flipped_byte_gives_rows_or_a_named_error(tmp_path: Path, form: str, compression: str | None) -> None:
    """Offsets that lead nowhere are not followed; every error is one of ours and has the file's name."""
    path = Path(written(tmp_path / "a.arrow", form, compression, table().select(["label", "large", "x"])))
    whole, refused = path.read_bytes(), 0
    for at in range(0, len(whole), 61):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        source = Table(path, image=None)
        try:
            rows_of(source, *(member.name for member in source.members()))
        except SourceError as error:
            refused += 1
            assert "a.arrow" in str(error)
    assert refused > 5


def test_a_damaged_batch_is_named(tmp_path: Path) -> None:
    """It concerns all of its rows, so it is an error with file, batch and rows; the other batches are whole."""
    path = Path(written(tmp_path / "a.arrow", "stream", rows=table().select(["large"])))
    whole = path.read_bytes()
    offsets = np.arange(0, 48, 6).tobytes()  # "row 14" to "row 20"
    assert whole.count(offsets) == 2  # and those of the batch behind
    path.write_bytes(whole.replace(offsets, offsets[:-8] + b"\x7f" * 8, 1))
    reader = Reads(Table(path, image=None), "large")
    assert bytes(reader.first(1, 1).values["large"][0]) == b"row 7"
    with pytest.raises(DataLostError, match=r"a\.arrow#14: record batch 2, rows 14\.\.20, must be readable; found: "):
        reader.read(Extents.one(2, 3, 4))


def test_files_that_change_or_differ(tmp_path: Path) -> None:
    """One that changes under a reader is told, and one of other columns; equal headers are told from other numbers."""
    path = written(tmp_path / "a.arrow")
    reader = Reads(Table(path), "image")
    os.utime(path)
    with pytest.raises(SourceChangedError, match="make a new Table"):
        reader.read(Extents.one(0, 0, 1))
    written(tmp_path / "b.arrow", rows=table().select(["label"]))
    with pytest.raises(ConfigError, match="must have the columns of"):
        len(Table(tmp_path / "*.arrow"))
    prints = []
    for number in (1, 2):
        numbers = written(tmp_path / "n.arrow", rows=pa.table({"n": [number]}))
        prints.append(Table(numbers, image=None).snapshot().fingerprint)
    assert prints[0] != prints[1]


def test_a_stream_may_replace_a_dictionary(tmp_path: Path) -> None:
    """A batch's texts are those of the dictionaries before it."""
    parts = [pa.array(texts).dictionary_encode() for texts in (["a", "b"], ["c", "d"])]
    path = tmp_path / "a.arrow"
    with pa.ipc.new_stream(path, pa.schema({"t": parts[0].type})) as writer:
        for part in parts:
            writer.write_batch(pa.record_batch({"t": part}))
    assert [row["t"] for row in rows_of(Table(path, image=None), "t")] == [b"a", b"b", b"c", b"d"]


def test_texts_and_bytes_as_views_are_members(tmp_path: Path) -> None:
    """Newer writers of Arrow make them: `string_view` and `binary_view`, in files and in memory."""
    texts, images = pa.array(TEXTS).cast(pa.string_view()), pa.array(IMAGES).cast(pa.binary_view())
    whole = pa.table({"text": texts, "image": images})
    pairs = zip(TEXTS, IMAGES, strict=True)
    wanted = [{"text": None if text is None else text.encode(), "image": image} for text, image in pairs]
    for source in (Table(written(tmp_path / "a.arrow", rows=whole)), Table(whole)):
        assert [member.name for member in source.members()] == ["text", "image"]
        assert rows_of(source, "text", source.image_of("image")) == wanted
