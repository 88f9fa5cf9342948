"""`Example`: features of a `tf.train.Example`, beside what protobuf's own parser finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from kit.written import example_bytes, example_class

from dali_feed.errors import FormatError
from dali_feed.formats import Example, bound, format_of

VALUE = example_bytes(
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
    view = memoryview(VALUE)
    image, label, box, ids, texts, row, *none = read(view)
    assert (bytes(image), label, box.tolist(), ids.tolist()) == (b"\xff\xd8", -3, [0.5, 1.5], [1, 1 << 62])
    assert (box.dtype, ids.dtype, [bytes(text) for text in texts]) == (np.float32, np.int64, [b"a", b""])
    assert row.tolist() == [-3]
    assert none == [None, None]
    assert isinstance(image, memoryview)
    assert set(Example().members(VALUE)) == {"image/encoded", "label", "box", "ids", "s"}


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


@pytest.mark.parametrize(
    "feature", [b"\x1a\x04\x0a\x02\x05\x86", b"\x1a\x0d\x0a\x0b" + b"\xff" * 10 + b"\x01", b"\x1a\x07\x0a\x7fabcde"]
)
def test_what_is_cut_or_too_long_is_a_fault(feature: bytes) -> None:
    """Whatever protobuf cannot read; what it can is the business of a TFRecord's CRCs."""
    with pytest.raises(FormatError, match="^example: "):
        bound(Example(), ["x"])(_field(1, _field(1, _field(1, b"x") + _field(2, feature))))


def _field(number: int, held: bytes) -> bytes:
    return bytes([number << 3 | 2, len(held)]) + held
