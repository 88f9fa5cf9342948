"""What each format refuses: members that no value can have, when it is bound; values that are not what they say."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
import pytest
from kit.refused import refusals
from kit.written import EXAMPLE, avro, example, message_class, npy

from dali_feed.errors import ConfigError, FormatError
from dali_feed.formats import Avro, Example, Json, MsgPack, Npy, Protobuf, bound, format_of

Record = message_class()
INT = {"type": "record", "name": "R", "fields": [{"name": "label", "type": "int"}]}
TREE = {"type": "record", "name": "Tree", "fields": [
    {"name": "value", "type": "int"},
    {"name": "left", "type": ["null", "Tree"]},
    {"name": "right", "type": ["null", "Tree"]},
]}  # fmt: skip
NO_BYTES = "items of an array must take at least one byte"
LABLE = "body.lable: no such member; cameras.Body has image_id, features"
NO_ITEMS = {"type": "record", "name": "E", "fields": [{"name": "n", "type": "null"}]}
LOOP = {"type": "record", "name": "Loop", "fields": [{"name": "again", "type": "Loop"}]}  # which no value ends
PATHS = ["", ".", "a.", ".a", "a..b", "a[", "a[x]", "a[-1]", "a[1", 'a["b]', "a]b", "a.[0]"]
NO_SCHEMAS: list[Any] = [
    "{", "no.avsc", {"type": "rec"}, {"type": "record", "name": "R", "fields": [{"name": "a"}]}, 3, [["x"]], b"1"
]  # fmt: skip


def of(form: Any, *members: Any) -> Callable[[], object]:
    """Binds it."""
    return lambda: bound(form, members)


def items(of_array: Any) -> Any:
    """Avro's array of these."""
    return {"type": "array", "items": of_array}


@refusals(
    ConfigError,
    *((of(Json(), path), "must be a path") for path in PATHS),
    *((lambda path=path: Json(base64=(path,)), "must be a path") for path in PATHS),
    (of(MsgPack(), "a..b"), "must be a path"),
    (of(Npy(), "data"), "has 'array' alone"),
    (of(Avro(EXAMPLE), "header.version", "label"), "label: no such member; cameras.Record has header, body"),
    (
        of(Avro(EXAMPLE), "header.version", "body.lable"),
        "body.lable: no such member; cameras.Body has image_id, features",
    ),
    (of(Avro(EXAMPLE), "header.version", "body.label.x"), "body.label.x: no such member; body.label is of type int"),
    (of(Avro(EXAMPLE), "header.version", "body.image.x"), "body.image.x: no such member; body.image is of type bytes"),
    (of(Avro(EXAMPLE), "header.version", "body..x"), "must be a path"),
    *((of(Avro(schema), "$"), "^Avro: ") for schema in NO_SCHEMAS),
    (of(Avro(items("null")), "$"), NO_BYTES, FormatError),
    (of(Avro(items({"type": "fixed", "name": "F", "size": 0})), "$"), NO_BYTES, FormatError),
    (of(Avro(items(NO_ITEMS)), "$"), NO_BYTES, FormatError),
    (lambda: Avro(None, None), "must have either schema="),
    (lambda: Avro(EXAMPLE, "folder"), "must have either schema="),
    (of(Avro(schemas="/no/such/folder"), "label"), "schemas must be a folder"),
    (of(Avro(schemas=3), "label"), "schemas must be a folder"),
    (of(Avro(schemas=[INT]), "label"), "schemas must be a folder"),
    (of(Protobuf(Record), "lable"), "has the fields body, scores, source, weight"),
    (of(Protobuf(Record), "body.x"), "body has the fields crops, "),
    (of(Protobuf(Record), "body"), "is a message: ask for its fields"),
    (of(Protobuf(Record), "$"), "is a message: ask for its fields"),
    (of(Protobuf(Record), "body.images"), "is a list of messages"),
    (of(Protobuf(Record), "body.images[0]"), "is a message"),
    (of(Protobuf(Record), "body.images.data"), "has numbered items"),
    (of(Protobuf(Record), "body.label.x"), "is not a message"),
    (of(Protobuf(Record), "body[0]"), "has the fields"),
    (of(Protobuf(Record), "source[0]"), "is not a message"),
    (of(Protobuf(Record), "scores[0]"), "has keys of another kind"),
    (of(Protobuf(Record), "body.names[0][0]"), "is not a message"),
    (of(Protobuf(Record), "a..b"), "must be a path"),
    *((lambda odd=odd: Protobuf(odd), "must be given a message class") for odd in (3, dict, None, "Record")),
    *((lambda odd=odd: bound(Json(), odd), "^members: ") for odd in ("text", ["a", "a"], [1], [None])),
    (lambda: format_of("avro"), "must be one of json, msgpack, npy.* give Avro"),
    (lambda: format_of("jsn"), "must be one of json"),
    (lambda: format_of(Json), "give an object, not its class"),
    (lambda: format_of(3), "must have the methods bind"),
)
def test_what_no_value_can_give_is_told_at_once(call: Any, error: Any, said: str) -> None:
    """When the format is made or bound, with what there is; one text in the place of a list of them too."""
    with pytest.raises(error, match=said):
        call()


