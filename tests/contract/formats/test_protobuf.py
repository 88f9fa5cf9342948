"""`Protobuf`: fields of a message by path."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.written import message_class

from dali_feed.errors import ConfigError, FormatError
from dali_feed.formats import Protobuf, bound

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


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("lable", "has the fields body, scores, source, weight"),
        ("body.x", "body has the fields crops, "),
        ("body", "is a message: ask for its fields"),
        ("$", "is a message: ask for its fields"),
        ("body.images", "is a list of messages"),
        ("body.images[0]", "is a message"),
        ("body.images.data", "has numbered items"),
        ("body.label.x", "is not a message"),
        ("body[0]", "has the fields"),
        ("source[0]", "is not a message"),
        ("scores[0]", "has keys of another kind"),
        ("body.names[0][0]", "is not a message"),
        ("a..b", "must be a path"),
    ],
)
def test_a_field_that_cannot_be_a_member_is_told_at_once(path: str, said: str) -> None:
    """With what there is."""
    with pytest.raises(ConfigError, match=said):
        bound(Protobuf(Record), [path])


@pytest.mark.parametrize("message", [RECORD, 3, dict, None, "Record"])
def test_it_takes_a_class(message: Any) -> None:
    """Of a message, not one of its messages."""
    if message is RECORD:
        assert bound(Protobuf(message), ["source"])(VALUE) == ("north",)  # which its library allows
    else:
        with pytest.raises(ConfigError, match="must be given a message class"):
            Protobuf(message)


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
