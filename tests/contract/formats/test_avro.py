"""`Avro`: what fastavro writes comes back, as views and arrays, and hostile values cost their record alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example as example_of
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.properties import examples
from kit.written import EXAMPLE, avro, example

from dali_feed.errors import ConfigError, FormatError
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


class Made:
    """A schema, values of it, and whether they take bytes."""

    def __init__(self, schema: Any, values: st.SearchStrategy[Any], solid: bool = True) -> None:
        self.schema, self.values, self.solid = schema, values, solid


@st.composite
def made(draw: Callable[..., Any], depth: int = 3, numbers: Any = None) -> Made:
    """Any schema: names are numbered, for each may be defined once."""
    numbers = [0] if numbers is None else numbers
    numbers[0] += 1
    name = f"N{numbers[0]}"
    kind = draw(st.sampled_from([*LEAVES, "enum", "fixed", *(["array", "map", "union", "record"] * 2 * (depth > 0))]))
    if kind in LEAVES:
        return Made(kind, LEAVES[kind], kind != "null")
    if kind == "enum":
        return Made({"type": "enum", "name": name, "symbols": ["A", "B", "C"]}, st.sampled_from("ABC"))
    if kind == "fixed":
        return Made({"type": "fixed", "name": name, "size": 3}, st.binary(min_size=3, max_size=3))
    if kind == "record":
        fields = [draw(made(depth - 1, numbers)) for _ in range(draw(st.integers(0, 4)))]
        schema = [{"name": f"f{k}", "type": each.schema} for k, each in enumerate(fields)]
        values = st.fixed_dictionaries({f"f{k}": each.values for k, each in enumerate(fields)})
        return Made({"type": "record", "name": name, "fields": schema}, values, any(each.solid for each in fields))
    inner = draw(made(depth - 1, numbers))
    if kind == "map":
        return Made(
            {"type": "map", "values": inner.schema}, st.dictionaries(st.text(max_size=5), inner.values, max_size=4)
        )
    if kind == "array":
        if not inner.solid:
            inner = Made("long", LEAVES["long"])
        return Made({"type": "array", "items": inner.schema}, st.lists(inner.values, max_size=40))
    if isinstance(inner.schema, list) or inner.schema == "null":
        inner = Made("string", LEAVES["string"])
    return Made(["null", inner.schema], st.none() | inner.values)


def plain(value: Any) -> Any:
    """As fastavro takes it: lists for arrays, bytes for views."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, list):
        return [plain(each) for each in value]
    return {key: plain(each) for key, each in value.items()} if isinstance(value, dict) else value


@given(st.data())
@examples(times=3)
def test_what_fastavro_writes_comes_back(data: st.DataObject) -> None:
    """Any schema, any value of it: as a whole, and each field by itself with all others gone over."""
    fields = data.draw(
        st.lists(made(), min_size=1, max_size=4).map(lambda all_: [renamed(k, m) for k, m in enumerate(all_)])
    )
    schema = {
        "type": "record",
        "name": "Top",
        "fields": [{"name": f"x{k}", "type": m.schema} for k, m in enumerate(fields)],
    }
    value = {f"x{k}": data.draw(m.values) for k, m in enumerate(fields)}
    written = avro(schema, value)
    assert plain(bound(Avro(schema), ["$"])(written)[0]) == value
    for name, held in value.items():
        assert plain(bound(Avro(schema), [name])(written)[0]) == held
    assert bound(Avro(schema), [])(written) == ()


def renamed(k: int, one: Made) -> Made:
    """The same with names of its own."""
    return Made(json.loads(json.dumps(one.schema).replace('"name": "N', f'"name": "N{k}_')), one.values, one.solid)


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


def test_a_very_deep_value_is_a_bad_record() -> None:
    """A hundred thousand levels end fastavro's reader, and the process with it."""
    for members in (["$"], ["value"], ["right.value"]):
        with pytest.raises(FormatError, match="may be nested in a few hundred others"):
            bound(Avro(TREE), members)(b"\x02\x02" * 100_000 + b"\0\0\0")


