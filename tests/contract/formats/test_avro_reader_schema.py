"""`Avro(reader_schema=)`: values of any schema are read as one, by Avro's rules of schema resolution."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import fastavro
import numpy as np
import pytest
from fastavro.read import SchemaResolutionError
from hypothesis import given
from hypothesis import strategies as st
from kit.properties import examples
from kit.written import avro, plain

from dali_feed.errors import ConfigError, FormatError
from dali_feed.formats import Avro, bound


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    """A record of such fields: (name, type), or (name, type, default, aliases)."""
    keys = ("name", "type", "default", "aliases")
    shown = [{key: value for key, value in zip(keys, field, strict=False) if value is not ...} for field in fields]
    return {"type": "record", "name": name, "fields": shown, **more}


def enum(*symbols: str, name: str = "E", **more: Any) -> dict[str, Any]:
    """An enum of these."""
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


def fixed(size: int, name: str = "F", **more: Any) -> dict[str, Any]:
    """So many bytes."""
    return {"type": "fixed", "name": name, "size": size, **more}


def array(items: Any) -> dict[str, Any]:
    """An array of these."""
    return {"type": "array", "items": items}


def read_as(writer: Any, reader: Any, value: Any) -> Any:
    """The whole value, written with one schema and read as the other."""
    return plain(bound(Avro(writer, reader_schema=reader), ["$"])(avro(writer, value))[0])


NULL_OR_TREE = ["null", "Tree"]
TREE = record(("value", "int"), ("left", NULL_OR_TREE), ("dropped", "string"), ("right", NULL_OR_TREE), name="Tree")
WIDE_TREE = record(
    ("right", NULL_OR_TREE), ("name", "string", "leaf"), ("left", NULL_OR_TREE), ("value", "double"), name="Tree"
)
LEAF = {"value": 1, "left": None, "dropped": "x", "right": None}

ROWS = {
    "a field in another order": (
        record(("a", "int"), ("b", "string")),
        record(("b", "string"), ("a", "int")),
        {"a": 1, "b": "x"},
        {"b": "x", "a": 1},
    ),
    "a field is dropped": (
        record(("a", "int"), ("b", array("string"))),
        record(("a", "int")),
        {"a": 1, "b": ["x"]},
        {"a": 1},
    ),
    "a field is new": (record(("a", "int")), record(("a", "int"), ("b", "string", "x")), {"a": 1}, {"a": 1, "b": "x"}),
    "a new field may be null": (record(), record(("b", ["null", "int"], None)), {}, {"b": None}),
    "a default of another branch": (record(), record(("b", ["null", "int"], 3)), {}, {"b": 3}),
    "a default of another branch in bytes": (record(), record(("b", ["null", "bytes"], "\u00ff")), {}, {"b": b"\xff"}),
    "a default in bytes": (record(), record(("b", "bytes", "\u00ff\u0001")), {}, {"b": b"\xff\x01"}),
    "a default of a fixed": (record(), record(("b", fixed(2), "\u00ff\u0001")), {}, {"b": b"\xff\x01"}),
    "a default of numbers": (record(), record(("b", array("float"), [1, 2.5])), {}, {"b": [1.0, 2.5]}),
    "a default of a double": (record(), record(("b", "double", 1)), {}, {"b": 1.0}),
    "a default of a map": (
        record(),
        record(("b", {"type": "map", "values": "bytes"}, {"k": "v"})),
        {},
        {"b": {"k": b"v"}},
    ),
    "a default of an enum": (record(), record(("b", enum("A", "B"), "B")), {}, {"b": "B"}),
    "a default of a record": (
        record(),
        record(("b", record(("x", "int", 3), ("y", array("bytes")), name="I"), {"y": ["\u00ff"]})),
        {},
        {"b": {"x": 3, "y": [b"\xff"]}},
    ),
    "an alias of a field": (
        record(("old", "int")),
        record(("new", "int", ..., ["older", "old"])),
        {"old": 1},
        {"new": 1},
    ),
    "a name is before an alias": (
        record(("old", "int"), ("new", "int")),
        record(("new", "int", ..., ["old"])),
        {"old": 1, "new": 2},
        {"new": 2},
    ),
    "an alias that is another field's name": (
        record(("b", "int")),
        record(("a", "int", 7, ["b"]), ("b", "int")),
        {"b": 1},
        {"a": 7, "b": 1},
    ),
    "an alias of a record": (
        record(("a", "int"), name="n.Old"),
        record(("a", "int"), name="m.New", aliases=["n.Old"]),
        {"a": 1},
        {"a": 1},
    ),
    "a namespace is nothing": (record(("a", "int"), name="n.R"), record(("a", "int"), name="m.R"), {"a": 1}, {"a": 1}),
    "int as long": ("int", "long", 3, 3),
    "int as float": ("int", "float", 3, 3.0),
    "int as double": ("int", "double", -3, -3.0),
    "long as float": ("long", "float", 1 << 40, float(1 << 40)),
    "long as double": ("long", "double", 1 << 40, float(1 << 40)),
    "float as double": ("float", "double", 0.5, 0.5),
    "string as bytes": ("string", "bytes", "\u00e4", "\u00e4".encode()),
    "bytes as string": ("bytes", "string", "\u00e4".encode(), "\u00e4"),
    "a logical type": ({"type": "int", "logicalType": "date"}, "long", 3, 3),
    "an array of ints as longs": (array("int"), array("long"), [1, -300], [1, -300]),
    "an array of longs as doubles": (array("long"), array("double"), [1, -300] * 20, [1.0, -300.0] * 20),
    "an empty array": (array("int"), array("double"), [], []),
    "an array as one of a union": (array("int"), array(["null", "double"]), [1, 2], [1.0, 2.0]),
    "an array of a union as numbers": (array(["int", "double"]), array("double"), [1, 2.5], [1.0, 2.5]),
    "an array of texts as bytes": (array("string"), array("bytes"), ["a"], [b"a"]),
    "a map": ({"type": "map", "values": "int"}, {"type": "map", "values": "double"}, {"k": 1}, {"k": 1.0}),
    "an enum with fewer symbols": (enum("A", "B"), enum("C", "A"), "A", "A"),
    "a default for other symbols": (enum("A", "B"), enum("C", "A", default="C"), "B", "C"),
    "an alias of an enum": (enum("A", name="Old"), enum("A", aliases=["Old"]), "A", "A"),
    "a fixed": (fixed(2, "n.F"), fixed(2), b"ab", b"ab"),
    "a type as a union": ("int", ["null", "string", "double", "long"], 3, 3.0),
    "a union as a type": (["null", "int"], "double", 3, 3.0),
    "a union as a union": (["null", "int", "string"], ["bytes", "null", "float"], "a", b"a"),
    "a record as one of a union": (
        record(("a", "int"), name="A"),
        ["null", record(("b", "int"), name="B"), record(("a", "long"), name="A")],
        {"a": 1},
        {"a": 1},
    ),
    "a branch that fits": (
        ["null", record(("a", "int"), name="A")],
        ["null", record(("b", "int"), name="A"), record(("a", "long"), name="n.A")],
        {"a": 1},
        {"a": 1},
    ),
    "a schema that names itself": (
        TREE,
        WIDE_TREE,
        {**LEAF, "right": LEAF},
        {
            "right": {"right": None, "name": "leaf", "left": None, "value": 1.0},
            "name": "leaf",
            "left": None,
            "value": 1.0,
        },
    ),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_value_is_read_as_the_readers_schema_has_it(row: tuple[Any, Any, Any, Any]) -> None:
    """Types too: 1 is not 1.0."""
    writer, reader, value, expected = row
    found = read_as(writer, reader, value)
    assert repr(found) == repr(expected)


REFUSED = {
    "a new field without a default": (
        record(("a", "int")),
        record(("a", "int"), ("b", record(("c", "int"), name="I"), ..., ["d"])),
        r"reader_schema: b: must have a default, or a name or alias of a field that R was written with; found none",
    ),
    "a number made narrower": (
        record(("a", array("double"))),
        record(("a", array("float"))),
        r"a: must be double, or .* as it was written; found float",
    ),
    "another kind": (
        record(("a", "int")),
        record(("a", "string")),
        "a: must be int or long or float or double, .*; found string",
    ),
    "null where none can be": ("null", "int", r"\$: must be null, or a union with it, as it was written; found int"),
    "a union of which no branch fits": (
        ["null", "string"],
        ["int", "boolean"],
        "must be string or bytes, .*; found boolean",
    ),
    "another record": (record(), record(name="S"), "must be record R, by name or alias, .*; found record S"),
    "another size": (fixed(2), fixed(3), "must be fixed F 2, .*; found fixed F 3"),
    "values of a map": ({"type": "map", "values": "int"}, {"type": "map", "values": "bytes"}, "must be int"),
    "a default of another type": (
        record(),
        record(("b", record(("x", "int"), name="I"), {})),
        "b: must have a default of its type; found {}",
    ),
    "no branch at all": ("int", [], "must be int"),
    "no branch was written": ([], "int", "found int"),
    "a schema that is none": ("int", "nope", "must be a schema of Avro"),
}


@pytest.mark.parametrize("row", REFUSED.values(), ids=REFUSED)
def test_schemas_that_cannot_fit_are_refused_before_a_value_is_read(row: tuple[Any, Any, str]) -> None:
    """With the field, the rule, and what is there; where values name their schemas, each is a bad record."""
    writer, reader, said = row
    with pytest.raises(ConfigError, match=said):
        bound(Avro(writer, reader_schema=reader), ["$"])
    if reader != "nope":
        read = bound(Avro(schemas={7: json.dumps(writer)}.get, reader_schema=reader), ["$"])
        for _ in range(2):
            with pytest.raises(FormatError, match=f"{said}.*; schema 7"):
                read(b"\0\0\0\0\7\0")


def test_a_member_is_one_of_the_readers_schema() -> None:
    """Before a value has named its schema."""
    for form in (Avro(record(("a", "int")), reader_schema=record()), Avro(schemas={}.get, reader_schema=record())):
        with pytest.raises(ConfigError, match="a: no such member"):
            bound(form, ["a"])


def test_what_a_value_chooses_is_its_own_error() -> None:
    """A branch that the reader's schema has not, a symbol of an enum without a default."""
    read = bound(Avro(["null", "int", record(("a", "int"))], reader_schema="double"), ["$"])
    assert read(b"\2\6") == (3.0,)
    for value, kind in ((b"\0", "null"), (b"\4\2", "record R")):
        with pytest.raises(FormatError, match=f"must be {kind}, .*; found double"):
            read(value)
    read = bound(Avro(["null", record()], reader_schema=["null", record(("b", "int"))]), ["$"])
    assert read(b"\0") == (None,)
    with pytest.raises(FormatError, match="b: must have a default"):
        read(b"\2")
    read = bound(Avro(enum("A", "B"), reader_schema=enum("A")), ["$"])
    assert read(b"\0") == ("A",)
    with pytest.raises(FormatError, match="enum E: must have 'B' or a default; found neither"):
        read(b"\2")


