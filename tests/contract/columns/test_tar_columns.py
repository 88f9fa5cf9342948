"""Columns of tar samples: pairs, numbers, text, arrays, tokens; a bad member costs its slot; resume anywhere."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from kit.broker.handle import Kafka
from kit.images import QUICK, jpeg
from kit.inside import Extents, Pieces, SlabPool, Source, open_reader
from kit.member_shards import shards
from kit.resumes import assert_resumes_in_turn
from torchvision.transforms import v2

from dali_feed import BadRecords, DataLoader, Shuffle, formats
from dali_feed.columns import Array, Bytes, Column, Image, JsonValue, Number, Text, Tokens
from dali_feed.errors import ConfigError
from dali_feed.external_sources import FileList, KafkaTopic, ShardSet, Table
from dali_feed.testing import Message

CROP = v2.Compose([v2.RandomResizedCrop(8), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])


EVERY: dict[str, Column] = {
    "image": Image("jpg;png", CROP),
    "caption": Text("txt"),
    "record": JsonValue("json"),
    "label": Number("cls"),
    "features": Array("f32", "float32", (2, 3)),
    "tokens": Tokens("txt", lambda text: [ord(c) for c in text], 6),
    "raw": Bytes("f32", decode=len),
}


def test_a_batch_is_a_dict_of_what_was_asked_for_in_that_order(tmp_path: Path) -> None:
    """Each kind gives its own, of the same record in a row."""
    with DataLoader(shards(tmp_path), 6, shuffle=True, columns=EVERY, tuning=QUICK, info=True) as loader:
        for batch, info in loader:
            assert list(batch) == list(EVERY)
            numbers = batch["label"].tolist()
            assert batch["image"].shape == (6, 3, 8, 8)
            assert batch["caption"] == [f"sample {n} é" for n in numbers]
            assert [one["list"] for one in batch["record"]] == [[n, n] for n in numbers]
            assert batch["features"].dtype == torch.float32
            assert batch["features"][:, 1, 2].tolist() == [n + 5 for n in numbers]
            assert batch["tokens"].ids[:, 0].tolist() == [ord("s")] * 6
            assert batch["tokens"].mask.shape == (6, 6)
            assert batch["raw"] == [24] * 6
            assert info.ok.all()


def test_images_are_those_of_a_loader_without_columns(tmp_path: Path) -> None:
    """A column changes no pixel and no order."""
    source = shards(tmp_path)
    with DataLoader(source, 6, shuffle=True, transform=CROP, tuning=QUICK, seed=3) as plain:
        wanted = [(images, labels) for images, labels in plain]
    columns = (Image("jpg", CROP), Number("cls"))
    with DataLoader(source, 6, shuffle=True, columns=columns, tuning=QUICK, seed=3) as loader:
        found = list(loader)
    assert all(isinstance(item, tuple) for item in found)
    for (a, b), (c, d) in zip(wanted, found, strict=True):
        assert torch.equal(a, c)
        assert torch.equal(b, d)


def test_without_an_image_no_engine_runs(tmp_path: Path) -> None:
    """Records of text and numbers alone come in the same order, from bytes that no decoder was given."""
    columns = {"caption": Text("txt"), "features": Array("f32", "float32")}
    with DataLoader(shards(tmp_path), 8, columns=columns, tuning=QUICK) as loader:
        batches = list(loader)
        assert "engine: none" in loader.describe()
    assert [text for batch in batches for text in batch["caption"]][:3] == ["sample 0 é", "sample 2 é", "sample 4 é"]
    assert all(batch["features"].shape == (8, 6) for batch in batches)


@pytest.mark.parametrize(
    ("member", "data", "reason"),
    [
        ("4.txt", b"\xff\xfe", "column 'caption' of member 'txt': UnicodeDecodeError"),
        ("4.txt", None, "column 'caption' of member 'txt': the record has no such member"),
        ("4.json", b"{", "column 'record' of member 'json': FormatError: json: "),
        ("4.json", b"[NaN]", "column 'record' of member 'json': FormatError: json: "),
        ("4.cls", b"four", "column 'label' of member 'cls': a decimal number is needed; found 'four'"),
        ("4.f32", b"123", "column 'features' of member 'f32': array: float32 (2, 3) must have 24 bytes; found 3"),
        ("4.jpg", None, "the sample has no image member"),
        ("4.jpg", b"no image at all", ""),
    ],
)
def test_a_bad_member_costs_its_slot_and_no_other(tmp_path: Path, member: str, data: Any, reason: str) -> None:
    """Whatever is wrong with a member, the record's slot goes to another good one, and the reason is kept."""
    source = shards(tmp_path, broken={member: data})
    with DataLoader(source, 6, columns=EVERY, tuning=QUICK, bad=BadRecords(limit=2), info=True) as loader:
        batches = list(loader)
        told = loader.stats().recent_bad
    numbers = [n for batch, _ in batches for n in batch["label"].tolist()]
    ok = [good for _, info in batches for good in info.ok.tolist()]
    assert numbers == [6 if n == 4 else n for n in (*range(0, 24, 2), *range(1, 24, 2))]
    assert [n for n, good in zip((*range(0, 24, 2), *range(1, 24, 2)), ok, strict=True) if not good] == [4]
    assert len(told) == 1
    assert reason in told[0][1]


