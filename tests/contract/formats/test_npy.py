"""`Npy`: what NumPy saves, as a view; a header that is matched and never evaluated."""

from __future__ import annotations

import io
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from kit.written import npy

from dali_feed.errors import ConfigError, FormatError
from dali_feed.formats import Npy, bound

READ = bound(Npy(), ["array"])
DTYPES = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
    hnp.complex_number_dtypes(endianness="?", sizes=(64, 128)),
)
ARRAYS = hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4))


def of(header: str, data: bytes = b"", version: int = 1) -> bytes:
    """A file with that header."""
    size = len(header).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + size + header.encode("latin-1") + data


@given(ARRAYS, st.booleans(), st.sampled_from([(1, 0), (2, 0), (3, 0)]))
@settings(deadline=None)
def test_what_numpy_saves_comes_back(array: Any, fortran: bool, version: tuple[int, int]) -> None:
    """Values, dtype with its byte order, shape and order, in all three versions of the file."""
    value = npy(np.asfortranarray(array) if fortran and array.ndim else array, version)
    (found,) = READ(value)
    assert found.dtype == array.dtype
    assert found.shape == array.shape
    assert found.tobytes() == array.tobytes()
    assert found.flags.f_contiguous == np.load(io.BytesIO(value)).flags.f_contiguous
    assert Npy().members(value)["array"].tobytes() == array.tobytes()


@pytest.mark.parametrize("order", "CF")
def test_the_array_is_a_view_of_the_value(order: Any) -> None:
    """No byte is copied, wherever in a slab the value lies."""
    value = npy(np.asarray(np.arange(24, dtype="<f4").reshape(2, 3, 4), order=order))
    slab = bytearray(3 + len(value))
    slab[3:] = value
    (found,) = READ(memoryview(slab)[3:])
    assert np.shares_memory(found, np.frombuffer(slab, np.uint8))
    assert found.sum() == 276


def test_cut_anywhere_or_longer_is_a_bad_record() -> None:
    """Each length but the right one."""
    value = npy(np.arange(6, dtype=np.int16).reshape(2, 3))
    for size in range(len(value)):
        with pytest.raises(FormatError, match="^npy: "):
            READ(value[:size])
    with pytest.raises(FormatError, match="must have 12 bytes after its header; found 13"):
        READ(value + b"\0")


class Evil:
    """What a pickle would call."""

    def __reduce__(self) -> Any:
        return (time.sleep, (0,))


REFUSED = [
    np.array([Evil()], object),
    np.array(["text"]),
    np.array([b"bytes"]),
    np.array(["2026-01-01"], "M8[D]"),
    np.array([1], "m8[s]"),
    np.array([(1, 2.0)], "i4,f4"),
    np.zeros(2, "V4"),
    np.zeros(2, np.longdouble),
]


@pytest.mark.parametrize("array", REFUSED, ids=lambda array: str(array.dtype))
def test_objects_texts_times_and_records_are_refused(array: Any) -> None:
    """The message shows the header; nothing of the data is looked at."""
    with pytest.raises(FormatError, match="must be an array of numbers or booleans; found the header"):
        READ(npy(array))


GOOD = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }"


@pytest.mark.parametrize(
    "header",
    [
        "",
        "{",
        GOOD.replace("(2,)", "(-2,)"),
        GOOD.replace("(2,)", "(2.0,)"),
        GOOD.replace("(2,)", "(True,)"),
        GOOD.replace("(2,)", "[2]"),
        GOOD.replace("(2,)", "__import__('os').getpid()"),
        GOOD.replace("(2,)", "(1<<2,)"),
        GOOD.replace("(2,)", "(" + "1," * 33 + ")"),
        GOOD.replace("(2,)", "(" + "9" * 20 + ",)"),
        GOOD.replace("(2,)", "(" + "9" * 4000 + ",)"),
        GOOD.replace("(2,)", "(0, 1000000000000000000)"),
        GOOD.replace("False", "0"),
        GOOD.replace("<f4", "|O"),
        GOOD.replace("<f4", "O8"),
        GOOD.replace("<f4", "|f4"),
        GOOD.replace("<f4", "<f3"),
        GOOD.replace("'<f4'", "[('a', '<f4')]"),
        GOOD + "; import os",
        GOOD.replace("}", "'descr': '|O'}"),
        GOOD + "#" + " " * 5000,
    ],
)
def test_a_header_is_one_form_and_no_program(header: str) -> None:
    """What NumPy does not write is refused, however it would be evaluated."""
    with pytest.raises(FormatError, match="^npy: "):
        READ(of(header, bytes(8)))
    with pytest.raises(FormatError, match="^npy: "):
        READ(of(header, bytes(8), 2))


@pytest.mark.parametrize("shape", ["(281474976710656,)", "(65536, 65536, 1)", "(1000000, 1000000)"])
def test_a_header_cannot_announce_what_is_not_there(shape: str) -> None:
    """A shape of gigabytes over eight bytes costs its record, and no memory."""
    with pytest.raises(FormatError, match="must have .* bytes after its header; found 8|a possible size"):
        READ(of(GOOD.replace("(2,)", shape), bytes(8)))


def test_its_only_member_is_the_array() -> None:
    """Another is a mistake that is told at once."""
    with pytest.raises(ConfigError, match="has 'array' alone"):
        bound(Npy(), ["data"])
    assert bound(Npy(), [])(npy(np.zeros(1))) == ()
