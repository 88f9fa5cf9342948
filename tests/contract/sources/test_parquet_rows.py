"""Table: row groups as extents, columns as members, whatever options a file was written with."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kit.blocks import Reads, rows
from kit.images import QUICK, jpeg
from kit.inside import Extents
from kit.resumes import assert_resumes_in_turn

from dali_feed import BadRecords, DataLoader, Shuffle
from dali_feed.columns import Array, Bytes, Number, Text
from dali_feed.errors import ConfigError, DataLostError, SourceChangedError, SourceError
from dali_feed.external_sources import Table

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
    source = Table(written(tmp_path, **options))
    names = ("image.bytes", "image.path", "label", "text", "large", "dictionary", "x", "fixed")
    found = rows(source, "image", *names)
    given = {name: [row[name] for row in found] for name in ("image", *names)}
    assert given["image"] == IMAGES == given["image.bytes"]
    assert given["image.path"][:2] == [b"0.jpg", None]
    assert given["label"] == list(range(30))
    for name in ("text", "large", "dictionary"):
        assert [None if text is None else text.decode() for text in given[name]] == table()["text"].to_pylist()
    for name in ("x", "fixed"):
        assert given[name] == [[n, n + 0.5] for n in range(30)]


def test_images_and_labels_without_columns(tmp_path: Path) -> None:
    """Of several files by a pattern; row groups are shuffled in windows; a null costs its slot."""
    labels = pa.array([None if n == 5 else n for n in range(30)], pa.int64())
    half = table(label=labels)
    written(tmp_path, "a.parquet", half.slice(0, 13))
    written(tmp_path, "b.parquet", half.slice(13))
    source = Table(tmp_path / "*.parquet")
    assert (len(source), tuple(source.preset), source.where(2, 3)) == (30, ("image", "label"), "b.parquet#3")
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
    """Damage in a column that nobody asked for is not seen."""
    path = written(tmp_path, compression="none")
    at = pq.read_metadata(path).row_group(0).column(0)
    harm(path, at.dictionary_page_offset)
    source = Table(path)
    with DataLoader(source, 30, columns={"x": Array("x"), "n": Number("label"), "t": Text("large")}, device="cpu",
                    tuning=QUICK, bad=BadRecords(limit=1)) as loader:  # fmt: skip
        batch = next(iter(loader))
    assert batch["x"][6].tolist() == [6, 6.5]


def test_an_order_does_not_depend_on_the_columns(tmp_path: Path) -> None:
    """Whatever is asked of the rows, a window of them holds as many, in the same order."""
    source = Table(written(tmp_path))
    orders = []
    for columns in ({"n": Number("label")}, {"n": Number("label"), "b": Bytes("image.bytes")}):
        with DataLoader(source, 10, shuffle=True, columns=columns, device="cpu", tuning=QUICK) as loader:
            orders.append([batch["n"].tolist() for batch in loader])
            assert source.snapshot().record_bytes > len(IMAGES[0])
    assert orders[0] == orders[1]


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
    reader = Reads(Table(path), "image")
    assert bytes(reader.first(1, 1).values["image"][0]) == IMAGES[7]
    with pytest.raises(DataLostError, match=r"a.parquet#14: row group 2, rows 14..20, must be readable; found: "):
        reader.read(Extents.one(2, 3, 4))


def test_files_that_are_cut_changed_or_none(tmp_path: Path) -> None:
    """Wherever it is cut the file is refused by its name; one that changes under a reader too."""
    path = written(tmp_path)
    whole = Path(path).read_bytes()
    for size in range(0, len(whole), len(whole) // 9):
        Path(path).write_bytes(whole[:size])
        with pytest.raises(SourceError, match=r"a\.parquet: "):
            len(Table(path))
    Path(path).write_bytes(whole)
    reader = Reads(Table(path), "image")
    os.utime(path)
    with pytest.raises(SourceChangedError, match="make a new Table"):
        reader.read(Extents.one(0, 0, 1))
    written(tmp_path, "b.parquet", table().select(["label"]))
    with pytest.raises(ConfigError, match="must have the columns of"):
        len(Table(tmp_path / "*.parquet"))
    with pytest.raises(ConfigError, match="found no column 'image' among label; give image="):
        _ = Table(tmp_path / "b.parquet").preset
    with pytest.raises(ConfigError, match="label must name a column of integers; found string at 'text'"):
        _ = Table(path, label="text").preset


@pytest.mark.parametrize("shuffle", [Shuffle(window=2), Shuffle(3, 2), False], ids=["groups", "parts", "in order"])
def test_parquet_resumes_anywhere(tmp_path: Path, shuffle: bool | Shuffle) -> None:
    """A state taken after any batch gives the rest at world sizes 1 and 2; nothing is absent."""
    columns = {"x": Array("x", "float32", (2,)), "text": Text("text")}
    source = Table(written(tmp_path))
    assert_resumes_in_turn(source, columns=columns, shuffle=shuffle, positions=2, absent=0)


def test_files_of_both_kinds_are_one_table(tmp_path: Path) -> None:
    """A row group, then record batches of the same columns: rows in the order of the files, each by its own reader."""
    rows_there = pa.table({"n": list(range(10))})
    pq.write_table(rows_there.slice(0, 4), tmp_path / "a.parquet")
    with pa.ipc.new_stream(tmp_path / "b.arrow", rows_there.schema) as writer:
        writer.write_table(rows_there.slice(4), max_chunksize=3)
    source = Table([tmp_path / "a.parquet", tmp_path / "b.arrow"], image=None)
    assert source.snapshot().names == ("a.parquet[0]", "b.arrow[0]", "b.arrow[1]")
    assert [row["n"] for row in rows(source, "n")] == list(range(10))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two rows."""
    pq.write_table(pa.table({"image": [jpeg(0), jpeg(1)], "n": [1.5, 2.5]}), tmp_path / "a.parquet")
    return tmp_path / "a.parquet"


def test_a_table_that_was_sent_looks_at_its_own_files(path: Path) -> None:
    """Its footers stay behind: on another machine the files may be others, and are seen to be."""
    source = Table(path)
    mine = source.snapshot().fingerprint
    sent = pickle.dumps(source)
    assert pickle.loads(sent).snapshot().fingerprint == mine
    pq.write_table(pa.table({"image": [jpeg(2)], "n": [1.5]}), path)
    assert len(pickle.loads(sent).snapshot()) == 1