def test_a_reads_members_are_pieces_of_one_memory(tmp_path: Path) -> None:
    """As long as a slab holds them: then nothing is done row by row; where none does, they are the same bytes."""
    source = shards(tmp_path, broken={"4.f32": None})
    everything = Extents(np.array([0, 1]), np.array([0, 0]), np.array([12, 12]))
    read = [
        open_reader(source, ("f32", "cls")).read(everything, SlabPool(size).lease()).values for size in (1 << 20, 64)
    ]
    assert all(isinstance(values, Pieces) for fields in read for values in fields.values())
    assert [len(read[0]["f32"].memories), len(read[1]["f32"].memories) > 1] == [1, True]
    for name in ("f32", "cls"):
        one, several = ([view and bytes(view) for view in fields[name]] for fields in read)
        assert one == several
    assert [row for row, view in enumerate(read[0]["f32"]) if view is None] == [2]


@pytest.mark.parametrize("shuffle", [False, Shuffle(extent=12, window=1)])
def test_raw_bytes_and_npy_files_stand_in_one_batch(tmp_path: Path, shuffle: bool | Shuffle) -> None:
    """Whether one read has both, or a batch takes from two windows of which one is raw and one is not."""
    saved = {}
    for n in range(1, 24, 2):  # all of the second shard
        file = io.BytesIO()
        np.save(file, np.arange(n, n + 6, dtype="<f4"))
        saved[f"{n}.f32"] = file.getvalue()
    columns = {"f": Array("f32", "float32", (6,)), "n": Number("cls")}
    with DataLoader(shards(tmp_path, broken=saved), 8, shuffle=shuffle, columns=columns, tuning=QUICK) as loader:
        batches = list(loader)
    assert sorted(n for batch in batches for n in batch["n"].tolist()) == list(range(24))
    assert all(torch.equal(batch["f"], batch["n"][:, None] + torch.arange(6.0)) for batch in batches)


@pytest.mark.parametrize(
    ("texts", "wanted"),
    [
        (("0", "12", "0123456789012345678"[1:]), [0, 12, 123456789012345678]),
        (("7", "-3", "+8"), [7, -3, 8]),
        (("1", " 2\n", "9223372036854775807"), [1, 2, 9223372036854775807]),
    ],
)
def test_decimal_text_of_any_width_is_a_number(tmp_path: Path, texts: tuple[str, ...], wanted: list[int]) -> None:
    """All digits, by a few calls for a whole read, or anything else that is a number, one by one."""
    source = shards(tmp_path, 6, broken={f"{n}.cls": text.encode() for n, text in zip((0, 2, 4), texts, strict=True)})
    with DataLoader(source, 3, columns={"n": Number("cls")}, tuning=QUICK) as loader:
        assert next(iter(loader))["n"].tolist() == wanted


def test_members_are_listed(tmp_path: Path) -> None:
    """With the share of samples that have them, and their mean size."""
    found = {member.name: member for member in shards(tmp_path, broken={"3.txt": None}).members()}
    assert list(found)[-1] == "txt"
    assert found["txt"].share == pytest.approx(23 / 24)
    assert found["f32"].bytes == 24


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
    assert_resumes_in_turn(source, columns=columns, lanes=4, world_sizes=(1, 2, 4), positions=2)


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


def test_paths_that_cannot_be_are_told(tmp_path: Path, embedded: Kafka) -> None:
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
