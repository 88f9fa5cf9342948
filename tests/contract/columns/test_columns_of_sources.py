"""Columns of topics, files and tables: the same kinds, from each source's own members; and all of them resume."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import numpy as np
import pyarrow as pa
import pytest
import torch
from kit.broker.handle import Kafka
from kit.broker.real import Cluster
from kit.images import QUICK, encoded, jpeg
from kit.inside import Source, write_shard
from kit.member_shards import shards
from kit.resumes import assert_resumes_in_turn
from torchvision.transforms import v2

from dali_feed import BadRecords, DataLoader, Info, Shuffle, formats
from dali_feed.columns import Array, Boxes, Bytes, Column, Image, JsonValue, Keypoints, Mask, Number, Text, Tokens
from dali_feed.errors import ConfigError
from dali_feed.external_sources import FileList, KafkaTopic, ShardSet, Table
from dali_feed.testing import Message


def topic(kafka: Kafka, name: str) -> KafkaTopic:
    """48 records: a JSON value, a key, two headers; number 7 has no header `name`."""
    messages = [
        Message(
            json.dumps({"n": n}).encode(),
            key=f"k{n}".encode(),
            headers=(("n", str(n).encode()), *(() if n == 7 else (("name", f"é{n}".encode()),))),
        )
        for n in range(48)
    ]
    kafka.create(name, 2)
    kafka.publish(name, messages)
    return KafkaTopic(name, kafka.servers, label=None)


def test_a_topics_records_give_value_key_timestamp_and_headers(kafka: Kafka) -> None:
    """By name; what a header lacks costs the record's slot."""
    columns = {
        "value": JsonValue("value"),
        "key": Text("key"),
        "time": Number("timestamp"),
        "n": Number("n", "int32"),
        "name": Text("name"),
    }
    source = topic(kafka, "members")
    assert {"value", "key", "timestamp", "n", "name"} == {member.name for member in source.members()}
    with DataLoader(source, 8, columns=columns, tuning=QUICK, bad=BadRecords(limit=1), info=True) as loader:
        batches = list(loader)
    assert sum(int((~info.ok).sum()) for _, info in batches) == 1
    for batch, _ in batches:
        numbers = batch["n"].tolist()
        assert batch["value"] == [{"n": n} for n in numbers]
        assert batch["key"] == [f"k{n}" for n in numbers]
        assert batch["name"] == [f"é{n}" for n in numbers]
        assert 7 not in numbers
        assert (batch["time"] > 1_600_000_000_000).all()


def test_arrays_of_a_topic_come_as_they_were(kafka: Kafka) -> None:
    """Raw values of one shape, which the first record tells."""
    rows = np.arange(40 * 12, dtype="<f4").reshape(40, 12)
    kafka.create("arrays", 1)
    kafka.publish("arrays", [Message(row.tobytes()) for row in rows])
    source = KafkaTopic("arrays", kafka.servers, label=None)
    with DataLoader(source, 16, columns=[Array("value", "float32")], tuning=QUICK) as loader:
        found = np.concatenate([batch[0].numpy() for batch in loader])
    assert np.array_equal(found, rows)


def test_what_a_codec_gives_are_members(embedded: Kafka) -> None:
    """Columns are made of them, beside what a record has without a codec."""
    embedded.publish("coded", [Message(b"%d" % n, b"key %d" % n) for n in range(4)], partitions=1)
    source = KafkaTopic("coded", embedded.servers, codec=lambda value, key, headers: {"twice": 2 * int(bytes(value))})
    with DataLoader(source, 4, columns={"n": Number("codec:twice"), "key": Text("key")}, tuning=QUICK) as loader:
        (batch,) = loader
    assert (batch["n"].tolist(), batch["key"]) == ([0, 2, 4, 6], [f"key {n}" for n in range(4)])


def files(folder: Path) -> FileList:
    """Twelve images with labels."""
    paths = [folder / f"{n:02}.jpg" for n in range(12)]
    for n, path in enumerate(paths):
        path.write_bytes(jpeg(n))
    return FileList(paths, np.arange(12))


def table() -> Table:
    """Sixteen rows: an image, a caption with a null, a number."""
    captions = [None if n == 3 else f"row {n}" for n in range(16)]
    return Table(
        pa.table(
            {
                "image": pa.array([jpeg(n) for n in range(16)], pa.binary()),
                "caption": pa.array(captions),
                "n": pa.array(range(16), pa.int32()),
            }
        )
    )


