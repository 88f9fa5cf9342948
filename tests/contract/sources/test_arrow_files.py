"""Table: record batches of Arrow files, streams and Feather, however they were written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pytest
from kit.blocks import Reads, rows
from kit.blocks import rows as rows_of
from kit.broker.handle import Kafka
from kit.images import QUICK, jpeg
from kit.inside import Extents, Pieces
from kit.resumes import assert_resumes_in_turn

from dali_feed import DataLoader
from dali_feed.columns import Array, Bytes, Number, Text
from dali_feed.errors import ConfigError, DataLostError, SourceChangedError, SourceError
from dali_feed.external_sources import FileList, KafkaTopic, Table
from dali_feed.testing import Message

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
    assert_resumes_in_turn(source, columns=columns, shuffle=True, positions=2, absent=0)


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


def files(folder: Path) -> FileList:
    """Three images with labels."""
    for n in range(3):
        (folder / f"{n}.jpg").write_bytes(jpeg(n))
    return FileList(sorted(folder.glob("*.jpg")), np.arange(3))


def nested(count: int = 3) -> Table:
    """Images as bytes, as paths and as Hugging Face keeps them; lists, structs, a time, which is no member."""
    images = [jpeg(n) for n in range(count)]
    return Table(
        pa.table(
            {
                "image": images,
                "second": [{"bytes": image, "path": "x.jpg"} for image in images],
                "where": [f"/nowhere/{n}.jpg" for n in range(count)],
                "x": pa.array([[n, n + 0.5] for n in range(count)], pa.list_(pa.float32())),
                "flags": [[True, False]] * count,
                "boxes": [[[0, 0, n, n]] * n for n in range(count)],
                "answers": [{"text": f"number {n}", "start": n} for n in range(count)],
                "n": range(count),
                "time": pa.array(range(count), pa.timestamp("s")),
            }
        )
    )


def test_the_foremost_known_member_counts(tmp_path: Path) -> None:
    """A name that no file has makes room for the next, in files and tables."""
    source = files(tmp_path)
    found = rows(source, "foo; bytes", "foo;path", "label;path")
    assert [Path(row["foo;path"]).name for row in found] == ["0.jpg", "1.jpg", "2.jpg"]
    assert [row["label;path"] for row in found] == [0, 1, 2]
    assert [row["foo; bytes"] for row in found] == [jpeg(n) for n in range(3)]
    assert [row["foo;n"] for row in rows(nested(), "foo;n")] == [0, 1, 2]


def test_a_tables_columns_of_every_type_are_members() -> None:
    """Lists as arrays, lists in lists, structs and their parts; a null is None; slices and chunks are one nested."""
    source = nested(4)
    known = {member.name for member in source.members()}
    assert {"second", "second.bytes", "x", "flags", "boxes", "answers.text", "answers.start", "n"} <= known
    assert not {"time", "answers"} & known
    columns = {
        "x": Array("x", "float32", (2,)),
        "flags": Array("flags", "bool", (2,)),
        "text": Text("answers.text"),
        "start": Number("answers.start"),
        "raw": Bytes("second"),
    }
    with DataLoader(source, 4, columns=columns, tuning=QUICK) as loader:
        (batch,) = loader
    assert batch["x"].tolist() == [[n, n + 0.5] for n in range(4)]
    assert batch["flags"].tolist() == [[True, False]] * 4
    assert batch["text"] == [f"number {n}" for n in range(4)]
    assert batch["start"].tolist() == list(range(4))
    assert batch["raw"] == [jpeg(n) for n in range(4)]
    boxes = [row["boxes"] for row in rows(source, "boxes")]
    assert [len(each) for each in boxes] == list(range(4))
    lists = pa.chunked_array([pa.array([[9.0], [1.0, 2.0], None]).slice(1), pa.array([[], [3.0, None]])])
    found = rows(Table(pa.table({"x": lists}), None), "x")
    assert [row["x"] for row in found] == [[1.0, 2.0], None, [], [3.0, None]]
    other = Table(pa.table({"x": [[1.0, 2.0], None, [], [4.0, None]]}), None)
    assert other.snapshot().fingerprint != Table(pa.table({"x": lists}), None).snapshot().fingerprint


def test_a_value_is_copied_once_however_many_members_it_is(embedded: Kafka) -> None:
    """As image and as bytes it lies in one place of the slab."""
    embedded.publish("once", [Message(jpeg(n)) for n in range(3)], partitions=1)
    source = KafkaTopic("once", embedded.servers, label=None)
    found = Reads(source, "value", "key;value").first(3)
    assert found.lease.size > 0
    for one, other in zip(found.values["value"], found.values["key;value"], strict=True):
        assert np.shares_memory(np.asarray(one), np.asarray(other))


def test_values_by_one_name_are_pieces_of_a_few_memories(embedded: Kafka) -> None:
    """Pieces, so that small records cost the garbage collector nothing: tombstones have none, others their bytes."""
    values = [None if n % 7 == 3 else b"%02d" % n for n in range(40)]
    embedded.publish("pieces", [Message(value) for value in values], partitions=1)
    found = Reads(KafkaTopic("pieces", embedded.servers, label=None), "value").first(40).values["value"]
    assert isinstance(found, Pieces)
    assert [None if view is None else bytes(view) for view in found] == values
    assert len(found.memories) == 1
