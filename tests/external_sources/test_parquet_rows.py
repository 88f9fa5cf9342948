"""ParquetRows: row groups as extents, columns as members, whatever options a file was written with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from blocks import taken
from images import QUICK, jpeg

from dali_feed import BadRecords, DataLoader
from dali_feed.cli.inspect import inspect_all
from dali_feed.cli.targets import Access
from dali_feed.cli.verify import verify_all
from dali_feed.columns import Array, Number, Text
from dali_feed.errors import ConfigError, DataLostError, SourceChangedError, SourceError
from dali_feed.external_sources import ParquetRows
from dali_feed.plan import Shuffle
from dali_feed.records.extents import Extents
from dali_feed.testing import assert_resumes_anywhere

IMAGES = [jpeg(n) for n in range(30)]


def table(**columns: Any) -> pa.Table:
    """Images as Hugging Face keeps them, labels, texts of several kinds with a null, and numbers in lists."""
    texts = [None if n == 4 else f"row {n}" for n in range(30)]
    kinds: dict[str, Any] = {
        "image": [{"bytes": image, "path": None if n % 2 else f"{n}.jpg"} for n, image in enumerate(IMAGES)],
        "label": pa.array(range(30), pa.int32()),
        "text": texts,
        "large": pa.array(texts, pa.large_string()),
        "dictionary": pa.array(texts).dictionary_encode(),
        "x": pa.array([[n, n + 0.5] for n in range(30)], pa.list_(pa.float32())),
        "fixed": pa.array([[n, n + 0.5] for n in range(30)], pa.list_(pa.float32(), 2)),
    }
    return pa.table(kinds | columns)


def written(folder: Path, name: str = "a.parquet", rows: Any = None, **options: Any) -> str:
    """A file with row groups of 7 rows, unless told."""
    pq.write_table(table() if rows is None else rows, folder / name, **({"row_group_size": 7} | options))
    return str(folder / name)


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "none", "use_dictionary": False},
        {"compression": "snappy", "data_page_version": "2.0", "write_page_checksum": True},
        {"compression": "zstd", "row_group_size": 1000, "data_page_size": 64},
        {"compression": "gzip", "row_group_size": 1, "store_schema": False},
    ],
    ids=str,
)
def test_columns_come_as_they_were_written(tmp_path: Path, options: dict[str, Any]) -> None:
    """Of every option: texts, dictionaries, lists, and the parts of structs; a null is a missing member."""
    source = ParquetRows(written(tmp_path, **options))
    names = ("image.bytes", "image.path", "label", "text", "large", "dictionary", "x", "fixed")
    reader, snapshot = source.giving("image", names).reader(), source.snapshot()
    groups = len(snapshot.starts)
    block = reader.read(Extents(np.arange(groups), snapshot.starts, snapshot.stops))
    assert [taken(view) for view in block.payloads] == IMAGES == [bytes(v) for v in block.fields["image.bytes"]]
    assert [None if v is None else bytes(v) for v in block.fields["image.path"]][:2] == [b"0.jpg", None]
    assert list(block.fields["label"]) == list(range(30))
    for name in ("text", "large", "dictionary"):
        given = [None if view is None else bytes(view).decode() for view in block.fields[name]]
        assert given == table()["text"].to_pylist()
    for name in ("x", "fixed"):
        assert [row.tolist() for row in block.fields[name]] == [[n, n + 0.5] for n in range(30)]


def test_images_and_labels_without_columns(tmp_path: Path) -> None:
    """Of several files by a pattern; row groups are shuffled in windows; a null costs its slot."""
    labels = pa.array([None if n == 5 else n for n in range(30)], pa.int64())
    half = table(label=labels)
    written(tmp_path, "a.parquet", half.slice(0, 13))
    written(tmp_path, "b.parquet", half.slice(13))
    source = ParquetRows(tmp_path / "*.parquet")
    assert (len(source), source.fields, source.where(2, 3)) == (30, ("label",), "b.parquet#3")
    snapshot = source.snapshot()
    assert (snapshot.names[1], snapshot.extent, snapshot.random_access) == ("a.parquet[1]", 7, False)
    with DataLoader(
        source, 10, shuffle=Shuffle(window=2), device="cpu", tuning=QUICK, bad=BadRecords(limit=1), info=True
    ) as loader:
        batches = list(loader)
    given = [n for _, found, info in batches for n, ok in zip(found.tolist(), info.ok.tolist(), strict=True) if ok]
    assert sorted(given) == [n for n in range(30) if n != 5] != given
    assert batches[0][0].shape == (10, 3, 16, 16)


def test_only_the_columns_asked_for_are_read(tmp_path: Path) -> None:
    """Damage in a column that nobody asked for is not seen, and sizes are those of what is read."""
    path = written(tmp_path, compression="none")
    at = pq.read_metadata(path).row_group(0).column(0)
    harm(path, at.dictionary_page_offset)
    source = ParquetRows(path)
    with DataLoader(source, 30, columns={"x": Array("x"), "n": Number("label"), "t": Text("large")}, device="cpu",
                    tuning=QUICK, bad=BadRecords(limit=1)) as loader:  # fmt: skip
        batch = next(iter(loader))
    assert batch["x"][6].tolist() == [6, 6.5]
    assert source.giving(None, ("label",)).snapshot().record_bytes < source.snapshot().record_bytes


def harm(path: str, at: int) -> None:
    """Turn all bits of some bytes of the page that begins there."""
    data = bytearray(Path(path).read_bytes())
    for k in range(at + 100, at + 104):
        data[k] ^= 0xFF
    Path(path).write_bytes(data)


@pytest.mark.parametrize("options", [{"compression": "snappy"}, {"compression": "none"}], ids=str)
def test_a_damaged_row_group_is_named(tmp_path: Path, options: dict[str, Any]) -> None:
    """It concerns all of its rows, so it is an error with file, group and rows; the other groups are whole."""
    path = written(tmp_path, write_page_checksum=True, **options)
    at = pq.read_metadata(path).row_group(2).column(0)
    harm(path, at.dictionary_page_offset)
    reader = ParquetRows(path).giving("image", ()).reader()
    assert taken(reader.read(Extents.one(1, 0, 1)).payloads[0]) == IMAGES[7]
    with pytest.raises(DataLostError, match=r"a.parquet#14: row group 2, rows 14..20, must be readable; found: "):
        reader.read(Extents.one(2, 3, 4))


def test_files_that_are_cut_changed_or_none(tmp_path: Path) -> None:
    """Wherever it is cut the file is refused by its name; one that changes under a reader too."""
    path = written(tmp_path)
    whole = Path(path).read_bytes()
    for size in range(0, len(whole), len(whole) // 9):
        Path(path).write_bytes(whole[:size])
        with pytest.raises(SourceError, match=r"a\.parquet: "):
            len(ParquetRows(path))
    Path(path).write_bytes(whole)
    reader = ParquetRows(path).giving("image", ()).reader()
    os.utime(path)
    with pytest.raises(SourceChangedError, match="make a new ParquetRows"):
        reader.read(Extents.one(0, 0, 1))
    written(tmp_path, "b.parquet", table().select(["label"]))
    with pytest.raises(ConfigError, match="must have the columns of"):
        len(ParquetRows(tmp_path / "*.parquet"))
    with pytest.raises(ConfigError, match="found no column 'image' among label; give image="):
        ParquetRows(tmp_path / "b.parquet").reader()
    with pytest.raises(ConfigError, match="label must name a column of integers; found string at 'text'"):
        _ = ParquetRows(path, label="text").fields


@pytest.mark.parametrize("shuffle", [Shuffle(window=2), Shuffle(3, 2), False], ids=["groups", "parts", "in order"])
def test_parquet_resumes_anywhere(tmp_path: Path, shuffle: bool | Shuffle) -> None:
    """A state taken after any batch gives the rest at world sizes 1 and 2; nothing is absent."""
    columns = {"x": Array("x", "float32", (2,)), "text": Text("text")}
    source = ParquetRows(written(tmp_path))
    assert_resumes_anywhere(source, columns=columns, shuffle=shuffle, positions=2, absent=0)


def test_inspect_and_verify_read_parquet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By its ending; members are listed, and every record is looked at."""
    images = [{"bytes": b"no image" if n == 8 else image, "path": "x.jpg"} for n, image in enumerate(IMAGES)]
    path = written(tmp_path, rows=table(image=images))
    assert inspect_all([path], Access(), sample=30) == (1, 0)
    assert verify_all([path], Access(), readers=1) == 1
    told = capsys.readouterr().out
    assert "a.parquet#8: " in told
    assert "dictionary" in told
