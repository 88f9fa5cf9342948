"""What users give a source by mistake: an error that names the argument, the rule and what was found."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from kit.blocks import rows

from dali_feed.columns import Array, Boxes, Bytes, Number, Text
from dali_feed.columns.columns import Columns
from dali_feed.errors import ConfigError, DaliFeedError, SourceNotFoundError
from dali_feed.external_sources import Arrays, FileList, Mix, ShardSet, Table
from dali_feed.packing.sinks import write_shard

ROWS = np.arange(6).reshape(3, 2)
THREE: Any = 3
HALF: Any = 0.5
NONE: Any = None
LETTER: Any = "a"
ALONE: Any = Text("row")
LISTED: Any = [".jpg"]
SIDES: Any = np.array([2, 3])
RAGGED = [[1], [2, 3], [4]]
TABLE = pa.table({"image": [b"x"], "label": [1]})
NO_TABLE = "^Table: must be a pyarrow Table, or paths of files; found "


def parquet(folder: Path) -> str:
    """A file of one row."""
    pq.write_table(TABLE, folder / "a.parquet")
    return str(folder / "a.parquet")


def gone(folder: Path) -> Arrays:
    """A map whose file is not there any more."""
    ROWS.tofile(folder / "a.bin")
    array = np.memmap(folder / "a.bin", dtype=ROWS.dtype, mode="r", shape=ROWS.shape)
    os.unlink(folder / "a.bin")
    return Arrays(array)


def in_a_bucket(options: dict[str, Any]) -> list[Any]:
    """Its rows, if there were any."""
    return rows(ShardSet("s3://b/a.tar", storage_options=options))


MISTAKES: list[tuple[Callable[[Path], Any], type[DaliFeedError], str]] = [
    (lambda _: Array("x", "float32", THREE), ConfigError, "shape must be a tuple of positive ints.*found 3"),
    (lambda _: Array("x", "float32", SIDES), ConfigError, "shape must be a tuple of positive ints"),
    (lambda _: Array("x", "f4,,f4", (3,)), ConfigError, "dtype must be a little-endian number type.*found 'f4,,f4'"),
    (lambda _: Number("x", "f4,,f4"), ConfigError, "dtype must be an int, float or bool type.*found 'f4,,f4'"),
    (lambda _: Boxes("x", min_size=LETTER), ConfigError, "min_size must be a number above 0, or None; found 'a'"),
    (lambda _: FileList(["a", "b", "c"], RAGGED), ConfigError, "FileList: labels must be .* different lengths"),
    (
        lambda _: FileList(["a"], np.ma.masked_array([7], [True])),
        ConfigError,
        "FileList: labels must .* masked array; ",
    ),
    (lambda _: Table(TABLE, rows=np.ma.masked_array([0], [True])), ConfigError, "rows must be .* found a masked array"),
    (lambda _: FileList(["a"], [0], classes=THREE), ConfigError, "FileList: classes must be a sequence of names"),
    (lambda _: FileList(["a\0b"]).snapshot(), SourceNotFoundError, "the files must exist"),
    (lambda folder: FileList.from_folder(folder, LISTED), ConfigError, r"tuple of such; found \['.jpg'\]"),
    (lambda folder: FileList.from_folder(folder, NONE), ConfigError, "extensions must be a text"),
    (lambda _: Arrays(ROWS, label=RAGGED).snapshot(), ConfigError, "label must be a flat sequence of integers"),
    (lambda _: Arrays("a.bin", "f4,,f4", 2), ConfigError, "dtype: rows must hold .* found 'f4,,f4'"),
    (lambda _: Arrays("a.bin", "u1", HALF), ConfigError, "shape must be that of one row, positive ints; found 0.5"),
    (lambda _: Arrays(np.ma.masked_array(ROWS, ROWS > 3)).snapshot(), ConfigError, r"masked array; fill it: array.fil"),
    (lambda folder: gone(folder).snapshot(), SourceNotFoundError, "a.bin: the file of a map must be there"),
    (lambda _: Table(TABLE, rows=RAGGED), ConfigError, "rows must be a flat sequence of integers"),
    (lambda _: Table(TABLE.to_batches()[0]), ConfigError, NO_TABLE + "RecordBatch; pyarrow.table"),
    (lambda folder: Table(pq.ParquetFile(parquet(folder))), ConfigError, NO_TABLE + "ParquetFile; "),
    (lambda folder: Table(pa.dataset.dataset(parquet(folder))), ConfigError, NO_TABLE + "FileSystemDataset; "),
    (lambda _: Table(TABLE.to_reader()), ConfigError, NO_TABLE + "RecordBatchReader; "),
    (lambda _: Table(pytest.importorskip("pandas").DataFrame({"image": [1]})), ConfigError, NO_TABLE + "DataFrame; "),
    (
        lambda folder: ShardSet(folder / "s.tar", image=[THREE]),
        ConfigError,
        "image must be a non-empty sequence of suffixes",
    ),
    (lambda folder: ShardSet(folder / "s.tar", check=LETTER), ConfigError, "check: must be True or False; found 'a'"),
    (
        lambda _: ShardSet("s3://b/a.tar", storage_options=LISTED),
        ConfigError,
        "storage_options must be .* found a list",
    ),
    (lambda _: in_a_bucket({THREE: 1}), ConfigError, "each option must have a text as its name; found 3"),
    (lambda _: in_a_bucket({"client_options": 3}), ConfigError, r"\['client_options'\] must be .*; found a int"),
    (lambda _: in_a_bucket({"retry_config": [3]}), ConfigError, r"\['retry_config'\] must be .*; found a list"),
    (lambda _: Table(TABLE, LISTED), ConfigError, r"Table: image: must be a str or None; found \['.jpg'\]"),
    (lambda folder: Table(parquet(folder), label=LISTED).preset, ConfigError, "Table: label: must be a str or None"),
    (lambda _: FileList.from_folder("a\0"), SourceNotFoundError, "must be a folder .*; found: embedded null byte"),
    (lambda _: Mix([Arrays(ROWS)] * 2, [10**400, 1]), ConfigError, "weights must be a number of 0 or more"),
    (lambda _: Mix([Arrays(ROWS)], {0: [1]}, linear=LETTER), ConfigError, "linear: must be True or False"),
    (lambda _: Bytes("x", decode=LETTER), ConfigError, "decode must be a function of a memoryview; found 'a'"),
    (lambda _: Columns(Arrays(ROWS), THREE), ConfigError, "columns: must name columns, as {.*; found 3"),
    (lambda _: Columns(Arrays(ROWS), ALONE), ConfigError, "columns: must name columns, as {.*; found Text"),
    (lambda _: Columns(Arrays(ROWS), {THREE: Text("row")}), ConfigError, "a text as its name; found 3"),
    (lambda folder: ShardSet(folder / "s.tar", index_dir=THREE).snapshot(), ConfigError, "index_dir: must be a path"),
]


@pytest.mark.parametrize("nth", range(len(MISTAKES)))
def test_a_users_mistake_is_named(tmp_path: Path, nth: int) -> None:
    """By an error of ours, where the argument is given or at the first use of it."""
    wrong, kind, said = MISTAKES[nth]
    write_shard(tmp_path / "s.tar", [(b"x", 1)])
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.jpg").touch()
    with pytest.raises(kind, match=said):
        wrong(tmp_path)


def test_a_number_of_numpys_is_one(tmp_path: Path) -> None:
    """As the side of a row, as Python's is."""
    ROWS.tofile(tmp_path / "a.bin")
    assert Arrays(tmp_path / "a.bin", ROWS.dtype, SIDES[0]).shape == Arrays(tmp_path / "a.bin", ROWS.dtype, 2).shape


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_column_whose_name_is_there_twice_is_refused_where_it_is_read(tmp_path: Path, kind: str) -> None:
    """And the others are read: only what was asked for is looked at."""
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["a", "a", "b"])
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        pq.write_table(twice, path)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, twice.schema) as writer:
            writer.write_table(twice)
    with pytest.raises(ConfigError, match="no two columns may have the same name; found 'a' twice among"):
        rows(Table(path, None), "a")
    assert rows(Table(path, None), "b") == [{"b": 3}]
