"""`MsgPack`: members by path, bytes as views, and lists that are not taken at their word."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.properties import documents
from kit.written import example

from dali_feed.errors import FormatError
from dali_feed.formats import MsgPack, bound

VALUE = msgpack.packb(example() | {"list": [{"a": 1}, {"a": 2}]})


def test_members_are_found_by_their_paths() -> None:
    """Numbers, lists, texts, bytes, records, and a member of one that is asked for too."""
    paths = ["header.source", "body.features", "body", "body.label", "list[1].a", "header.timestamp"]
    found = bound(MsgPack(), paths)(memoryview(VALUE))
    body = example()["body"]
    assert found == ("north gate", body["features"], body, -7, 2, 1_700_000_000_123)
    assert bound(MsgPack(), ["$"])(VALUE) == (msgpack.unpackb(VALUE),)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65535, 65536, 100_000])
def test_bytes_are_given_as_views(size: int) -> None:
    """In each of the three ways that a length is written."""
    image = np.random.default_rng(size).bytes(size)
    value = msgpack.packb(example(image=image) | {"more": 1})
    (found,) = bound(MsgPack(), ["body.image"])(value)
    assert bytes(found) == image
    assert isinstance(found, memoryview)


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(allow_nan=False),
    st.text(max_size=40),
    st.binary(max_size=40),
    st.lists(st.booleans(), max_size=20),  # the shortest way to write a list, or a map, can hold 15
)
DOCUMENTS = documents(LEAVES, st.text(max_size=5), longest=20, leaves=6)


@given(
    st.dictionaries(st.text(st.characters(codec="utf-8", exclude_characters='"'), max_size=5), DOCUMENTS, min_size=1)
)
@settings(deadline=None)
def test_what_the_library_writes_comes_back(record: dict[str, Any]) -> None:
    """Every member of a record, by itself and all together."""
    paths = [f'["{name}"]' for name in record]
    value = msgpack.packb(record)
    assert bound(MsgPack(), paths)(value) == tuple(record.values())
    for path, held in zip(paths, record.values(), strict=True):
        assert bound(MsgPack(), [path])(value) == (held,)


def test_a_long_list_is_read_too() -> None:
    """Longer than what is taken at its word."""
    value = msgpack.packb({"a": list(range(50_000)), "b": 1})
    assert bound(MsgPack(), ["a", "b"])(value) == (list(range(50_000)), 1)


def test_cut_anywhere_or_longer_is_a_bad_record() -> None:
    """Also where what was asked for is whole."""
    read = bound(MsgPack(), ["header.version"])
    for size in range(len(VALUE)):
        with pytest.raises(FormatError, match="^msgpack: cut off"):
            read(VALUE[:size])
    with pytest.raises(FormatError, match="must be one value; 1 of"):
        read(VALUE + b"\xc0")


def test_a_time_is_seconds_and_other_extensions_are_refused() -> None:
    """A number, which a column can take; what nobody asked for is not looked at."""
    when = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    value = msgpack.packb({"when": when, "odd": msgpack.ExtType(5, b"x")}, datetime=True)
    assert bound(MsgPack(), ["when"])(value) == (when.timestamp(),)
    with pytest.raises(FormatError, match="no extension types except timestamps; found type 5"):
        bound(MsgPack(), ["odd"])(value)


def test_keys_that_are_no_text() -> None:
    """They stand in nobody's way, but are no record's."""
    value = msgpack.packb({1: "a", "b": 2, "c": {3: 4}})
    assert bound(MsgPack(), ["b"])(value) == (2,)
    with pytest.raises(FormatError, match="^msgpack: c: must have texts as keys; found 3"):
        bound(MsgPack(), ["c"])(value)
    assert bound(MsgPack(), ["a"])(msgpack.packb({"a": 1, b"a": 2})) == (1,)


HOSTILE = """
import resource
from dali_feed.errors import FormatError
from dali_feed.formats import MsgPack, bound
read = bound(MsgPack(), ["$"])
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
for n in (16_000, 1_000_000):
    value = (b"\\xdd" + n.to_bytes(4, "big")) * 500 + b"\\xc0" * n
    try:
        read(value)
    except FormatError as error:
        print("bad", n)
"""


def test_lists_in_lists_cannot_announce_gigabytes() -> None:
    """500 lists of a million, one in the other, in one megabyte: msgpack before 1.2.4 makes room for 4 GB.

    With a gigabyte to have, the value is a bad record and no MemoryError.
    """
    done = subprocess.run([sys.executable, "-I", "-c", HOSTILE], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["bad", "16000", "bad", "1000000"], done.stderr


def test_all_members_of_a_value() -> None:
    """By their paths."""
    assert list(MsgPack().members(VALUE))[:2] == ["header.version", "header.timestamp"]
