"""What sources give of members that were asked for: the foremost that is known, each byte copied once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from kit.blocks import Reads, rows
from kit.broker.handle import Kafka
from kit.images import QUICK, jpeg
from kit.inside import Pieces

from dali_feed import DataLoader
from dali_feed.columns import Array, Bytes, Image, Number, Text
from dali_feed.errors import ConfigError
from dali_feed.external_sources import FileList, KafkaTopic, Table
from dali_feed.testing import Message


def files(folder: Path) -> FileList:
    """Three images with labels."""
    for n in range(3):
        (folder / f"{n}.jpg").write_bytes(jpeg(n))
    return FileList(sorted(folder.glob("*.jpg")), np.arange(3))


def table(count: int = 3) -> Table:
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
    assert [row["foo;n"] for row in rows(table(), "foo;n")] == [0, 1, 2]


@pytest.mark.parametrize("member", ["path", "label", "label;bytes"])
def test_an_image_is_made_of_a_files_bytes(tmp_path: Path, member: str) -> None:
    """And of nothing else."""
    with pytest.raises(ConfigError, match=rf"member '{member}': an image is made of a file's 'bytes'"):
        DataLoader(files(tmp_path), 1, columns=[Image(member)], device="cpu")


@pytest.mark.parametrize("member", ["n", "x", "answers.start"])
def test_an_image_is_made_of_a_column_that_can_hold_one(member: str) -> None:
    """Of numbers and lists there is none."""
    with pytest.raises(ConfigError, match=f"member '{member}': an image is made of binary, of paths as string, or"):
        DataLoader(table(), 1, columns=[Image(member)], device="cpu")


def test_a_tables_columns_of_every_type_are_members() -> None:
    """Lists as arrays, lists in lists, structs and their parts; a null is None; slices and chunks are one table."""
    source = table(4)
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