EMPTY = {"type": "record", "name": "E", "fields": [{"name": "n", "type": "null"}]}


@pytest.mark.parametrize("items", ["null", {"type": "fixed", "name": "F", "size": 0}, EMPTY])
def test_items_that_take_no_bytes_are_refused(items: Any) -> None:
    """Five bytes could announce a hundred million of them."""
    with pytest.raises(FormatError, match="items of an array must take at least one byte"):
        bound(Avro({"type": "array", "items": items}), ["$"])


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("bytes", number(1 << 40)),
        ("bytes", number(-1)),
        ("string", number(1 << 62) + b"abc"),
        ("string", number(1) + b"\xff"),
        ("boolean", b"\x02"),
        ("long", b"\xff" * 9 + b"\x02"),
        ("long", b"\xff" * 20),
        ("long", b"\x80" * 3),
        ({"type": "array", "items": "float"}, number(1 << 40)),
        ({"type": "array", "items": "long"}, number(1 << 62)),
        ({"type": "array", "items": "long"}, number(20) + b"\x80" * 40),
        ({"type": "array", "items": "long"}, number(20) + b"\xff" * 12 + b"\0" * 30),
        ({"type": "array", "items": "boolean"}, number(2) + b"\x01\x05\0"),
        ({"type": "array", "items": "string"}, number(-3) + number(-9)),
        ({"type": "array", "items": "string"}, number(-(1 << 63)) + number(0)),
        ({"type": "map", "values": "null"}, number(1 << 33)),
        (["null", "int"], number(2)),
        (["null", "int"], number(-1)),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, number(1)),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, number(-1)),
        ({"type": "fixed", "name": "F", "size": 9}, b"12345678"),
    ],
)
def test_what_is_announced_is_held_to_what_is_there(schema: Any, value: bytes) -> None:
    """Lengths, counts, branches, symbols and numbers, each with a named reason."""
    with pytest.raises(FormatError, match="^(avro|Avro): "):
        bound(Avro(schema), ["$"])(value)
    record = {"type": "record", "name": "R", "fields": [{"name": "a", "type": schema}, {"name": "b", "type": "int"}]}
    with pytest.raises(FormatError):
        bound(Avro(record), ["b"])(value)


@pytest.mark.parametrize(
    ("member", "said"),
    [
        ("label", "label: no such member; cameras.Record has header, body"),
        ("body.lable", "body.lable: no such member; cameras.Body has image_id, features"),
        ("body.label.x", "body.label.x: no such member; body.label is of type int"),
        ("body.image.x", "body.image.x: no such member; body.image is of type bytes"),
        ("body..x", "must be a path"),
    ],
)
def test_a_member_that_no_value_can_have_is_told_at_once(member: str, said: str) -> None:
    """With the names that there are."""
    with pytest.raises(ConfigError, match=said):
        bound(Avro(EXAMPLE), ["header.version", member])


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


@pytest.mark.parametrize(
    "schema",
    ["{", "no.avsc", {"type": "rec"}, {"type": "record", "name": "R"} | {"fields": [{"name": "a"}]}, 3, [["x"]], b"1"],
)
def test_what_is_no_schema_is_a_mistake(schema: Any) -> None:
    """Told when the format is made ready."""
    with pytest.raises(ConfigError, match="^Avro: "):
        bound(Avro(schema), ["$"])


def test_one_of_two_ways_to_the_schema() -> None:
    """Neither and both are mistakes."""
    for schema, schemas in ((None, None), (EXAMPLE, "folder")):
        with pytest.raises(ConfigError, match="must have either schema="):
            Avro(schema, schemas)


def test_importing_it_loads_no_fastavro() -> None:
    """Only a schema that is read does."""
    code = "import sys; from dali_feed.formats import Avro; Avro('int'); assert 'fastavro' not in sys.modules"
    assert subprocess.run([sys.executable, "-I", "-c", code], check=False).returncode == 0