def test_files_give_their_path(tmp_path: Path) -> None:
    """Beside the image and the label."""
    columns = {"path": Text("path"), "image": Image("bytes"), "label": Number("label")}
    with DataLoader(files(tmp_path), 4, columns=columns, tuning=QUICK) as loader:
        batches = list(loader)
    assert [Path(path).name for batch in batches for path in batch["path"]] == [f"{n:02}.jpg" for n in range(12)]
    assert [n for batch in batches for n in batch["label"].tolist()] == list(range(12))
    assert all(batch["image"].shape[:2] == (4, 3) for batch in batches)


def test_a_tables_columns_are_members() -> None:
    """A null is a missing member only where its column was asked for."""
    with DataLoader(table(), 4, columns={"n": Number("n")}, tuning=QUICK) as loader:
        assert [n for batch in loader for n in batch["n"].tolist()] == list(range(16))
    columns = {"n": Number("n"), "caption": Text("caption")}
    with DataLoader(table(), 4, columns=columns, tuning=QUICK, bad=BadRecords(limit=1)) as loader:
        assert [n for batch in loader for n in batch["n"].tolist()] == [0, 1, 2, 4, *range(4, 16)]


@pytest.mark.parametrize("source", ["files", "table"])
def test_a_name_that_is_no_member_is_told(tmp_path: Path, source: str) -> None:
    """With those that there are."""
    made = files(tmp_path) if source == "files" else table()
    with pytest.raises(ConfigError, match="member 'nothing': .*found none"):
        DataLoader(made, 2, columns={"a": Text("nothing")})


WANTED: dict[str, dict[str, Column]] = {
    "shards": {"caption": Text("txt"), "image": Image("jpg"), "f": Array("f32", "float32", (6,)), "n": Number("cls")},
    "records without an image": {"caption": Text("txt"), "f": Array("f32", "float32", (6,))},
    "files": {"path": Text("path"), "image": Image("bytes"), "label": Number("label")},
    "table": {"caption": Text("caption"), "n": Number("n")},
}


@pytest.mark.parametrize("name", list(WANTED))
def test_columns_resume_anywhere(tmp_path: Path, name: str) -> None:
    """A state taken after any batch gives the rest at world sizes 1, 2 and 4."""
    if name == "table":
        source: Source = table()
    else:
        source = files(tmp_path) if name == "files" else shards(tmp_path, broken={"5.txt": b"\xff"})
    assert_resumes_in_turn(
        source, columns=WANTED[name], shuffle=Shuffle(3, 2), lanes=4, world_sizes=(1, 2, 4), positions=3
    )


def test_a_topics_columns_resume_anywhere(kafka: Kafka) -> None:
    """With its holes and a member that is missing."""
    columns: dict[str, Column] = {"value": JsonValue("value"), "name": Text("name")}
    source = topic(kafka, "resumed")
    assert_resumes_in_turn(source, columns=columns, lanes=4, world_sizes=(1, 2, 4), positions=3)


def test_a_format_finds_members_in_the_value(kafka: Kafka) -> None:
    """By paths into JSON, images in base64 too; headers by their full name; what does not parse costs its slot."""
    records = [
        Message(
            json.dumps(
                {
                    "body": {"features": [n, n + 0.5], "label": n % 4, "text": f"number {n}"},
                    "image": base64.b64encode(jpeg(n % 16)).decode(),
                }
            ).encode()
            if n != 5
            else b"{no json",
            headers=(("source", b"camera"),),
        )
        for n in range(24)
    ]
    kafka.create("formatted", 1)
    kafka.publish("formatted", records)
    source = KafkaTopic("formatted", kafka.servers, label=None, format=formats.Json(base64=("image",)))
    columns: dict[str, Column] = {
        "image": Image("image", v2.CenterCrop(16)),
        "x": Array("body.features", "float32"),
        "label": Number("body.label"),
        "text": Text("body.text"),
        "from": Text("headers.source"),
    }
    with DataLoader(source, 6, columns=columns, tuning=QUICK, bad=BadRecords(limit=1)) as loader:
        batches = list(loader)
        told = loader.stats().recent_bad
    assert [text for batch in batches for text in batch["text"]] == [f"number {6 if n == 5 else n}" for n in range(24)]
    assert all(batch["x"].dtype == torch.float32 and batch["x"].shape == (6, 2) for batch in batches)
    assert all(set(batch["from"]) == {"camera"} for batch in batches)
    assert batches[0]["image"].shape == (6, 3, 16, 16)
    assert len(told) == 1
    assert told[0][1].startswith("json: ")