def test_values_of_many_schemas_are_read_as_one() -> None:
    """A topic whose field was renamed, widened and added on the way."""
    old, new = record(("y", "int")), record(("text", "string"), ("label", "long"))
    reader = record(("label", "double", ..., ["y"]), ("text", ["null", "string"], None))
    read = bound(Avro(schemas={7: old, 8: new}.get, reader_schema=reader), ["label", "text"])
    assert read(b"\0\0\0\0\7" + avro(old, {"y": 1})) == (1.0, None)
    assert read(b"\0\0\0\0\x08" + avro(new, {"text": "b", "label": 2})) == (2.0, "b")


def test_numbers_and_bytes_stay_views() -> None:
    """Where the reader's schema has them as they were written."""
    writer = record(("x", array("float")), ("gone", "bytes"), ("image", "bytes"), ("n", array("int")))
    reader = record(("image", "bytes"), ("x", array("float")), ("n", array("float")))
    value = avro(writer, {"x": [0.5] * 9, "gone": b"", "image": b"abc", "n": [1, 2]})
    x, image, n = bound(Avro(writer, reader_schema=reader), ["x", "image", "n"])(value)
    memory = np.frombuffer(value, np.uint8)
    assert np.shares_memory(x, memory)
    assert np.shares_memory(np.frombuffer(image, np.uint8), memory)
    assert (n.dtype, n.tolist()) == (np.float32, [1, 2])


