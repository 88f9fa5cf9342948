"""`Protobuf`: fields of a message by path; `Example`: features by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.written import example_bytes, example_class, message_class

from dali_feed.errors import FormatError
from dali_feed.formats import Example, Protobuf, bound, format_of

Record = message_class()
RECORD = Record(
    source="north",
    scores={"a": 0.5},
    body={
        "features": [0.25, -1.5],
        "label": -3,
        "image": b"\xff\xd8",
        "images": [{"data": b"one", "width": 1}, {"data": b"two"}],
        "names": ["x", "y"],
        "crops": [b"1", b"22"],
        "ids": [1 << 40],
    },
)
VALUE = RECORD.SerializeToString()


def test_fields_are_found_by_their_paths() -> None:
    """Numbers, rows of them as arrays, texts, bytes as views of what the library read, lists, and a map."""
    paths = ["body.label", "source", "body.names", "body.image", "body.images[1].data", 'scores["a"]', "scores"]
    label, source, names, image, data, score, scores = bound(Protobuf(Record), paths)(memoryview(VALUE))
    assert (label, source, names, score, scores) == (-3, "north", ["x", "y"], 0.5, {"a": 0.5})
    assert (bytes(image), bytes(data)) == (b"\xff\xd8", b"two")
    features, ids, crops, one = bound(Protobuf(Record), ["body.features", "body.ids", "body.crops", "body.ids[0]"])(
        VALUE
    )
    assert (features.dtype, features.tolist()) == (np.float32, [0.25, -1.5])
    assert (ids.dtype, ids.tolist(), one) == (np.int64, [1 << 40], 1 << 40)
    assert [bytes(crop) for crop in crops] == [b"1", b"22"]


@given(
    st.text(max_size=5),
    st.lists(st.floats(width=32, allow_nan=False), max_size=20),
    st.integers(-(1 << 31), (1 << 31) - 1),
    st.binary(max_size=50),
)
@settings(deadline=None)
def test_what_the_library_writes_comes_back(source: str, features: list[float], label: int, image: bytes) -> None:
    """Of a message with a message in it."""
    value = Record(source=source, body={"features": features, "label": label, "image": image}).SerializeToString()
    found = bound(Protobuf(Record), ["source", "body.features", "body.label", "body.image"])(value)
    assert (found[0], found[1].tolist(), found[2], bytes(found[3])) == (source, features, label, image)


def test_what_is_not_set() -> None:
    """A number has its default; a message and what is `optional` are missing, and so is an item that is not there."""
    value = Record(body={}).SerializeToString()
    assert bound(Protobuf(Record), ["source", "body.label"])(value) == ("", 0)
    for path, said in (
        ("weight", "weight is not set"),
        ("body.deeper.label", "body.deeper is not set"),
        ("body.images[0].data", "has 0 items"),
        ("body.ids[3]", "has 0 items"),
        ('scores["b"]', "has 0 items"),
    ):
        with pytest.raises(FormatError, match=rf"no such member; .*{said}"):
            bound(Protobuf(Record), [path])(value)
    assert bound(Protobuf(Record), ["weight"])(Record(weight=0).SerializeToString()) == (0.0,)


def test_it_takes_a_class_by_one_of_its_messages() -> None:
    """Which the library allows."""
    message: Any = RECORD
    assert bound(Protobuf(message), ["source"])(VALUE) == ("north",)


def test_a_message_that_is_cut_off_is_a_bad_record_or_a_shorter_one() -> None:
    """Between two fields a message may end: that is how the encoding is."""
    read = bound(Protobuf(Record), ["source"])
    outcomes: set[Any] = set()
    for size in range(len(VALUE)):
        try:
            outcomes.add(read(VALUE[:size]))
        except FormatError as error:
            assert str(error).startswith("protobuf: ")
            outcomes.add("bad")
    assert "bad" in outcomes


def nested(levels: int) -> bytes:
    """A body in a body in a body: field 8 of each."""
    value = b""
    for _ in range(levels):
        size, length = len(value), b""
        while size > 127:
            length, size = length + bytes([size & 127 | 128]), size >> 7
        value = b"\x42" + length + bytes([size]) + value
    return value


def test_nesting_is_bounded() -> None:
    """By the library; the process goes on."""
    body = message_class("Body")
    assert bound(Protobuf(body), ["label"])(nested(50)) == (0,)
    with pytest.raises(FormatError, match="^protobuf: "):
        bound(Protobuf(body), ["label"])(nested(5000))


def test_all_members_of_a_message() -> None:
    """Those that are set, by path; also of a class that the library brings along."""
    found = Protobuf(Record).members(VALUE)
    assert {"source", "body.label", "body.images[0].data", "scores"} <= set(found)
    assert "weight" not in found
    file = descriptor_pb2.FileDescriptorProto(name="a.proto", dependency=["b.proto"])
    assert bound(Protobuf(type(file)), ["name", "dependency"])(file.SerializeToString()) == ("a.proto", ["b.proto"])


def test_an_enum_is_its_number() -> None:
    """Of a class that the library brings along, in the older syntax, where all fields tell whether they are set."""
    field = descriptor_pb2.FieldDescriptorProto(name="a", type=9)
    value = field.SerializeToString()
    assert bound(Protobuf(type(field)), ["type", "name"])(value) == (9, "a")
    with pytest.raises(FormatError, match="number is not set"):
        bound(Protobuf(type(field)), ["number"])(value)


EXAMPLE = example_bytes(
    {"image/encoded": b"\xff\xd8", "label": -3, "box": [0.5, 1.5], "ids": [1, 1 << 62], "s": [b"a", b""]}
)
LISTS = st.one_of(
    st.lists(st.binary(max_size=9), min_size=1, max_size=4),
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=40),
    st.lists(st.floats(width=32), min_size=1, max_size=4),
)
EXAMPLES = st.dictionaries(st.text(max_size=6), LISTS, max_size=4).map(example_bytes)


def told(values: Any) -> Any:
    """What a feature holds, NaN beside NaN."""
    return (
        None if values is None else [bytes(one) if isinstance(one, memoryview) else repr(float(one)) for one in values]
    )


def theirs(value: bytes) -> dict[str, Any]:
    """The same by protobuf's parser."""
    found = {}
    for name, feature in example_class().FromString(value).features.feature.items():
        kind = feature.WhichOneof("kind")
        values = None if kind is None else getattr(feature, kind).value
        found[name] = (
            None if values is None else [one if isinstance(one, bytes) else repr(float(one)) for one in values]
        )
    return found