def test_npy_files_of_a_topic_tell_dtype_and_shape(embedded: Kafka) -> None:
    """Of the first record; one that differs is a bad record."""
    arrays = [np.full((2, 3), n, np.int16) for n in range(12)]
    arrays[4] = np.zeros((3, 2), np.int16)
    messages = []
    for array in arrays:
        out = io.BytesIO()
        np.save(out, array)
        messages.append(Message(out.getvalue()))
    embedded.create("npys", 1)
    embedded.publish("npys", messages)
    source = KafkaTopic("npys", embedded.servers, label=None)
    with DataLoader(source, 4, columns=[Array("value")], tuning=QUICK, bad=BadRecords(limit=1)) as loader:
        found = torch.cat([batch[0] for batch in loader])
    assert found.dtype == torch.int16
    assert found[:, 0, 0].tolist() == [5 if n == 4 else n for n in range(12)]


COUNT = 20
CROP = v2.Compose([v2.RandomCrop(8), v2.RandomHorizontalFlip()])


# member -> (a good record's bytes, a bad one's)
MEMBERS: dict[str, tuple[Any, bytes]] = {
    "jpg": (lambda n: jpeg(n, 16, 16), b"no image"),
    "seg": (lambda n: encoded(np.full((16, 16), n, np.uint8)), b"no mask"),
    "boxes": (lambda n: json.dumps([[0, 0, n + 1, 9]]).encode(), b"[[1, 2]]"),
    "points": (lambda n: json.dumps([[n, 3]]).encode(), b"[[1]]"),
    "f32": (lambda n: np.full(3, n, "<f4").tobytes(), b"123"),
    "txt": (lambda n: f"number {n}".encode(), b"\xff"),
    "cls": (lambda n: str(n).encode(), b"three"),
    "meta": (lambda n: json.dumps({"n": n}).encode(), b"{"),
    "raw": (lambda n: bytes([n]), b""),
}


BAD = set(range(1, 2 * len(MEMBERS) + 1, 2))


def kinds(name: str) -> dict[str, Column]:
    """Columns that hold a kind of each member; `name`(member) is what a source calls it."""

    def called(member: str) -> str:
        return name.format(member)

    def decode(data: memoryview) -> int:
        return data[0]  # IndexError where there is none

    return {
        "image": Image(called("jpg"), CROP),
        "seg": Mask(called("seg")),
        "boxes": Boxes(called("boxes"), most=2),
        "points": Keypoints(called("points"), most=2),
        "f32": Array(called("f32"), "float32", (3,)),
        "txt": Text(called("txt")),
        "tokens": Tokens(called("txt"), lambda text: [ord(c) for c in text], 9),
        "cls": Number(called("cls")),
        "meta": JsonValue(called("meta")),
        "raw": Bytes(called("raw"), decode=decode),
    }


def record(n: int) -> dict[str, bytes]:
    """The members of record n; of record 2k + 1 the k-th is broken."""
    return {name: broken if n == 2 * k + 1 else good(n) for k, (name, (good, broken)) in enumerate(MEMBERS.items())}


def packed(n: int) -> bytes:
    """A record in a record, by MsgPack."""
    found: bytes = msgpack.packb({"body": record(n)})
    return found


def in_shards(folder: Path, kafka: Kafka) -> tuple[Source, str]:
    """By suffix."""
    write_shard(folder / "a.tar", [record(n) for n in range(COUNT)])
    return ShardSet(folder / "a.tar", index_dir=folder), "{}"


def in_a_table(folder: Path, kafka: Kafka) -> tuple[Source, str]:
    """By column."""
    rows = [record(n) for n in range(COUNT)]
    table = pa.table({name: pa.array([row[name] for row in rows], pa.binary()) for name in MEMBERS})
    return Table(table, image=None), "{}"


