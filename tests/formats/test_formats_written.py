"""Members written as one value and read back by the same format; what it cannot hold, and what nobody can ask of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.properties import examples
from kit.written import EXAMPLE, avro, example, message_class, npy

from dali_feed.errors import ConfigError, FormatError
from dali_feed.formats import Avro, Json, MsgPack, Npy, Protobuf, bound
from dali_feed.formats.written import encoder, title_of

BODY = ("body.image_id", "body.features", "body.label", "body.image")
HEADER = ("header.version", "header.timestamp", "header.source")
INNER = {"type": "record", "name": "I", "fields": [{"name": "a", "type": "int"}]}
FLOATS = st.floats(width=32, allow_nan=False)


def through(form: Any, members: dict[str, Any]) -> list[Any]:
    """What is read of what was written, without NumPy and views."""
    found = bound(form, list(members))(encoder(form, tuple(members))(members))
    return [
        each.tolist() if isinstance(each, np.ndarray) else bytes(each) if isinstance(each, memoryview) else each
        for each in found
    ]


@given(
    st.text(max_size=5),
    st.lists(FLOATS, max_size=20),
    st.integers(-(1 << 31), (1 << 31) - 1),
    st.none() | st.binary(max_size=9),
)
@examples(times=0.8)
def test_what_is_written_comes_back(source: str, features: list[float], label: int, image: bytes | None) -> None:
    """Texts, rows of numbers, whole numbers, bytes and nulls, in records of records, from lists and from arrays."""
    header = dict(zip(HEADER, (3, 1 << 40, source), strict=True))
    for row in (features, np.array(features, np.float32)):
        body = dict(zip(BODY, (source, row, label, image), strict=True))
        assert through(Avro(EXAMPLE), header | body) == [3, 1 << 40, source, source, features, label, image]
        told = {"source": source, "body.features": row, "body.label": label, "body.image": image or b""}
        assert through(Protobuf(message_class()), told) == [source, features, label, image or b""]
        assert through(MsgPack(), {"features": row, "label": label}) == [features, label]
        assert through(Npy(), {"array": row}) == [features]


@pytest.mark.parametrize("dtype", ["f4", "i2", ">f8"])
def test_a_row_of_numbers_may_be_a_npy_file(dtype: str) -> None:
    """Which is all that a tar shard has."""
    file = npy(np.array([1, 2, 3], dtype))
    for value in (file, memoryview(file)):
        assert through(record({"type": "array", "items": "float"}), {"x": value}) == [[1, 2, 3]]
        assert through(Protobuf(message_class()), {"body.features": value}) == [[1, 2, 3]]


def test_what_is_written_is_as_its_own_library_has_it() -> None:
    """Byte for byte, so that whoever reads Avro, or a .npy file, reads it."""
    record = example()
    members = {f"{outer}.{name}": value for outer, inner in record.items() for name, value in inner.items()}
    assert encoder(Avro(EXAMPLE), tuple(members))(members) == avro(EXAMPLE, record)
    held = npy(np.asfortranarray(np.arange(6, dtype=">i2").reshape(2, 3)))  # what is one already stays as it is
    assert encoder(Npy(), ("array",))({"array": memoryview(held)}) == held


def test_fields_of_every_kind() -> None:
    """Unions by the value's type, enums, fixed bytes, maps, lists of records, defaults, booleans."""
    kinds: dict[str, Any] = {
        "u": ["null", "string", "bytes", "long"],
        "e": {"type": "enum", "name": "E", "symbols": ["a", "b"]},
        "f": {"type": "fixed", "name": "F", "size": 2},
        "m": {"type": "map", "values": "int"},
        "r": {"type": "array", "items": {"type": "record", "name": "I", "fields": [{"name": "x", "type": "boolean"}]}},
    }
    fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
    form = Avro({"type": "record", "name": "R", "fields": [*fields, {"name": "d", "type": "int", "default": 7}]})
    for value in (None, "text", b"\xff", 1 << 40):
        members = {"u": value, "e": b"b", "f": b"12", "m": {"k": 1}, "r": [{"x": True}]}
        assert through(form, members) == [value, "b", b"12", {"k": 1}, [{"x": True}]]
        assert bound(form, ["d"])(encoder(form, tuple(members))(members)) == (7,)
    made = Protobuf(message_class())
    assert through(made, {"scores": {"a": 0.5}, "weight": 2, "body.ids": np.array([1 << 40])}) == [
        {"a": 0.5},
        2.0,
        [1 << 40],
    ]
    unset = encoder(made, ("weight", "source"))({"weight": None, "source": "x"})
    with pytest.raises(FormatError, match="weight: no such member"):
        bound(made, ["weight"])(unset)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("label", b"7x", "must be a number in decimal text; found '7x'"),
        ("label", 1 << 31, "must be a whole number in -2147483648..2147483647; found 2147483648"),
        ("label", True, "must be a whole number; found bool"),
        ("label", 1.5, "must be a whole number; found float"),
        ("features", 1.5, "must be a list; found float"),
        ("features", [1e39], "must be a number of 32 bits; found 1e"),
        ("features", [b"1e999"], "must be a number in decimal text; found '1e999'"),
        ("features", np.zeros((2, 2)), r"must be numbers in a row; found an array of shape \(2, 2\)"),
        ("image", "text", "must be bytes; found str"),
        ("names", [b"\xff"], "must be text in UTF-8; "),
    ],
)
def test_what_a_field_cannot_hold_is_a_bad_record(name: str, value: Any, said: str) -> None:
    """Whichever of the two formats with a schema: the reason names the field, and nothing is made smaller to fit."""
    kinds = {"label": "int", "image": "bytes"}
    kind = kinds.get(name, {"type": "array", "items": "float" if name == "features" else "string"})
    form = Avro({"type": "record", "name": "R", "fields": [{"name": name, "type": kind}]})
    for encode, path in (
        (encoder(form, (name,)), name),
        (encoder(Protobuf(message_class()), (f"body.{name}",)), f"body.{name}"),
    ):
        with pytest.raises(FormatError, match=f"^(avro|protobuf): {path}: {said}"):
            encode({path: value})


