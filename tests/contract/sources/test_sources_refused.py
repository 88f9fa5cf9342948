"""What no source can be made of: arguments, files and rows that cannot be are errors of ours, by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kit.images import jpeg, labelled
from kit.inside import write_shard
from kit.record_files import tfrecord
from kit.refused import refusals

from dali_feed import DataLoader
from dali_feed.columns import Image
from dali_feed.errors import ConfigError, SourceEmptyError, SourceError, SourceNotFoundError
from dali_feed.external_sources import (
    MDS,
    Arrays,
    Claim,
    Concat,
    DeadLetterFolder,
    FileList,
    Mix,
    RecordIO,
    ShardSet,
    Table,
    TFRecords,
)
from dali_feed.testing import ScriptedSource

pytestmark = pytest.mark.usefixtures("cache_home")

ANY: dict[str, Any] = {
    "ShardSet: shards": ShardSet,
    "TFRecords": TFRecords,
    "RecordIO": RecordIO,
    "MDS: folder": MDS,
    "FileList: paths": FileList,
    r"FileList\.from_folder: root": FileList.from_folder,
    "Table: files": Table,
    "Arrays": Arrays,
    r"DeadLetterFolder\(path=\.\.\.\)": DeadLetterFolder,
    r"Claim\(folder=\.\.\.\)": Claim,
}


@pytest.mark.parametrize("value", [None, 5])
@pytest.mark.parametrize("subject", ANY)
def test_what_is_no_path(subject: str, value: object) -> None:
    """As `os.environ.get("DATA")` gives it where DATA is not set."""
    with pytest.raises(ConfigError, match=rf"^{subject}.* must be (a path|given paths)"):
        ANY[subject](value)


@pytest.mark.parametrize("make", [ShardSet, TFRecords, FileList, Table])
def test_what_is_no_path_among_others(make: Any, tmp_path: Path) -> None:
    """In a list too."""
    with pytest.raises(ConfigError, match="must be a path; found None"):
        make([str(tmp_path / "a"), None])


ROWS = np.zeros((60, 5), np.float32)
MANY = np.broadcast_to(np.uint8(0), (2**40 + 1, 1))  # more rows than ids can name


def npy(folder: Path, rows: Any = ROWS, name: str = "rows.npy") -> Path:
    """A file of these rows."""
    np.save(folder / name, rows)
    return folder / name


def raw(folder: Path) -> Path:
    """Eight bytes."""
    (folder / "raw").write_bytes(b"12345678")
    return folder / "raw"


def mixed_shapes(folder: Path) -> int:
    """Rows of two shapes."""
    return len(Arrays([npy(folder), npy(folder, ROWS[:, 0].copy(), "x.npy")]))


def classes(folder: Path) -> Path:
    """A file that is in no class, a class of an image, and two without one."""
    (folder / "loose.jpg").write_bytes(b"")
    for name in ("Cat", "fox", "ant"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "Cat" / "1.tif").write_bytes(b"cat")
    return folder


def shard(folder: Path, **options: Any) -> ShardSet:
    """Of one sample."""
    write_shard(folder / "a.tar", [(b"x", 1)])
    return ShardSet(folder / "a.tar", **options)


def many_records(folder: Path) -> list[Any]:
    """A pattern, and a file that it names too."""
    (folder / "t-1").write_bytes(tfrecord([b"x"]))
    return [str(folder / "t-*"), folder / "t-1"]


TWO = ["a.png", "b.JPG"]
TWO_SHAPES = r"must have one dtype and shape; found float32 \(5,\) in rows.npy, float32 \(\) in x.npy"
EMPTY_CLASSES = r"none for ant, fox; supported: \.jpg"
A_TFRECORD = r"For TFRecord files use TFRecords\('a.tfrecord'\)"


@refusals(
    ConfigError,
    (lambda _: len(Arrays(MANY)), r"1099511627776 rows \(2\*\*40\); found 1099511627777"),
    (lambda folder: len(Arrays(raw(folder), "uint8", (2**50,))), "a row must fit into memory"),
    (lambda folder: len(Arrays(raw(folder))), "the dtype and shape of a row are needed"),
    (lambda folder: len(Arrays(npy(folder), "float64")), r"rows of float64 \(5,\).*found float32 \(5,\)"),
    (mixed_shapes, TWO_SHAPES, SourceError),
    (lambda folder: len(Arrays(npy(folder), label=np.arange(59))), "label must be 60 integers"),
    (lambda folder: Arrays([npy(folder), npy(folder)]), "named twice|named once"),
    (lambda folder: Arrays(folder / "none-*.npy"), "Arrays: ", SourceNotFoundError),
    (lambda _: Arrays([[1, 2]]), "must be given paths, or NumPy arrays; found list"),  # type: ignore[arg-type]
    (lambda _: Arrays(ROWS[:0]).snapshot(), "must have rows", SourceEmptyError),
    (lambda _: FileList(TWO, [1]), "2 paths and 1 labels"),
    (lambda _: FileList(TWO, [0.5, 1.0]), "integers"),
    (lambda _: FileList(TWO, [True, False]), "integers"),
    (lambda _: FileList(TWO, ["a", "b"]), "integers"),
    (lambda _: FileList(TWO, [[1], [2]]), "shape"),
    (lambda _: FileList(TWO, np.array([2**64 - 1, 0], np.uint64)), "64 bits"),
    (lambda _: FileList(TWO, [0, 2], classes=["a", "b"]), r"0\.\.1"),
    (lambda _: FileList(TWO, [-1, 0], classes=["a", "b"]), r"0\.\.1"),
    (lambda folder: FileList(str(folder)), "from_folder"),
    (lambda _: FileList([]), "FileList", SourceEmptyError),
    (lambda folder: FileList.from_folder(folder / "nowhere"), "nowhere", SourceNotFoundError),
    (lambda folder: FileList.from_folder(classes(folder) / "loose.jpg"), "folder per class", SourceNotFoundError),
    (lambda folder: FileList.from_folder(classes(folder) / "Cat"), "folder per class", SourceEmptyError),
    (lambda folder: FileList.from_folder(classes(folder)), EMPTY_CLASSES, SourceEmptyError),
    (lambda folder: shard(folder, label="txt"), "ShardSet: label must be"),
    (lambda folder: shard(folder, label="json:"), "ShardSet: label must be"),
    (lambda folder: shard(folder, image="jpg"), "ShardSet: image must be"),
    (lambda folder: shard(folder, image=()), "ShardSet: image must be"),
    (lambda folder: TFRecords(many_records(folder)), "TFRecords: each file may be named once"),
    (lambda _: TFRecords([]), "TFRecords: must name at least one file"),
    (lambda folder: TFRecords(str(folder / "none*")), "TFRecords: ", SourceNotFoundError),
    (lambda folder: RecordIO(str(folder / "none*")), "RecordIO: ", SourceNotFoundError),
    (lambda folder: MDS(str(folder / "none*")), "index.json", SourceNotFoundError),
    (lambda _: DataLoader("a.tfrecord", 1), A_TFRECORD),
)
def test_what_is_no_file_no_label_and_no_option(tmp_path: Path, call: Any, error: Any, said: str) -> None:
    """Lengths, types and ranges of labels, a string for a list, classes without an image: as soon as it is given."""
    with pytest.raises(error, match=said):
        call(tmp_path)


IMAGES = [jpeg(0)] * 20
WHOLE = pa.table({"image": IMAGES, "label": range(20), "x": [[1.5]] * 20, "answers": [{"start": 1}] * 20})
FLAT = WHOLE.select(["image", "label"])
TWICE = pa.table([IMAGES, [0] * 20, [1] * 20], names=["image", "x", "x"])
STRUCTS = pa.table({"image": pa.array([{"data": b""}], pa.struct([("data", pa.binary())]))})
LARGE = pa.table({"image": IMAGES[:1], "label": pa.array([2**64 - 1], pa.uint64())})
NO_TABLE = r"^Table: (files: )?must be a (pyarrow Table|path)"
ONCE_EACH = "Table: each file must be named once, and there must be at least one"


def parquet(folder: Path, rows: Any = None) -> Path:
    """A file of two rows."""
    pq.write_table(pa.table({"image": IMAGES[:2], "n": [1.5, 2.5]}) if rows is None else rows, folder / "a.parquet")
    return folder / "a.parquet"


def of_a_table(member: str) -> Any:
    """Asks for an image of this column."""
    return lambda _: DataLoader(Table(WHOLE), 1, columns=[Image(member)], device="cpu")


def of_files(member: str) -> Any:
    """Asks for an image of this member of files."""
    return lambda folder: DataLoader(FileList([raw(folder)], [1]), 1, columns=[Image(member)], device="cpu")


NO_IMAGES = "an image is made of binary, of paths as string, or"


@refusals(
    ConfigError,
    (lambda _: Table(WHOLE.drop_columns(["image"])).preset, "must have one column 'image'"),
    (lambda _: Table(FLAT, "label").preset, "found column 'label' of int64; cast it"),
    (lambda _: Table(WHOLE.select(["image", "x"])).preset, "found column 'x' of list<.*drop_columns"),
    (lambda _: Table(TWICE).preset, "no two columns of the same name"),
    (lambda _: Table(STRUCTS).preset, "struct"),
    (lambda _: Table(FLAT, rows=[20]).preset, r"0\.\.19; found 20\.\.20"),
    (lambda _: Table(FLAT, rows=[-1]).preset, r"found -1\.\.-1"),
    (lambda _: Table(FLAT, rows=[0.5]).preset, "found float64"),
    (lambda _: Table(FLAT, rows=[[1]]).preset, r"of shape \(1, 1\)"),
    (lambda _: Table(FLAT.slice(0, 0)), "at least one row", SourceEmptyError),
    (lambda _: Table(FLAT, rows=[]), "at least one row", SourceEmptyError),
    (lambda _: Table(LARGE).snapshot(), "fit in signed 64 bits; found 18446744073709551615"),
    (lambda _: Table({"image": [b"jpeg"]}), NO_TABLE),
    (lambda _: Table(5), NO_TABLE),
    (lambda _: Table("a.parquet", rows=[1]), "^Table: must be a pyarrow Table, which rows= and name= are of"),
    (lambda _: Table(FLAT, label="label"), "^Table: label is of files"),
    (lambda _: Table([]), ONCE_EACH),
    (lambda folder: Table([parquet(folder)] * 2), ONCE_EACH),
    (lambda folder: Table(parquet(folder)).snapshot({"topic": "t"}), "Parquet files are fixed and take no pin; found"),
    (lambda folder: Table(parquet(folder)).image_of("n"), "member 'n': an image is made of binary, .* found double"),
    (
        lambda folder: Table(parquet(folder, pa.table({"image": pa.array([], pa.binary())}))).snapshot(),
        r"Parquet files must hold rows; found none in 1 file\(s\)",
        SourceEmptyError,
    ),
    (of_a_table("label"), f"member 'label': {NO_IMAGES}"),
    (of_a_table("x"), f"member 'x': {NO_IMAGES}"),
    (of_a_table("answers.start"), f"member 'answers.start': {NO_IMAGES}"),
    (of_files("path"), "member 'path': an image is made of a file's 'bytes'"),
    (of_files("label"), "member 'label': an image is made of a file's 'bytes'"),
    (of_files("label;bytes"), "member 'label;bytes': an image is made of a file's 'bytes'"),
)
def test_what_is_no_table_no_row_and_no_image(tmp_path: Path, call: Any, error: Any, said: str) -> None:
    """Columns, types and rows, each with what was found."""
    with pytest.raises(error, match=said):
        call(tmp_path)


A, B = (ScriptedSource(labelled(2)) for _ in range(2))


@refusals(
    ConfigError,
    (lambda: Concat([]), "must be a sequence of sources; found an empty one"),
    (lambda: Concat(["x.tar"]), "must be bounded sources.*found 'x.tar'"),  # type: ignore[list-item]
    (lambda: Concat([Mix([A, B]), A]).snapshot(), "mixture"),
    (lambda: Mix([Mix([A, B]), A]).snapshot(), "mixture"),
    (lambda: Mix([A, B], [1]), "a number of 0 or more for each of the 2 sources"),
    (lambda: Mix([A, B], [1, -1]), "a number of 0 or more"),
    (lambda: Mix([A, B], [0, 0]), "one above 0"),
    (lambda: Mix([A, B], {}), "found an empty one"),
    (lambda: Mix([A, B], {-1: [1, 1]}), "weights: epoch"),
    (lambda: Mix([A, B], linear=True), "linear needs a schedule"),
    (lambda: Mix([A, B], stop="last"), "stop must be 'first' or 'all'"),  # type: ignore[arg-type]
    (lambda: Mix([A, B], samples=0), "samples"),
)
def test_what_cannot_be_joined_or_mixed(call: Any, error: Any, said: str) -> None:
    """Each value that cannot be, with its rule; a mixture's order is its own, so it is nothing's part."""
    with pytest.raises(error, match=said):
        call()
