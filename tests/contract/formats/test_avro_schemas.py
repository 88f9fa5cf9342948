"""Values that name their schemas: from a folder, a registry, a function."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kit.written import EXAMPLE, avro, example

from dali_feed.errors import ConfigError, FormatError, SourceUnreachableError
from dali_feed.formats import Avro, bound

OLD = {"type": "record", "name": "R", "fields": [{"name": "label", "type": "int"}]}
NEW = {"type": "record", "name": "R", "fields": [{"name": "text", "type": "string"}, {"name": "label", "type": "long"}]}


def framed(number: int, value: bytes) -> bytes:
    """As Confluent's serializers write it."""
    return b"\0" + number.to_bytes(4, "big") + value


@dataclass
class Schema:
    """What confluent_kafka's client gives for an id."""

    schema_str: str | None
    schema_type: str = "AVRO"
    references: list[Any] = field(default_factory=list)


@dataclass
class Reference:
    """What a schema says of one that it refers to."""

    name: str
    subject: str
    version: int


@dataclass
class Registered:
    """What the client gives for a subject and a version."""

    schema: Schema


class RegistryError(Exception):
    """As the client raises it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.http_status_code = status


class Registry:
    """A client of a registry that holds these, and counts who asks."""

    def __init__(self, schemas: dict[int, Schema], subjects: dict[tuple[str, int], Schema] | None = None) -> None:
        self.schemas, self.subjects, self.asked, self.down = schemas, subjects or {}, 0, 0

    def get_schema(self, number: int) -> Schema:
        """Of an id."""
        self.asked += 1
        if self.down:
            raise RegistryError(self.down) if self.down > 1 else ConnectionError("refused")
        if number not in self.schemas:
            raise RegistryError(404)
        return self.schemas[number]

    def get_version(self, subject: str, version: int) -> Registered:
        """Of a subject."""
        return Registered(self.subjects[subject, version])


def test_each_value_is_read_by_its_own_schema(tmp_path: Path) -> None:
    """A topic whose schema was changed on the way: the member is the same, wherever it stands."""
    tmp_path.joinpath("7.avsc").write_text(json.dumps(OLD))
    tmp_path.joinpath("4000000000.avsc").write_text(json.dumps(NEW))
    values = [framed(7, avro(OLD, {"label": 1})), framed(4_000_000_000, avro(NEW, {"text": "b", "label": 2}))]
    kept = {7: Schema(json.dumps(OLD)), 4_000_000_000: Schema(json.dumps(NEW))}
    texts = {number: schema.schema_str for number, schema in kept.items()}
    for where in (tmp_path, str(tmp_path), Registry(kept), texts.__getitem__, {7: OLD, 4_000_000_000: NEW}.get):
        read = bound(Avro(schemas=where), ["label"])
        assert [read(value) for value in values * 2] == [(1,), (2,)] * 2
        assert Avro(schemas=where).members(values[1]) == {"text": "b", "label": 2}


def test_a_schema_is_asked_for_once() -> None:
    """One that is unknown too: a topic full of it asks no registry for each record."""
    registry = Registry({1: Schema(json.dumps(OLD))})
    read = bound(Avro(schemas=registry), ["label"])
    for _ in range(3):
        assert read(framed(1, avro(OLD, {"label": 5}))) == (5,)
        with pytest.raises(FormatError, match="there is no schema 2"):
            read(framed(2, b""))
    assert registry.asked == 2


@pytest.mark.parametrize("down", [1, 500, 401])
def test_a_registry_that_does_not_answer_is_no_records_fault(down: int) -> None:
    """The run stops with what it said, no record is bad for it, and it is asked anew later."""
    registry = Registry({1: Schema(json.dumps(OLD))})
    registry.down = down
    read, value = bound(Avro(schemas=registry), ["label"]), framed(1, avro(OLD, {"label": 5}))
    with pytest.raises(SourceUnreachableError, match=r"^Avro: schema 1: must be available from .*(refused|HTTP)"):
        read(value)
    registry.down = 0
    assert read(value) == (5,)


def test_a_schema_refers_to_others() -> None:
    """What it refers to is read first, at any depth, once."""
    inner = {"type": "record", "name": "a.Inner", "fields": [{"name": "x", "type": "int"}]}
    middle = {"type": "record", "name": "a.Middle", "fields": [{"name": "inner", "type": "a.Inner"}]}
    outer = {"type": "record", "name": "a.Outer", "fields": [
        {"name": "m", "type": "a.Middle"}, {"name": "i", "type": "a.Inner"}]}  # fmt: skip
    to_inner, to_middle = Reference("a.Inner", "inner", 1), Reference("a.Middle", "middle", 3)
    subjects = {
        ("inner", 1): Schema(json.dumps(inner)),
        ("middle", 3): Schema(json.dumps(middle), references=[to_inner]),
    }
    registry = Registry({1: Schema(json.dumps(outer), references=[to_middle, to_inner])}, subjects)
    read = bound(Avro(schemas=registry), ["m.inner.x", "i.x"])
    assert read(framed(1, b"\x04\x06")) == (2, 3)
    subjects["inner", 1].references.append(to_middle)  # in a circle
    assert bound(Avro(schemas=Registry(registry.schemas, subjects)), ["i.x"])(framed(1, b"\x04\x06")) == (3,)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (Schema("{}", "PROTOBUF"), "must be a schema of Avro; found one of type PROTOBUF"),
        (Schema("{"), "schema 1 cannot be read"),
        (Schema('"nope"'), "schema 1 cannot be read"),
        (Schema(None), "schema 1 cannot be read"),
        (Schema("[" * 100_000), "schema 1 cannot be read"),
        (Schema('"int"'), "label: no such member; .*; schema 1"),
        (Schema('{"type": "array", "items": "null"}'), "schema 1"),
        (
            Schema('{"type": "record", "name": "R", "fields": [{"name": "label", "type": "R"}]}'),
            "may be nested in a few hundred",
        ),
    ],
)
def test_a_schema_that_cannot_be_used_is_named(schema: Schema, said: str) -> None:
    """By its id: its values are bad records."""
    read = bound(Avro(schemas=Registry({1: schema})), ["label"])
    for _ in range(2):
        with pytest.raises(FormatError, match=said):
            read(framed(1, b"\0"))


@pytest.mark.parametrize("value", [b"", b"\0", b"\0\0\0\0", b"\x01\0\0\0\x01\0", b"{}", avro(EXAMPLE, example())])
def test_a_value_without_a_schemas_id_is_a_bad_record(value: bytes) -> None:
    """It begins with a zero and four bytes."""
    with pytest.raises(FormatError, match="must begin with a zero byte and a schema's id"):
        bound(Avro(schemas={1: OLD}.get), ["label"])(value)


def test_a_folder_without_that_schema_is_a_bad_record(tmp_path: Path) -> None:
    """A schema in another form too."""
    tmp_path.joinpath("2.avsc").write_bytes(b"\xff\xfe")
    read = bound(Avro(schemas=tmp_path), ["label"])
    for number in (1, 2):
        with pytest.raises(FormatError, match=f"there is no schema {number}"):
            read(framed(number, b""))


@pytest.mark.parametrize("where", ["/no/such/folder", 3, [OLD]])
def test_where_schemas_cannot_be_is_a_mistake(where: Any) -> None:
    """Told when the format is made ready."""
    with pytest.raises(ConfigError, match="schemas must be a folder"):
        bound(Avro(schemas=where), ["label"])
