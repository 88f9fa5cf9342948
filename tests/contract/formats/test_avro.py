"""`Avro`: what fastavro writes comes back, as views and arrays, and hostile values cost their record alone."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example as example_of
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.properties import examples
from kit.written import EXAMPLE, avro, example, plain

from dali_feed.errors import FormatError, SourceUnreachableError
from dali_feed.formats import Avro, bound

MEMBERS = ["body.features", "body.label", "body.image", "header.timestamp", "body.image_id"]
READ = bound(Avro(EXAMPLE), MEMBERS)


@pytest.mark.parametrize("kind", ["dict", "text", "path", "name of a file"])
def test_a_record_with_header_and_body(kind: str, tmp_path: Path) -> None:
    """Its members by path, whichever way the schema is given; a logical type is the number that it is stored as."""
    path = tmp_path / "record.avsc"
    path.write_text(json.dumps(EXAMPLE))
    schema: Any = {"dict": EXAMPLE, "text": json.dumps(EXAMPLE), "path": path, "name of a file": str(path)}[kind]
    features, label, image, timestamp, name = bound(Avro(schema), MEMBERS)(avro(EXAMPLE, example(9)))
    assert features.dtype == np.float32
    assert features.tolist() == example(9)["body"]["features"]
    assert (label, bytes(image), timestamp, name) == (-7, b"\xff\xd8 an image", 1_700_000_000_123, "a-1")


def test_features_and_image_are_views_of_the_value() -> None:
    """No byte of them is copied."""
    value = avro(EXAMPLE, example(2048, bytes(100_000)))
    features, image = READ(value)[0], READ(value)[2]
    whole = np.frombuffer(value, np.uint8)
    assert np.shares_memory(features, whole)
    assert np.shares_memory(np.frombuffer(image, np.uint8), whole)


def test_a_null_is_given_as_none() -> None:
    """It is there, and nothing: what takes the member decides."""
    assert READ(avro(EXAMPLE, example(image=None)))[2] is None


def test_a_record_and_a_member_of_it() -> None:
    """Both may be asked for, and a number of a list."""
    read = bound(Avro(EXAMPLE), ["body", "body.label", "body.features[1]", "$"])
    body, label, feature, whole = read(avro(EXAMPLE, example()))
    assert body["label"] == label == -7
    assert (feature, type(feature)) == (0.125, float)
    assert whole["body"]["image_id"] == "a-1"


def test_cut_anywhere_or_longer_is_a_bad_record() -> None:
    """Also where what was asked for is whole."""
    value = avro(EXAMPLE, example())
    read = bound(Avro(EXAMPLE), ["header.version"])
    for size in range(len(value)):
        with pytest.raises(FormatError, match="^avro: "):
            READ(value[:size])
        with pytest.raises(FormatError, match="^avro: "):
            read(value[:size])
    with pytest.raises(FormatError, match="1 of .* bytes are left over"):
        read(value + b"\0")


LEAVES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "long": st.integers(-(1 << 63), (1 << 63) - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=20),
    "string": st.text(max_size=20),
}


NAMES, FEW, MANY = st.text(max_size=5), st.lists(st.none(), max_size=4), st.lists(st.none(), max_size=40)
SYMBOLS, THREE, FIELDS = st.sampled_from("ABC"), st.binary(min_size=3, max_size=3), st.integers(0, 4)
NULLED = st.booleans()
INNER = st.sampled_from([*LEAVES, "enum", "fixed", *["array", "map", "union", "record"] * 2])
LAST = st.sampled_from([*LEAVES, "enum", "fixed"])
Draw = Callable[[st.SearchStrategy[Any]], Any]


@dataclass
class Made:
    """A schema, how a value of it is drawn, and whether values take bytes."""

    schema: Any
    value: Callable[[Draw], Any]
    solid: bool = True


def leaf(kind: str) -> Made:
    """What has no schema within."""
    return Made(kind, lambda draw: draw(LEAVES[kind]), kind != "null")


def made(draw: Draw, numbers: Iterator[int], depth: int = 3) -> Made:
    """Any schema: names are numbered, for each may be defined once."""
    name = f"N{next(numbers)}"
    kind = draw(INNER if depth else LAST)
    if kind in LEAVES:
        return leaf(kind)
    if kind == "enum":
        return Made({"type": "enum", "name": name, "symbols": ["A", "B", "C"]}, lambda draw: draw(SYMBOLS))
    if kind == "fixed":
        return Made({"type": "fixed", "name": name, "size": 3}, lambda draw: draw(THREE))
    if kind == "record":
        fields = {f"f{k}": made(draw, numbers, depth - 1) for k in range(draw(FIELDS))}
        schema = [{"name": field, "type": each.schema} for field, each in fields.items()]
        return Made(
            {"type": "record", "name": name, "fields": schema},
            lambda draw: {field: each.value(draw) for field, each in fields.items()},
            any(each.solid for each in fields.values()),
        )
    inner = made(draw, numbers, depth - 1)
    if kind == "map":
        by_name = {"type": "map", "values": inner.schema}
        return Made(by_name, lambda draw: {draw(NAMES): inner.value(draw) for _ in draw(FEW)})
    if kind == "array":
        inner = inner if inner.solid else leaf("long")
        return Made({"type": "array", "items": inner.schema}, lambda draw: [inner.value(draw) for _ in draw(MANY)])
    if isinstance(inner.schema, list) or inner.schema == "null":
        inner = leaf("string")
    return Made(["null", inner.schema], lambda draw: None if draw(NULLED) else inner.value(draw))


@st.composite
def records(draw: Draw) -> tuple[dict[str, Any], dict[str, Any]]:
    """A record of any fields, and its schema."""
    numbers = itertools.count()
    fields = {f"x{k}": made(draw, numbers) for k in range(1 + draw(FIELDS) % 4)}
    schema = {"type": "record", "name": "Top", "fields": [{"name": k, "type": m.schema} for k, m in fields.items()]}
    return schema, {name: each.value(draw) for name, each in fields.items()}


@given(records())
@examples(times=3)
def test_what_fastavro_writes_comes_back(record: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Any schema, any value of it: as a whole, and each field by itself with all others gone over."""
    schema, value = record
    written = avro(schema, value)
    assert plain(bound(Avro(schema), ["$"])(written)[0]) == value
    for name, held in value.items():
        assert plain(bound(Avro(schema), [name])(written)[0]) == held
    assert bound(Avro(schema), [])(written) == ()


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=200), st.sampled_from(["int", "long"]))
@example_of(list(range(-70000, 70000, 997)), "long")
@settings(deadline=None)
def test_whole_numbers_in_a_row_are_an_array(numbers: list[int], kind: str) -> None:
    """int64, whether they are few or many, long or short."""
    numbers = [number >> 33 for number in numbers] if kind == "int" else numbers
    schema = {"type": "array", "items": kind}
    (found,) = bound(Avro(schema), ["$"])(avro(schema, numbers))
    assert found.dtype == np.int64
    assert found.tolist() == numbers