@pytest.mark.parametrize("value", [b"x", "x", None, [[1], [1, 2]], [object()], np.array(["a"]), b"\x93NUMPY cut"])
def test_what_is_no_array_of_numbers_is_not_written(value: Any) -> None:
    """As .npy: its reader would not take it."""
    with pytest.raises(FormatError, match="^npy: "):
        encoder("npy", ("array",))({"array": value})


@pytest.mark.parametrize(
    ("form", "names", "said"),
    [
        (Avro(EXAMPLE), ("body.label",), "body.image_id: the schema needs it, and has no default"),
        (
            Avro(EXAMPLE),
            (*BODY, *HEADER, "body.lable"),
            "body.lable: no such field; cameras.Body has image_id, features,",
        ),
        (Avro(EXAMPLE), (*BODY, *HEADER, "body"), "body: must be the path of a field, and no other name may be"),
        (Avro(EXAMPLE), (*BODY, *HEADER[1:], "header.version.x"), "header.version: must be a record to have fields"),
        (
            Avro({"type": "record", "name": "R", "fields": [{"name": "x", "type": INNER}]}),
            ("x", "x.a"),
            "Avro: x.a: must be the path of a field, and no other name may be that path or lead",
        ),
        (Avro("long"), ("x",), "a schema to write with must be of type record; found long"),
        (Avro(schemas=lambda number: number), ("x",), "to write, must have schema= alone; found schemas="),
        (Avro("int", reader_schema="long"), ("x",), "to write, must have schema= alone; found reader_schema="),
        (Protobuf(message_class()), ("lable",), "lable: no such field; Record has source, body, weight, scores"),
        (Protobuf(message_class()), ("body",), "body: is a message, or a list of them: name fields of one"),
        (Protobuf(message_class()), ("source.x",), "source: must be a message to have fields of its own"),
        (Npy(), ("features",), "a .npy value has 'array' alone; found features"),
        (object(), ("x",), "must be .json., .msgpack., .*; found <object"),
    ],
)
def test_what_cannot_be_written_is_told_at_once(form: Any, names: tuple[str, ...], said: str) -> None:
    """Before any record: a field that there is not, one that lacks, a format that is read alone."""
    with pytest.raises(ConfigError, match=said):
        encoder(form, names)