def in_headers(folder: Path, kafka: Kafka) -> tuple[Source, str]:
    """By header."""
    kafka.publish(kafka.topic, [Message(b"", headers=tuple(record(n).items())) for n in range(COUNT)], partitions=1)
    return KafkaTopic(kafka.topic, kafka.servers, label=None), "{}"


def in_values(folder: Path, kafka: Kafka) -> tuple[Source, str]:
    """By path into values."""
    kafka.publish(kafka.topic, [Message(packed(n)) for n in range(COUNT)], partitions=1)
    return KafkaTopic(kafka.topic, kafka.servers, label=None, format="msgpack"), "body.{}"


def in_files(folder: Path, kafka: Kafka) -> tuple[Source, str]:
    """By path into files."""
    for n in range(COUNT):
        (folder / f"{n:02}.mp").write_bytes(packed(n))
    return FileList(sorted(folder.glob("*.mp")), format="msgpack"), "bytes:body.{}"


SOURCES = {"shards": in_shards, "table": in_a_table, "headers": in_headers, "values": in_values, "files": in_files}


@pytest.mark.parametrize("place", list(SOURCES))
def test_every_kind_resumes_anywhere_and_a_bad_member_costs_its_slot(
    tmp_path: Path, embedded: Kafka, place: str
) -> None:
    """All kinds at once; a bad member of each, whose record another takes the slot of, and the reason names it."""
    source, name = SOURCES[place](tmp_path, embedded)
    columns = kinds(name)
    with DataLoader(source, 4, columns=columns, tuning=QUICK, bad=BadRecords(limit=None)) as loader:
        batches = list(loader)
        told = [reason for _, reason in loader.stats().recent_bad]
    for batch in batches:
        rows = batch["cls"].tolist()
        assert not set(rows) & BAD
        assert batch["image"].shape == (4, 3, 8, 8)
        assert batch["seg"][:, 0, 0].tolist() == batch["raw"] == batch["f32"][:, 1].tolist() == rows
        assert batch["txt"] == [f"number {n}" for n in rows]
        assert batch["meta"] == [{"n": n} for n in rows]
        assert batch["tokens"].ids.shape == (4, 9)
        assert batch["boxes"].rows.shape == (4, 2, 4)
        assert batch["points"].count.tolist() == [1] * 4
    assert len(told) == len(MEMBERS)
    assert all(sum(name.format(member) in reason for reason in told) for member in MEMBERS if member != "jpg")
    assert_resumes_in_turn(source, columns=columns, lanes=4, world_sizes=(1, 2, 4), positions=1)


def test_a_format_over_the_real_broker(real_broker: Cluster) -> None:
    """Members by path, of every kind, from Apache Kafka: the records that are good, in order."""
    source, name = in_values(Path(), Kafka("real", real_broker))
    with DataLoader(source, 4, columns=kinds(name), tuning=QUICK, bad=BadRecords(limit=None)) as loader:
        found = [n for batch in loader for n in batch["cls"].tolist()]
    assert found == [n + (n in BAD) for n in range(COUNT)]


