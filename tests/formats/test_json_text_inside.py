"""Insides that contract/formats/test_json_text.py needs not: they go with what they test."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kit.properties import examples

from dali_feed.errors import FormatError
from dali_feed.formats.base64_text import decoder, plain
from dali_feed.formats.json_text import loads, plain_loads


@given(st.text("AQgw=-_ \n", max_size=12))
def test_both_decoders_take_and_refuse_the_same(text: str) -> None:
    """A record is bad by both or by none, and its bytes are the same."""
    found = []
    for decode in (decoder(), plain):
        try:
            found.append(decode(text))
        except ValueError:
            found.append(b"bad!")
    assert found[0] == found[1]


BOTH = [loads(), plain_loads]


@pytest.mark.parametrize("load", BOTH)
@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{",
        b"NaN",
        b"[Infinity]",
        b"1e400",
        b"-1e400",
        b"1" * 400,
        b"1" * 5000,
        b'"\\ud800"',
        b'{"\\udc00": 1}',
        b"\xef\xbb\xbf1",
        b"\xff",
        b'"\xed\xa0\x80"',
        b'"\x01"',
        b"01",
        b"1 2",
        b"'a'",
        b"[1,]",
        b"\x0c1",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"[" * 2000 + b"]" * 2000,
    ],
)
def test_what_is_no_json_is_the_one_error(load: Any, value: bytes) -> None:
    """By both libraries, and the process goes on."""
    with pytest.raises(FormatError, match="^json: "):
        load(value)


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=10),
)
DOCUMENTS = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
)


def same(one: Any, other: Any) -> bool:
    """Whether two documents are one, types of numbers included."""
    return repr(one) == repr(other)


@given(DOCUMENTS, st.booleans())
@settings(deadline=None)
def test_both_libraries_read_the_same(document: Any, plain: bool) -> None:
    """What a record holds does not hang on what is installed: a whole number above 64 bits is a float in both."""
    text = json.dumps(document, ensure_ascii=plain).encode("utf-8", "replace")
    assert same(loads()(text), plain_loads(text))


@given(
    st.lists(st.sampled_from([b'{"a":', b"[", b"]", b"}", b",", b"1", b"-", b".5", b"e9", b'"', b"\\u", b"d8", b"00"]))
)
@example([b"-0"])
@example([b"1.0E+2"])
@examples(times=6)
def test_both_libraries_refuse_the_same(pieces: list[bytes]) -> None:
    """A record is bad by both or by none."""
    text, found = b"".join(pieces), []
    for load in BOTH:
        try:
            found.append(repr(load(text)))
        except FormatError:
            found.append("bad")
    assert found[0] == found[1]