class Evil:
    """What a pickle would call."""

    def __reduce__(self) -> Any:
        return (time.sleep, (0,))


def number(value: int) -> bytes:
    """A long as Avro writes it."""
    return avro("long", value)


def header(text: str, version: int = 1) -> bytes:
    """A `.npy` file with that header, and eight bytes behind it."""
    size = len(text).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + size + text.encode("latin-1") + bytes(8)


def feature(held: bytes) -> bytes:
    """An example with this as its feature x."""

    def field(number: int, held: bytes) -> bytes:
        return bytes([number << 3 | 2, len(held)]) + held

    return field(1, field(1, field(1, b"x") + field(2, held)))


def base64_of(held: Any) -> bytes:
    """A document whose x should be base64."""
    return json.dumps({"x": held}).encode()


NO_JSON = [
    *(b"", b"{", b"NaN", b"[Infinity]", b"1e400", b"-1e400", b"1" * 400, b"1" * 5000, b'"\\ud800"', b'{"\\udc00": 1}'),
    *(b"\xef\xbb\xbf1", b"\xff", b'"\xed\xa0\x80"', b'"\x01"', b"01", b"1 2", b"'a'", b"[1,]", b"\x0c1"),
    *(b"[" * 100_000, b'{"a":' * 100_000, b"[" * 2000 + b"]" * 2000),
]
NO_BASE64 = [
    *("!!!!", "abc", "ab=c", "YQ==YQ==", "ä", "YWJj=", "YWJj====", "YWI=\\n=", "-_-_", "data:text/plain,abc"),
    *("data:;base64", "a b="),
]
SHAPE, GOOD = "(2,)", "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }"
HEADERS = [
    *("", "{", GOOD + "; import os", GOOD.replace("}", "'descr': '|O'}"), GOOD + "#" + " " * 5000),
    *(
        GOOD.replace(SHAPE, odd)
        for odd in ("(-2,)", "(2.0,)", "(True,)", "[2]", "__import__('os').getpid()", "(1<<2,)")
    ),
    *(GOOD.replace(SHAPE, odd) for odd in ("(" + "1," * 33 + ")", f"({'9' * 20},)", f"({'9' * 4000},)")),
    GOOD.replace(SHAPE, "__import__('os').getpid()"),
    GOOD.replace(SHAPE, "(0, 1000000000000000000)"),
    GOOD.replace("False", "0"),
    *(GOOD.replace("<f4", odd) for odd in ("|O", "O8", "|f4", "<f3")),
    GOOD.replace("'<f4'", "[('a', '<f4')]"),
]
NO_NUMBERS = [
    *(np.array([Evil()], object), np.array(["text"]), np.array([b"bytes"]), np.array(["2026-01-01"], "M8[D]")),
    *(np.array([1], "m8[s]"), np.array([(1, 2.0)], "i4,f4"), np.zeros(2, "V4"), np.zeros(2, np.longdouble)),
]
ANNOUNCED: list[tuple[Any, bytes]] = [
    ("bytes", number(1 << 40)),
    ("bytes", number(-1)),
    ("string", number(1 << 62) + b"abc"),
    ("string", number(1) + b"\xff"),
    ("boolean", b"\x02"),
    ("long", b"\xff" * 9 + b"\x02"),
    ("long", b"\xff" * 20),
    ("long", b"\x80" * 3),
    (items("float"), number(1 << 40)),
    (items("long"), number(1 << 62)),
    (items("long"), number(20) + b"\x80" * 40),
    (items("long"), number(20) + b"\xff" * 12 + b"\0" * 30),
    (items("boolean"), number(2) + b"\x01\x05\0"),
    (items("string"), number(-3) + number(-9)),
    (items("string"), number(-(1 << 63)) + number(0)),
    ({"type": "map", "values": "null"}, number(1 << 33)),
    (["null", "int"], number(2)),
    (["null", "int"], number(-1)),
    ({"type": "enum", "name": "E", "symbols": ["A"]}, number(1)),
    ({"type": "enum", "name": "E", "symbols": ["A"]}, number(-1)),
    ({"type": "fixed", "name": "F", "size": 9}, b"12345678"),
    (items(LOOP), number(1) + b"\0"),
]
UNFRAMED = [b"", b"\0", b"\0\0\0\0", b"\x01\0\0\0\x01\0", b"{}", avro(EXAMPLE, example())]
PACKED = msgpack.packb(example() | {"list": [{"a": 1}, {"a": 2}]})
DEEP = [b"\x91" * 100_000, b"\x81\xa1a" * 100_000 + b"\xc0", b"\x91" * 2000 + b"\xc0"]
FEATURES = [b"\x1a\x04\x0a\x02\x05\x86", b"\x1a\x0d\x0a\x0b" + b"\xff" * 10 + b"\x01", b"\x1a\x07\x0a\x7fabcde"]
BESIDE = [{"name": "b", "type": "int"}]
NOT_THERE = "must have .* bytes after its header; found 8|a possible size"