def number(value: int) -> bytes:
    """A long as Avro writes it."""
    return avro("long", value)


def blocks(*parts: tuple[int, bytes], told: bool) -> bytes:
    """An array in blocks of so many items; told: each with its size in bytes, as some writers do."""
    out = b"".join((number(-n) + number(len(part)) if told else number(n)) + part for n, part in parts)
    return out + b"\0"


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("items", ["float", "double", "long", "boolean", "string", {"type": "map", "values": "int"}])
def test_an_array_in_several_blocks(items: Any, told: bool) -> None:
    """Read or gone over, with or without the blocks' sizes in bytes."""
    values: dict[str, list[Any]] = {"string": ["a", "bc"], "boolean": [True, False], "long": [1, -200]}
    held = values.get(items if isinstance(items, str) else "", [1.5, -2.0])
    held = [{"a": 1}, {}] if isinstance(items, dict) else held
    part = b"".join(avro(items, each) for each in held)
    schema = {"type": "record", "name": "R", "fields": [
        {"name": "a", "type": {"type": "array", "items": items}}, {"name": "b", "type": "int"}]}  # fmt: skip
    value = blocks((2, part), (2, part), told=told) + number(5)
    found, last = bound(Avro(schema), ["a", "b"])(value)
    assert (plain(found), last) == (held * 2, 5)
    assert bound(Avro(schema), ["b"])(value) == (5,)


TREE = {"type": "record", "name": "Tree", "fields": [
    {"name": "value", "type": "int"},
    {"name": "left", "type": ["null", "Tree"]},
    {"name": "right", "type": ["null", "Tree"]},
]}  # fmt: skip


def test_a_schema_may_name_itself() -> None:
    """Values of it are read as deep as they go."""
    tree: Any = None
    for k in range(64):
        tree = {"value": k, "left": tree, "right": None}
    assert bound(Avro(TREE), ["$"])(avro(TREE, tree)) == (tree,)
    assert bound(Avro(TREE), ["left.left.value"])(avro(TREE, tree)) == (61,)


def test_a_member_that_this_value_has_not_is_a_bad_record() -> None:
    """A shorter list, another branch, a map without the key."""
    inner = {"type": "record", "name": "I", "fields": [{"name": "d", "type": "int"}]}
    schema = {"type": "record", "name": "R", "fields": [
        {"name": "list", "type": {"type": "array", "items": inner}},
        {"name": "map", "type": {"type": "map", "values": "I"}},
        {"name": "maybe", "type": ["null", "I"]},
        {"name": "row", "type": {"type": "array", "items": "int"}},
    ]}  # fmt: skip
    paths = ["list[1].d", "map.a.d", "maybe.d", "row[1]"]
    full = {"list": [{"d": 1}, {"d": 2}], "map": {"a": {"d": 3}}, "maybe": {"d": 4}, "row": [5, 6]}
    assert bound(Avro(schema), paths)(avro(schema, full)) == (2, 3, 4, 6)
    less = {"list": [{"d": 1}], "map": {"b": {"d": 3}}, "maybe": None, "row": [5]}
    for path in paths:
        with pytest.raises(FormatError, match="no such member"):
            bound(Avro(schema), [path])(avro(schema, less))


def test_importing_it_loads_no_fastavro() -> None:
    """Only a schema that is read does."""
    code = "import sys; from dali_feed.formats import Avro; Avro('int'); assert 'fastavro' not in sys.modules"
    assert subprocess.run([sys.executable, "-I", "-c", code], check=False).returncode == 0


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


def test_a_folder_without_that_schema_is_a_bad_record(tmp_path: Path) -> None:
    """A schema in another form too."""
    tmp_path.joinpath("2.avsc").write_bytes(b"\xff\xfe")
    read = bound(Avro(schemas=tmp_path), ["label"])
    for number in (1, 2):
        with pytest.raises(FormatError, match=f"there is no schema {number}"):
            read(framed(number, b""))