SMALL = v2.Compose([v2.Resize((8, 8)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])


EVERY: dict[str, Column] = {
    "image": Image("jpg", SMALL),
    "number": Number("cls"),
    "x": Array("f32", "float32", (2, 3)),
    "tokens": Tokens("txt", lambda text: [1] * len(text), 6),
    "text": Text("txt"),
    "json": JsonValue("json"),
    "raw": Bytes("cls"),
    "made": Bytes("f32", decode=lambda data: np.frombuffer(data, "<f4")[::-1]),
}
SAMPLE = {
    "image": (torch.float32, (3, 8, 8)),
    "number": int,
    "x": (torch.float32, (2, 3)),
    "text": str,
    "json": dict,
    "raw": bytes,
    "made": (torch.float32, (6,)),
}


@pytest.mark.parametrize("as_tuple", [False, True])
def test_collate_fn_is_given_a_sample_as_a_batch_is(tmp_path: Path, *, as_tuple: bool) -> None:
    """A dict or a tuple of columns: tensors for images and arrays, Python's numbers, text and bytes as they are."""
    columns: Any = tuple(EVERY.values()) if as_tuple else EVERY
    given: list[list[Any]] = []
    with DataLoader(shards(tmp_path), 6, columns=columns, tuning=QUICK, collate_fn=given.append, info=True) as loader:
        for nothing, info in loader:
            assert nothing is None
            assert isinstance(info, Info)
    second = given[0][1]
    assert type(second) is (tuple if as_tuple else dict)
    sample: Any = dict(zip(EVERY, second, strict=True)) if as_tuple else second
    for name, wanted in SAMPLE.items():
        value = sample[name]
        assert (value.dtype, tuple(value.shape)) == wanted if isinstance(wanted, tuple) else type(value) is wanted
    assert sample["tokens"].ids.tolist() == [1] * 6
    assert sample["number"] == 2
    assert sample["made"].tolist() == [7.0, 6.0, 5.0, 4.0, 3.0, 2.0]


def test_info_comes_last(tmp_path: Path) -> None:
    """Behind the dict of columns, and as one more item of a tuple of them."""
    columns = {"text": Text("txt"), "n": Number("cls")}
    source = shards(tmp_path)
    with DataLoader(source, 6, columns=columns, tuning=QUICK, info=True) as loader:
        batch, info = next(iter(loader))
        assert list(batch) == ["text", "n"]
        assert info.ids.shape == (6,)
    with DataLoader(source, 6, columns=list(columns.values()), tuning=QUICK, info=True) as loader:
        texts, numbers, same = next(iter(loader))
        assert (len(texts), numbers.shape) == (6, (6,))
        assert torch.equal(same.ids, info.ids)
    with DataLoader(source, 6, columns=[Text("txt")], tuning=QUICK) as loader:
        (alone,) = next(iter(loader))
        assert alone == texts


def test_several_views_of_an_image_column_are_a_list(tmp_path: Path) -> None:
    """One tensor per view, those that a loader without columns gives; for a collate_fn a list per sample."""
    two = [v2.Compose([v2.RandomResizedCrop(8), SMALL]), v2.Compose([v2.RandomHorizontalFlip(), v2.Resize((4, 4))])]
    source, columns = shards(tmp_path), {"n": Number("cls"), "image": Image("jpg", two)}
    with DataLoader(source, 6, transform=two, tuning=QUICK) as loader:
        wanted, _ = next(iter(loader))
    with DataLoader(source, 6, columns=columns, tuning=QUICK) as loader:
        found = next(iter(loader))["image"]
    assert [each.shape for each in found] == [(6, 3, 8, 8), (6, 3, 4, 4)]
    assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))
    with DataLoader(source, 6, columns=columns, tuning=QUICK, collate_fn=list) as loader:
        sample = next(iter(loader))[2]
    assert torch.equal(sample["image"][1], wanted[1][2])


class Sized(NamedTuple):
    """Texts, and how long they are."""

    texts: Any
    lengths: Any


@dataclass(frozen=True)
class SizedText(Column):
    """A kind of a user's own, of two parts; from the first record it learns how many letters to keep."""

    member: str
    letters: int = 0

    @property
    def open(self) -> bool:
        """Until it has learnt it."""
        return not self.letters

    def settled(self, first: Any) -> SizedText:
        """As many as the first has."""
        return SizedText(self.member, len(bytes(first).decode()))

    def read(self, values: list[Any], faults: dict[int, str]) -> list[str]:
        """The texts."""
        return Text(self.member).read(values, faults)

    def batch(self, values: list[str]) -> Sized:
        """A list, and an array that torch would warn of."""
        lengths = np.frombuffer(np.array([len(text) for text in values]).tobytes(), np.int64)
        return Sized([text[: self.letters] for text in values], lengths)


def test_a_kind_of_a_users_own_may_give_a_named_tuple(tmp_path: Path) -> None:
    """Its arrays come as tensors and its lists as they are, whole and sample by sample; `open` has it settled."""
    columns = {"text": SizedText("txt"), "n": Number("cls")}
    source = shards(tmp_path)
    with DataLoader(source, 6, columns=columns, tuning=QUICK) as loader:
        batches = list(loader)
    assert [text for batch in batches for text in batch["text"].texts][5:7] == ["sample 10 ", "sample 12 "]
    assert all(type(batch["text"]) is Sized and batch["text"].lengths.dtype == torch.int64 for batch in batches)
    with DataLoader(source, 6, columns=columns, tuning=QUICK, collate_fn=list) as loader:
        first = next(iter(loader))[0]
    assert first["text"].texts == "sample 0 é"
    assert first["text"].lengths.dtype == torch.int64
    assert first["text"].lengths.shape == ()
