"""What a record has not: nulls, fields that came later, names that are misspelt; what is said of it, and default=."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from fastavro import schemaless_writer
from google.protobuf import struct_pb2
from kit.broker.handle import Kafka
from kit.images import QUICK

from dali_feed import BadRecords, DataLoader
from dali_feed.columns import Array, Bytes, Column, Image, JsonValue, Number, Text
from dali_feed.errors import BadRecordLimitError, ConfigError
from dali_feed.external_sources import Concat, KafkaTopic, Table
from dali_feed.formats import Avro, Protobuf
from dali_feed.testing import Message

OLD = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
NEW = OLD | {"fields": [*OLD["fields"], {"name": "b", "type": ["null", "int"], "default": None}]}


def avro(schema: Any, number: int, **record: Any) -> bytes:
    """A value as Confluent's serializers write it."""
    file = io.BytesIO()
    schemaless_writer(file, schema, record)
    return b"\0" + number.to_bytes(4, "big") + file.getvalue()


def values(rows: Sequence[bytes | None], form: Any) -> Table:
    """A table of these values."""
    return Table(pa.table({"v": pa.array(rows, pa.binary())}), image=None, format={"v": form})


def first(source: Any, columns: dict[str, Column], limit: Any = 0, **options: Any) -> Any:
    """The first batch, of all records."""
    tuning = options.pop("tuning", QUICK)
    with DataLoader(source, 4, columns=columns, bad=BadRecords(limit=limit), tuning=tuning, **options) as loader:
        return next(iter(loader))


SCHEMAS = {1: OLD, 2: NEW}
GREW = values(
    [avro(OLD, 1, a=0), avro(NEW, 2, a=1, b=7), avro(NEW, 2, a=2, b=None), avro(OLD, 1, a=3)], Avro(schemas=SCHEMAS.get)
)


def struct(**fields: Any) -> bytes:
    """A message of a library's own class: a field that is not set is missing."""
    message = struct_pb2.Struct()
    message.update(fields)
    return bytes(message.SerializeToString())


def test_a_field_that_came_later_has_its_default() -> None:
    """Values of an older schema, and nulls of the newer one, and those beside it are read all the same."""
    batch = first(GREW, {"a": Number("v:a"), "b": Number("v:b", default=-1)})
    assert (batch["a"].tolist(), batch["b"].tolist()) == ([0, 1, 2, 3], [-1, 7, -1, -1])
    with pytest.raises(BadRecordLimitError, match=r"table#0: member 'v': avro: b: no such member; R has a; schema 1"):
        first(GREW, {"b": Number("v:b")})


def test_what_is_not_set_in_a_message_has_its_default() -> None:
    """A key that a map has not, and a field of a oneof that is another one."""
    source = values([struct(x=1.0), struct(y=2.0), struct(x="text"), struct(x=4.0)], Protobuf(struct_pb2.Struct))
    path = 'v:fields["x"].number_value'
    assert first(source, {"x": Number(path, "float32", default=-1)})["x"].tolist() == [1, -1, -1, 4]
    with pytest.raises(BadRecordLimitError, match=r"table#1: member 'v': protobuf: .*no such member"):
        first(source, {"x": Number(path, "float32")})


NULLS = pa.table({"n": [1, None, 3, 4], "t": ["a", "b", None, "d"], "j": [b'{"a": 1}', b'{"a": null}', b"null", None]})


@pytest.mark.parametrize("member", ["n", "t", "j:a"])
def test_a_null_is_called_a_null(member: str) -> None:
    """Of a table, of JSON in one, and of such a table in a Concat."""
    source = Table(NULLS, image=None, format={"j": "json"})
    column = Text("t") if member == "t" else Number(member)
    for its in (source, Concat([source, source])):
        with pytest.raises(BadRecordLimitError, match=rf"column 'x' of member '{member}': the record has a null there"):
            first(its, {"x": column})