def test_a_feature_is_a_value_or_a_row() -> None:
    """One is a view, an int, a float; several are an array or a list; NAME[] is a row; what is missing is None."""
    read = bound(format_of("tf-example"), ["image/encoded", "label", "box", "ids", "s", "label[]", "none", "none[]"])
    view = memoryview(EXAMPLE)
    image, label, box, ids, texts, row, *none = read(view)
    assert (bytes(image), label, box.tolist(), ids.tolist()) == (b"\xff\xd8", -3, [0.5, 1.5], [1, 1 << 62])
    assert (box.dtype, ids.dtype, [bytes(text) for text in texts]) == (np.float32, np.int64, [b"a", b""])
    assert row.tolist() == [-3]
    assert none == [None, None]
    assert isinstance(image, memoryview)
    assert set(Example().members(EXAMPLE)) == {"image/encoded", "label", "box", "ids", "s"}


@given(value=EXAMPLES, data=st.data())
def test_any_bytes_give_what_protobuf_finds_or_a_fault(value: bytes, data: st.DataObject) -> None:
    """What its writer wrote always the same; damaged or cut never another value, nor another error."""
    wanted = theirs(value)
    names = [f"{name}[]" for name in wanted]
    whole = bound(Example(), names)(value)
    assert {name: told(found) for name, found in zip(wanted, whole, strict=True)} == wanted
    broken = bytearray(value[: data.draw(st.integers(0, len(value)), "cut")])
    if broken:
        broken[data.draw(st.integers(0, len(broken) - 1), "at")] ^= data.draw(st.integers(0, 255), "by")
    try:
        known = theirs(bytes(broken))
    except DecodeError:
        known = None
    try:
        found = bound(Example(), [f"{name}[]" for name in (wanted if known is None else known)])(broken)
    except FormatError:
        return  # stricter than protobuf is allowed, another value is not
    if known is not None:
        assert {name: told(row) for name, row in zip(known, found, strict=True)} == known


@given(value=st.binary(max_size=200))
def test_any_bytes_at_all(value: bytes) -> None:
    """All members of it, or the one error."""
    try:
        found = Example().members(value)
    except FormatError:
        return
    assert set(found) == set(theirs(value))


def test_numbers_that_are_not_packed() -> None:
    """As old writers left them, and in several pieces: one list of them all."""
    row = b"\x0a\x02\x05\x06\x08\x07\x08" + b"\xff" * 9 + b"\x01"  # packed 5 and 6, then 7, then -1
    floats = b"\x0d" + np.float32(0.5).tobytes() + b"\x0a\x04" + np.float32(2).tobytes()
    value = b"".join(_field(1, _field(1, _field(1, name) + _field(2, _field(kind, held))))
                     for name, kind, held in ((b"i", 3, row), (b"f", 2, floats)))  # fmt: skip
    ints, reals = bound(Example(), ["i", "f"])(value)
    assert (ints.tolist(), reals.tolist()) == ([5, 6, 7, -1], [0.5, 2])
    assert {name: told(found) for name, found in Example().members(value).items()} == theirs(value)


def _field(number: int, held: bytes) -> bytes:
    return bytes([number << 3 | 2, len(held)]) + held
