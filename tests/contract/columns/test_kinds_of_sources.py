"""Every kind from every source that can give it: all resume anywhere, and a bad member costs its slot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from kit.broker.handle import Kafka
from kit.broker.real import Cluster
from kit.images import QUICK, encoded, jpeg
from kit.inside import Source, write_shard
from torchvision.transforms import v2

from dali_feed import BadRecords, DataLoader
from dali_feed.columns import Array, Boxes, Bytes, Column, Image, JsonValue, Keypoints, Mask, Number, Text, Tokens
from dali_feed.external_sources import FileList, KafkaTopic, ShardSet, Table
from dali_feed.testing import Message, assert_resumes_anywhere

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
    assert_resumes_anywhere(source, columns=columns, lanes=4, world_sizes=(1, 2, 4), positions=1)


def test_a_format_over_the_real_broker(real_broker: Cluster) -> None:
    """Members by path, of every kind, from Apache Kafka: the records that are good, in order."""
    source, name = in_values(Path(), Kafka("real", real_broker))
    with DataLoader(source, 4, columns=kinds(name), tuning=QUICK, bad=BadRecords(limit=None)) as loader:
        found = [n for batch in loader for n in batch["cls"].tolist()]
    assert found == [n + (n in BAD) for n in range(COUNT)]