def test_the_first_of_several_that_a_record_has() -> None:
    """Of texts and of numbers, each alone and of a Concat of such tables; where all are null it is a bad record."""
    table = pa.table(
        {"n": [1, None, None, 4], "m": [9, 2, None, 9], "t": ["a", None, "c", None], "u": ["x", "y", "z", None]}
    )
    source = Table(
        table.cast(pa.schema({"n": pa.int64(), "m": pa.int64(), "t": pa.binary(), "u": pa.binary()})), image=None
    )
    columns: dict[str, Column] = {"n": Number("n;m", default=-1), "t": Text("t;u", default="none")}
    for its in (source, Concat([source, source])):
        batch = first(its, columns)
        assert (batch["n"].tolist(), batch["t"]) == ([1, 2, -1, 4], ["a", "y", "c", "none"])
    with pytest.raises(BadRecordLimitError, match="column 'n' of member 'n;m': the record has a null there"):
        first(source, {"n": Number("n;m")})


def test_a_document_comes_as_its_format_has_read_it() -> None:
    """The whole of it, a part, a text that is a document itself; and bytes that nothing has read."""
    rows = [json.dumps({"meta": {"n": n}, "list": [n], "text": "[1, 2]"}).encode() for n in range(4)]
    names = {"whole": "v:$", "meta": "v:meta", "list": "v:list", "text": "v:text", "n": "v:meta.n", "raw": "v"}
    batch = first(values(rows, "json"), {name: JsonValue(member) for name, member in names.items()})
    assert batch["whole"] == batch["raw"] == list(map(json.loads, rows))
    assert batch["meta"] == [{"n": n} for n in range(4)]
    assert (batch["list"], batch["n"], batch["text"]) == ([[0], [1], [2], [3]], [0, 1, 2, 3], [[1, 2]] * 4)


@pytest.mark.parametrize(
    ("rows", "form", "column", "said"),
    [
        ([b'{"body": {"features": [1]}}'], "json", Array("v:body.feature"), "check its name.*body has 'features'"),
        (
            [b'{"label": 1}'] * 2,
            "json",
            Array("v:lable", "int64", (1,)),
            r"has 'label'.*source\.members\(\) lists them",
        ),
        ([b'{"list": [1]}'], "json", Array("v:list"), r"^Array\('v:list'\): the dtype of numbers in a list"),
        ([b'{"a": null}'] * 2, "json", Number("v:a"), "a null there.*default="),
        ([b'{"image": "/9j/4AA="}'] * 2, "json", Image("v:image"), r"found str; .*Json\(base64="),
        ([b"[1, 2]"] * 2, "json", Array("v:$", "float32", (None, 2)), r"shape must be \(rows, 2\); found \(2,\)"),
    ],
)
def test_a_wrong_name_leads_to_the_right_one(rows: list[bytes], form: Any, column: Column, said: str) -> None:
    """What the records have, or which argument helps, is in the first error."""
    with pytest.raises(ConfigError, match=said):
        first(values(rows, form), {"x": column}, None)


def test_a_function_that_takes_no_memoryview_is_told_of_bytes() -> None:
    """json.loads is one."""
    with pytest.raises(BadRecordLimitError, match=r"not memoryview: decode= is given a memoryview, .*bytes\(view\)"):
        first(values([b"{}"] * 4, "json"), {"x": Bytes("v", decode=json.loads)})  # type: ignore[arg-type]


def test_a_json_topic_without_options(embedded: Kafka) -> None:
    """It names the header of a label, columns=, and how the members of values are listed."""
    embedded.create("plain", 1)
    embedded.publish("plain", [Message(json.dumps({"label": n}).encode()) for n in range(8)])
    source = KafkaTopic("plain", embedded.servers)
    with (
        DataLoader(source, 4, tuning=QUICK, device="cpu") as loader,
        pytest.raises(ConfigError, match=r"label=None.*columns=: dali-feed inspect --format json"),
    ):
        next(iter(loader))