def test_each_value_has_defaults_of_its_own() -> None:
    """What a loop does to one changes no other."""
    reader = record(
        ("list", array("string"), ["a"]), ("map", {"type": "map", "values": "int"}, {}), ("n", array("int"), [1])
    )
    read = bound(Avro(record(), reader_schema=reader), ["list", "map", "n"])
    for _ in range(2):
        texts, numbers, row = read(b"")
        assert (texts, numbers, row.tolist(), row.dtype) == (["a"], {}, [1], np.int64)
        texts.append("b")
        numbers["k"] = 1
        row[0] = 2


def test_a_value_that_is_cut_is_a_bad_record() -> None:
    """Also where a field is gone over."""
    value = avro(TREE, {**LEAF, "right": LEAF})
    read = bound(Avro(TREE, reader_schema=WIDE_TREE), ["right.value"])
    assert read(value) == (1.0,)
    for size in range(len(value)):
        with pytest.raises(FormatError, match="^avro: "):
            read(value[:size])
    with pytest.raises(FormatError, match="may be nested in a few hundred"):
        read(b"\2\2" * 100_000)


KINDS = ["int", "long", "float", "double", "string", "null", "boolean"]
VALUES = {
    "int": st.integers(-(1 << 23), 1 << 23),
    "long": st.integers(-(1 << 23), 1 << 23),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(width=32, allow_nan=False),
    "string": st.text(max_size=3),
    "null": st.none(),
    "boolean": st.booleans(),
}
DEFAULTS = {"int": 1, "long": 2, "float": 1.5, "double": 2.5, "string": "d", "null": None, "boolean": True}
UNIONS = st.lists(st.sampled_from(KINDS), min_size=1, max_size=4, unique=True)
SHAPES = {False: st.sampled_from(KINDS), True: st.sampled_from([*KINDS, *["array", "map", "union"] * 2])}
FIELDS, NULLED = st.lists(st.sampled_from("abcd"), max_size=3, unique=True), st.booleans()
WHICH, ITEMS = st.integers(0, 11), st.lists(st.none(), min_size=1, max_size=3)
KEYED = st.lists(st.text(max_size=2), min_size=1, max_size=2)


