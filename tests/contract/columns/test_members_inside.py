"""Members inside members, `json:body.label`: one contract in shards, files, tables and topics."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from kit.broker.handle import Kafka
from kit.images import QUICK, jpeg
from kit.inside import Source
from kit.member_shards import shards
from torchvision.transforms import v2

from dali_feed import BadRecords, DataLoader, formats
from dali_feed.columns import Array, Image, JsonValue, Number, Text
from dali_feed.errors import ConfigError
from dali_feed.external_sources import FileList, KafkaTopic, ShardSet, Table
from dali_feed.testing import Message, assert_resumes_anywhere

ANY = BadRecords(limit=None)
COUNT = 12
BAD = 5


def value(n: int) -> bytes:
    """What record n holds: a label, a list, an image; number 5 is no JSON, number 7 has no caption but a title."""
    if n == BAD:
        return b"{no json"
    name = "title" if n == 7 else "caption"
    image = base64.b64encode(jpeg(n)).decode()
    return json.dumps({"body": {"label": n, "x": [n, n + 0.5]}, name: f"number {n}", "image": image}).encode()


JSON = formats.Json(base64=("image",))


def in_shards(folder: Path, kafka: Kafka) -> Source:
    """In a member of a tar sample, whose suffix says that it is JSON; but the images are base64."""
    many = shards(folder, COUNT, {f"{n}.json": value(n) for n in range(COUNT)})
    return ShardSet(many.paths, index_dir=folder, format={"json": JSON})


def in_files(folder: Path, kafka: Kafka) -> Source:
    """A file each."""
    for n in range(COUNT):
        (folder / f"{n:02}.json").write_bytes(value(n))
    return FileList(sorted(folder.glob("*.json")), format=JSON)


def in_a_table(folder: Path, kafka: Kafka) -> Source:
    """A column of text."""
    table = pa.table({"meta": [value(n).decode() for n in range(COUNT)], "n": range(COUNT)})
    return Table(table, image=None, format={"meta": JSON})


def in_a_topic(folder: Path, kafka: Kafka) -> KafkaTopic:
    """The values."""
    kafka.publish("inside", [Message(value(n)) for n in range(COUNT)], partitions=1)
    return KafkaTopic("inside", kafka.servers, label=None, format=JSON)


PLACES = {"json": in_shards, "bytes": in_files, "meta": in_a_table, "value": in_a_topic}


@pytest.mark.parametrize("member", list(PLACES))
def test_columns_of_a_format_in_every_source(tmp_path: Path, embedded: Kafka, member: str) -> None:
    """Image, array, number and text by path; what cannot be parsed costs its slot, and the reason names the member."""
    source = PLACES[member](tmp_path, embedded)
    columns = {
        "image": Image(f"{member}:image", v2.CenterCrop(16)),
        "x": Array(f"{member}:body.x", "float32", (2,)),
        "label": Number(f"{member}:body.label"),
        "text": Text(f"{member}:caption;{member}:title"),
    }
    with DataLoader(source, 4, columns=columns, tuning=QUICK, bad=ANY, info=True) as loader:
        batches = list(loader)
        told = loader.stats().recent_bad
    for batch, _ in batches:
        labels = batch["label"].tolist()
        assert batch["image"].shape == (4, 3, 16, 16)
        assert batch["x"].tolist() == [[n, n + 0.5] for n in labels]
        assert batch["text"] == [f"number {n}" for n in labels]
    assert sum(int((~info.ok).sum()) for _, info in batches) == 1
    assert {n for batch, _ in batches for n in batch["label"].tolist()} == set(range(COUNT)) - {BAD}
    (reason,) = [reason for _, reason in told]
    assert reason.startswith("json: " if member == "value" else f"member {member!r}: json: ")


@pytest.mark.parametrize("member", list(PLACES))
def test_it_resumes_anywhere(tmp_path: Path, embedded: Kafka, member: str) -> None:
    """At world sizes 1, 2 and 4, with a record that cannot be parsed."""
    columns = {"x": Array(f"{member}:body.x", "float32", (2,)), "label": Number(f"{member}:body.label")}
    source = PLACES[member](tmp_path, embedded)
    assert_resumes_anywhere(source, columns=columns, lanes=4, world_sizes=(1, 2, 4), positions=2)


class Counting:
    """JSON that counts how often it is parsed."""

    def __init__(self) -> None:
        self.parsed = 0

    def bind(self, members: Sequence[str]) -> Any:
        """As `formats.Json` does."""
        parse = formats.Json().bind(members)

        def read(value: Any) -> Any:
            self.parsed += 1
            return parse(value)

        return read

    def members(self, value: Any) -> dict[str, Any]:
        """Not asked for."""
        return {}


def test_a_member_is_parsed_once_however_many_columns_it_makes() -> None:
    """And given whole beside that."""
    form = Counting()
    table = pa.table({"meta": [value(n) for n in range(BAD)]})
    columns = {"a": Number("meta:body.label"), "b": Array("meta:body.x", "float64", (2,)), "c": JsonValue("meta")}
    with DataLoader(Table(table, image=None, format={"meta": form}), BAD, columns=columns, tuning=QUICK) as loader:
        (batch,) = loader
    assert form.parsed == BAD
    assert [each["body"]["label"] for each in batch["c"]] == batch["a"].tolist() == list(range(BAD))


def test_a_suffix_says_what_it_holds(tmp_path: Path) -> None:
    """json, npy and msgpack without a word; a colon in another name is a letter of it."""
    source = shards(tmp_path, 4)
    with DataLoader(source, 4, columns=[Number("json:n"), Number("json:list[1]")], tuning=QUICK) as loader:
        ((first, second),) = loader
    assert torch.equal(first, second)
    assert source.format_of("meta.JSON") is not None
    assert source.format_of("jpg") is None
    with pytest.raises(ConfigError, match=r"member 'txt:n': no sample has it"):
        next(iter(DataLoader(source, 2, columns=[Number("txt:n")])))
    with pytest.raises(
        ConfigError, match=r"found none of that name\. To read a path inside 'meta', give the source format="
    ):
        DataLoader(Table(pa.table({"meta": [b"{}"]}), None), 1, columns=[Number("meta:n")])


def test_what_cannot_be_is_told(tmp_path: Path, embedded: Kafka) -> None:
    """A format of nobody, a path that is none, a codec beside a format, a format without columns."""
    with pytest.raises(ConfigError, match=r"ShardSet.*format must name the format of each member"):
        ShardSet(shards(tmp_path, 2).paths, format="json")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="format 'jsn': must be one of"):
        FileList(["a.json"], format="jsn")
    with pytest.raises(ConfigError, match=r"member 'a\[': must be a path"):
        DataLoader(FileList(["a.json"], format="json"), 1, columns=[Number("bytes:a[")])

    def codec(value: memoryview, key: bytes | None, headers: list[tuple[str, bytes]]) -> dict[str, Any]:
        return {"image": value, "label": 3}

    with pytest.raises(ConfigError, match="codec= and format= both say how a value is decoded; leave one"):
        KafkaTopic("any", embedded.servers, codec=codec, format="json")
    embedded.publish("codec", [Message(jpeg(n)) for n in range(4)], partitions=1)
    with DataLoader(KafkaTopic("codec", embedded.servers, codec=codec), 4, tuning=QUICK) as loader:
        ((_, labels),) = loader
    assert labels.tolist() == [3] * 4
    with pytest.raises(ConfigError, match="format= is for columns="):
        DataLoader(KafkaTopic("codec", embedded.servers, format="json"), 4, tuning=QUICK)


def test_headers_and_keys_hold_formats_too(embedded: Kafka) -> None:
    """A mapping says which; members of the value are found by it where it has none."""
    messages = [Message(b"raw", key=str(n).encode(), headers=(("meta", b'{"size": %d}' % n),)) for n in range(4)]
    embedded.publish("headed", messages, partitions=1)
    source = KafkaTopic("headed", embedded.servers, label=None, format={"meta": "json"})
    with DataLoader(source, 4, columns=[Number("meta:size"), Number("key"), Text("value")], tuning=QUICK) as loader:
        ((size, key, raw),) = loader
    assert size.tolist() == key.tolist() == list(range(4))
    assert raw == ["raw"] * 4


def test_members_of_a_topic_are_listed_with_what_the_format_finds(embedded: Kafka) -> None:
    """Paths, with the share of records that have them; what cannot be parsed has none. Holes are looked for as ever."""
    in_a_topic(Path(), embedded)
    source = KafkaTopic("inside", embedded.servers, label=None, format=JSON, holes="scan")
    found = {member.name: member for member in source.members()}
    assert found["body.label"].share == pytest.approx((COUNT - 1) / COUNT)
    assert found["image"].bytes > 100
    assert found["value"].share == 1
