"""`Json`: paths, base64, and what is refused."""

from __future__ import annotations

import base64
import json
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.properties import documents

from dali_feed.formats import Json, bound

RECORD = {
    "body": {"features": [1, 2.5, -3e2], "label": 7, "caption": "a dög", "ok": True, "none": None},
    "images": [{"data": base64.b64encode(b"\xff\xd8 first").decode()}, {"data": "!"}],
    "a.b": {"c": 1},
}
VALUE = json.dumps(RECORD).encode()


def test_members_are_found_by_their_paths() -> None:
    """Numbers, lists of them, texts, records and nulls, in the order asked for."""
    paths = ["body.caption", "body.features", "body.label", "body.ok", "body.none", "images[0]", '["a.b"].c', "$"]
    found = bound(Json(), paths)(VALUE)
    assert found == ("a dög", [1, 2.5, -300.0], 7, True, None, RECORD["images"][0], 1, RECORD)  # type: ignore[index]
    assert type(found[2]) is int


def test_an_image_in_base64_is_given_as_bytes() -> None:
    """Where it is said that it is base64, and no other text."""
    read = bound(Json(base64=("images[0].data",)), ["images[0].data", "body.caption"])
    image, caption = read(VALUE)
    assert isinstance(image, memoryview)
    assert (bytes(image), caption) == (b"\xff\xd8 first", "a dög")
    assert bytes(Json(base64=("images[0].data",)).members(VALUE)["images[0].data"]) == b"\xff\xd8 first"


@given(st.binary(max_size=300))
@settings(deadline=None)
def test_base64_comes_as_it_was(data: bytes) -> None:
    """As one text, in lines as mail has it, and behind a data: address."""
    read = bound(Json(base64=("x",)), ["x"])
    one, lines = base64.b64encode(data).decode(), base64.encodebytes(data).decode()
    for text in (one, lines, lines.replace("\n", "\r\n"), f"data:image/png;base64,{one}"):
        assert bytes(read(json.dumps({"x": text}).encode())[0]) == data


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=10),
)
DOCUMENTS = documents(LEAVES, st.text(max_size=5), longest=4, leaves=10)


def same(one: Any, other: Any) -> bool:
    """Whether two documents are one, types of numbers included."""
    return repr(one) == repr(other)


def test_a_whole_number_above_64_bits_is_a_float() -> None:
    """As JSON's own numbers have no size."""
    assert same(bound(Json(), ["$"])(b"[18446744073709551616, 18446744073709551615]")[0], [2.0**64, 2**64 - 1])


@given(DOCUMENTS)
@settings(deadline=None)
def test_what_orjson_writes_comes_back(document: Any) -> None:
    """Whole documents, from bytes and from a view."""
    try:
        text = orjson.dumps(document)
    except TypeError:  # an integer above 64 bits, which it does not write
        return
    read = bound(Json(), ["$"])
    assert same(read(text)[0], document)
    assert same(read(memoryview(text))[0], document)
