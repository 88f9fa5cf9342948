"""Values inside of records that are cut, of another size, or no such number: each a fault with its reason."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from kit.tf_example import example_bytes

from dali_feed.errors import ConfigError, FormatError
from dali_feed.external_sources import ArrayShards, ArrowRows
from dali_feed.external_sources.arrays import form_of, told_form
from dali_feed.external_sources.kafka.writes import Payload, Values
from dali_feed.external_sources.mds import MdsSample
from dali_feed.external_sources.recordio import IRHeader
from dali_feed.formats import Example, bound


def sample(encoding: str, value: bytes, size: int | None = None) -> Any:
    """The one column of a sample."""
    form = MdsSample(("x",), (encoding,), (size,))
    head = b"" if size is not None else struct.pack("<I", len(value))
    (found,) = bound(form, ["x"])(head + value)
    return found


@pytest.mark.parametrize(
    ("encoding", "value", "said"),
    [
        ("uint16", b"abc", "mds: uint16 must have 2 bytes; found 3"),
        ("str_int", b"1_0", "mds: must be a number in decimal text; found '1_0'"),
        ("str_int", b"9" * 5000, "mds: must be a number in decimal text; found '9999"),
        ("str_float", b"one", "mds: must be a number in decimal text; found 'one'"),
        ("ndarray", b"", "mds: an array must begin with its dtype and its shape; found b''"),
        ("ndarray", b"\xff\x04\x02", "mds: an array must begin with its dtype and its shape"),
        ("ndarray:int16", b"\x08\x01", r"mds: an array must begin with its dtype and its shape; found b'\\x08\\x01'"),
        ("ndarray:int16:3", b"abcd", r"mds: int16 \(3,\) must have 6 bytes; found 4"),
    ],
)
def test_a_value_that_is_not_of_its_encoding(encoding: str, value: bytes, said: str) -> None:
    """What it must be, and what stands there."""
    with pytest.raises(FormatError, match=said):
        sample(encoding, value)


def test_a_column_that_there_is_not() -> None:
    """Is an error of who asks, with the columns that there are."""
    form = MdsSample(("x", "y"), ("str", "str"), (None, None))
    with pytest.raises(ConfigError, match="member 'z': samples have the columns x, y; found none of that name"):
        bound(form, ["z"])
    with pytest.raises(ConfigError, match="RecordIO: member 'z': a record has only"):
        bound(IRHeader(), ["z"])


def field(number: int, data: bytes, kind: int = 2) -> bytes:
    """A field of Protocol Buffers of less than 128 bytes."""
    return bytes([number << 3 | kind, *([len(data)] if kind == 2 else [])]) + data


def example(name: bytes, feature: bytes) -> bytes:
    """An Example of one feature, whatever it is."""
    return field(1, field(1, field(1, name) + field(2, feature)))


@pytest.mark.parametrize(
    "data", [example(b"\xff", field(3, field(1, b"\1"))), example(b"x", field(3, field(1, b"\1" * 89 + b"\x81")))]
)
def test_an_example_that_breaks_its_own_form(data: bytes) -> None:
    """A name that is no text, a number that is cut off."""
    with pytest.raises(FormatError, match="^example: "):
        Example().members(data)


def test_an_example_may_leave_a_feature_empty() -> None:
    """A feature without a list, and a list without a value, is none; many numbers are read as few are."""
    for feature in (b"", field(3, b"")):
        (found,) = bound(Example(), ["x"])(example(b"x", feature))
        assert found is None or len(found) == 0
    many = [3, -1, 1 << 62, *range(300)]
    (found,) = bound(Example(), ["x"])(example_bytes({"x": many}))
    assert found.tolist() == many


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: told_form("no such", None), "dtype"),
        (lambda: told_form("float32", (3, 0)), r"shape must be that of one row, positive ints; found \(3, 0\)"),
        (
            lambda: form_of(np.array(1.0), "here"),
            r"must have at least one row, and numbers in it; found the shape",
        ),
        (
            lambda: form_of(np.ones((4, 0)), "here"),
            r"must have at least one row, and numbers in it; found the shape \(4, 0\)",
        ),
        (lambda: ArrayShards(np.ones((4, 2)), dtype="float32"), "an array has its own; leave both out"),
        (lambda: ArrayShards(np.ones((4, 2))).snapshot({"a": 1}), "arrays are fixed and take no pin"),
        (lambda: Payload(headers=("a", "a")), r"headers: must be a tuple of different names of members"),
        (lambda: Payload(headers=("label",)), "each header is written once; found label='label'"),
        (lambda: Values("json", ("a",), base64=("b",)), "base64 must name values; found 'b' where there are a"),
    ],
)
def test_arguments_of_sources_that_contradict_themselves(make: Any, said: str) -> None:
    """Are refused when the source is made, not at its first record."""
    with pytest.raises(ConfigError, match=said):
        make()


def test_keys_and_headers_are_texts_numbers_or_bytes() -> None:
    """A member of another kind has no place in them: the record cannot be written."""
    from dali_feed.external_sources.kafka.writes import _text

    assert [_text("k", each) for each in (None, b"a", "é", 5, 0.5, np.int32(3))] == [
        None, b"a", "é".encode(), b"5", b"0.5", b"3",
    ]  # fmt: skip
    with pytest.raises(FormatError, match="member 'k': a key or a header must be .*; found list"):
        _text("k", [1])


def test_rows_without_an_image_need_columns() -> None:
    """A table that is read as images has one; the error says which arguments help."""
    import pyarrow as pa

    source = ArrowRows(pa.table({"n": [1, 2]}), None)
    with pytest.raises(ConfigError, match="without columns= a batch has images; found image=None"):
        source.check()