def test_a_format_is_told_in_a_line() -> None:
    """The same for the same schema, however it is given, so that a journal's run goes on with no other."""
    other = EXAMPLE | {"name": "Other"}
    assert title_of(Avro(EXAMPLE)) == title_of(Avro(dict(reversed(EXAMPLE.items())))) != title_of(Avro(other))
    told = [title_of(each) for each in ("json", Json(), Json(base64=("a",)), Npy(), Protobuf(message_class()))]
    assert told == ["json", "json", "json a", "npy", "protobuf made.Record"]


def record(kind: Any, **more: Any) -> Avro:
    """A schema of one field `x`."""
    return Avro({"type": "record", "name": "R", "fields": [{"name": "x", "type": kind, **more}]})


ENUM = {"type": "enum", "name": "E", "symbols": ["day", "night"]}


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        ("null", 1, "x: must be of the type null; found 'int'"),
        (ENUM, "dawn", "x: must be of the type enum; found 'dawn'"),
        ({"type": "fixed", "name": "F", "size": 2}, b"abc", "x: must be of the type fixed; found b'abc'"),
        ({"type": "map", "values": "int"}, [1], "x: must be of the type map; found 'list'"),
        ({"type": "map", "values": "int"}, {"a": "b"}, "x.a: must be a number in decimal text; found 'b'"),
        (["null", "int"], "many", "x: must be a number in decimal text; found 'many'"),
        (["null"], 1, "x: must be null; found int"),
        (["int", "string"], None, "x: must be a whole number; found nothing"),
        (INNER, 5, "x: must be a record; found int"),
        (INNER, None, "x: must be a record; found nothing"),
        (INNER, {}, "x.a: must be a whole number; found nothing"),
        ("boolean", "yes", "x: must be a boolean; found str"),
        ("string", 7, "x: must be a text; found int"),
        ("double", [1.0], "x: must be a number; found list"),
        ("double", 10**400, "x: must be a number of 64 bits; found 1000"),
        ({"type": "array", "items": "int"}, np.array([True]), "x: must be a whole number; found bool"),
        ("long", "1_0", "x: must be a number in decimal text; found '1_0'"),
    ],
)
def test_what_a_schema_cannot_hold_names_the_place(kind: Any, value: Any, said: str) -> None:
    """Of every kind of Avro's: the path of the field, the type that is needed, and what was given."""
    with pytest.raises(FormatError, match=f"^avro: {said}"):
        encoder(record(kind), ("x",))({"x": value})


def test_a_field_of_a_record_that_may_lack_is_written() -> None:
    """A union of null and one record has fields by their paths, as a record has."""
    form = record(["null", INNER])
    assert through(form, {"x.a": 5}) == [5]
    assert encoder(record("null"), ("x",))({"x": None}) == b""  # whose field takes no byte
    assert encoder(record(["null"]), ("x",))({"x": None}) == b"\0"
    with pytest.raises(ConfigError, match=r"Avro: x.b: no such field; I has a"):
        encoder(form, ("x.b",))


@pytest.mark.parametrize(
    ("form", "value", "said"),
    [
        ("json", float("nan"), "json: Out of range float values"),
        ("json", "half a pair \ud800", "json: 'utf-8' codec can't encode"),
        ("json", {1, 2}, "json: Object of type set is not JSON serializable"),
        ("msgpack", 1 << 70, "msgpack: Integer value out of range"),
        ("msgpack", {1, 2}, "msgpack: "),
    ],
)
def test_what_has_no_form_in_text_or_messagepack_is_a_bad_record(form: str, value: Any, said: str) -> None:
    """Its reason is the library's, behind the format's name."""
    with pytest.raises(FormatError, match=said):
        encoder(form, ("x",))({"x": value})


def test_bytes_are_written_as_base64_in_json_where_it_is_told_so() -> None:
    """Else they are text, and a bad record where they are none."""
    members = {"a": b"\xff\x00", "b": 1}
    assert encoder(Json(base64=("a",)), ("a", "b"))(members) == b'{"a":"/wA=","b":1}'
    with pytest.raises(FormatError, match="json: a: must be text in UTF-8; .*; name it in "):
        encoder("json", ("a", "b"))(members)