def type_of(draw: Callable[[Any], Any], depth: int = 3) -> Any:
    """Any type; no array of nulls, which take no bytes."""
    kind = draw(SHAPES[depth > 0])
    if kind in KINDS:
        return kind
    if kind == "union":
        return draw(UNIONS)
    inner = type_of(draw, depth - 1)
    return {"type": "map", "values": inner} if kind == "map" else array("long" if inner == "null" else inner)


def value_of(draw: Callable[[Any], Any], schema: Any) -> Any:
    """A value of it, of no empty array: fastavro asks what items are read as only where there are some."""
    if isinstance(schema, str):
        return draw(VALUES[schema])
    if isinstance(schema, list):
        return value_of(draw, schema[draw(WHICH) % len(schema)])
    if schema["type"] == "array":
        return [value_of(draw, schema["items"]) for _ in draw(ITEMS)]
    return {key: value_of(draw, schema["values"]) for key in draw(KEYED)}


@st.composite
def read_otherwise(draw: Callable[[Any], Any]) -> tuple[Any, Any, dict[str, Any]]:
    """The schema of who writes, that of who reads, and a record."""
    known = draw(FIELDS)
    writer = record(*((name, type_of(draw)) for name in known))
    fields: list[Any] = []
    for name in draw(FIELDS):
        kind = type_of(draw)
        default = DEFAULTS[kind] if isinstance(kind, str) and draw(NULLED) else ...
        fields.append((name, kind, default))
    if fields and fields[-1][0] not in known:  # else fastavro takes what comes first
        fields[-1] = (*fields[-1], sorted(set(known) - {name for name, *_ in fields})[:1])
    return writer, record(*fields), {each["name"]: value_of(draw, each["type"]) for each in writer["fields"]}


@given(read_otherwise())
@examples(times=3)
def test_it_is_what_fastavro_reads(otherwise: tuple[Any, Any, dict[str, Any]]) -> None:
    """Any two schemas, any value: the same value, or an error from both."""
    writer, reader, value = otherwise
    written = avro(writer, value)
    try:
        expected = fastavro.schemaless_reader(io.BytesIO(written), writer, reader)
    except (SchemaResolutionError, ValueError):
        with pytest.raises((ConfigError, FormatError)):
            read_as(writer, reader, value)
    else:
        assert read_as(writer, reader, value) == expected