def value_of(form: Any, member: str, value: bytes) -> Callable[[], object]:
    """Reads that member of it."""
    return lambda: bound(form, [member])(value)


def record_of(schema: Any) -> Any:
    """Such a value, and a number behind it."""
    return {"type": "record", "name": "R", "fields": [{"name": "a", "type": schema}, *BESIDE]}


@refusals(
    FormatError,
    *((value_of(Json(), "$", value), "^json: ") for value in NO_JSON),
    *((value_of(Json(base64=("x",)), "x", base64_of(text)), "^json: x: must be base64") for text in NO_BASE64),
    *(
        (value_of(Json(base64=("x",)), "x", base64_of(held)), "^json: x: must be base64 in a text; found")
        for held in (1, None, ["YQ=="], {"a": 1})
    ),
    (value_of(MsgPack(), "label", PACKED), "^msgpack: .*label: no such member"),
    (value_of(MsgPack(), "list[2].a", PACKED), r"^msgpack: .*list\[2\].a: no such member"),
    (value_of(MsgPack(), "header.source.x", PACKED), "^msgpack: .*x: no such member"),
    (value_of(MsgPack(), "a", b"\x81\xa1a\xa1\xff"), "UnicodeDecodeError"),
    *((value_of(MsgPack(), path, value), "(?i)^msgpack: ") for value in DEEP for path in ("$", "a", "[0]")),
    *((value_of(Npy(), "array", header(text, version)), "^npy: ") for text in HEADERS for version in (1, 2)),
    *(
        (value_of(Npy(), "array", npy(array)), "must be an array of numbers or booleans; found the header")
        for array in NO_NUMBERS
    ),
    *(
        (value_of(Npy(), "array", header(GOOD.replace(SHAPE, shape))), NOT_THERE)
        for shape in ("(281474976710656,)", "(65536, 65536, 1)", "(1000000, 1000000)")
    ),
    *((value_of(Avro(schema), "$", value), "^(avro|Avro): ") for schema, value in ANNOUNCED),
    (value_of(Avro("bytes"), "$", number(3) + b"ab"), "at byte 1 it says that 3 bytes follow; found 2"),
    (value_of(Avro(["null", "int"]), "$", number(2)), "a union of 2 has no branch 2, at byte 0"),
    (value_of(Avro({"type": "enum", "name": "E", "symbols": ["A"]}), "$", number(1)), "of 1 symbols has no symbol 1"),
    *((value_of(Avro(record_of(schema)), "b", value), "(?i)^avro: ") for schema, value in ANNOUNCED),
    *(
        (value_of(Avro(TREE), path, b"\x02\x02" * 100_000 + b"\0\0\0"), "may be nested in a few hundred others")
        for path in ("$", "value", "right.value")
    ),
    *(
        (value_of(Avro(schemas={1: INT}.get), "label", value), "must begin with a zero byte and a schema's id")
        for value in UNFRAMED
    ),
    *((value_of(Example(), "x", feature(held)), "^example: ") for held in FEATURES),
)
def test_a_value_that_is_not_what_it_says_is_a_bad_record(call: Any, error: Any, said: str) -> None:
    """What is announced is held to what is there; nothing is evaluated, none is too deep, and the process goes on."""
    with pytest.raises(error, match=said):
        call()
