"""One array of a record into its row of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from kit.written import npy

from dali_feed.columns.array_layout import ArrayLayout, array_from, batch_for, filler, layout_of
from dali_feed.errors import ConfigError, FormatError

DTYPES = st.sampled_from(["?", "i1", "u1", "<i2", "<u2", "<i4", "<i8", "<f2", "<f4", "<f8", "<c8"])
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


@given(st.data(), DTYPES, SHAPES)
@settings(deadline=None)
def test_a_batch_holds_what_its_records_held(data: st.DataObject, dtype: str, shape: tuple[int, ...]) -> None:
    """Bytes, .npy of either byte order and memory order, and arrays: each row is bit for bit its record."""
    arrays = [data.draw(hnp.arrays(dtype, shape)) for _ in range(3)]
    for values in (
        [array.tobytes() for array in arrays],
        [memoryview(b"x" + array.tobytes())[1:] for array in arrays],
        [npy(array) for array in arrays],
        [npy(np.asarray(array, array.dtype.newbyteorder(">"), order="F")) for array in arrays],
        arrays,
    ):
        layout = layout_of(values[0], dtype, shape)
        batch = batch_for(layout, 3)
        put = filler(layout, batch)
        for row, value in enumerate(values):
            put(row, value)
            assert batch[row].tobytes() == arrays[row].tobytes()
        assert (batch.shape, batch.dtype) == ((3, *shape), np.dtype(dtype))


def test_the_first_record_says_what_nobody_told() -> None:
    """A .npy says all, bytes their number, an array its shape and dtype."""
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    assert layout_of(npy(array)) == ArrayLayout(np.dtype(np.int16), (2, 3), "npy")
    assert layout_of(array.tobytes(), "i2") == ArrayLayout(np.dtype(np.int16), (6,), "raw")
    assert layout_of(array) == ArrayLayout(np.dtype(np.int16), (2, 3), "numbers")
    assert layout_of([[1, 2.5]], np.float32) == ArrayLayout(np.dtype(np.float32), (1, 2), "numbers")
    assert layout_of(npy(array.astype(">i2"))).dtype == np.dtype("<i2")


@pytest.mark.parametrize(
    ("value", "told", "said"),
    [
        (b"1234", {}, "dtype of bytes without a header must be told"),
        ([1, 2], {}, "dtype of numbers in a list must be told"),
        (b"1234", {"dtype": "O"}, "must be of numbers or booleans"),
        (b"1234", {"dtype": "U4"}, "must be of numbers or booleans"),
        (b"1234", {"dtype": "M8[s]"}, "must be of numbers or booleans"),
        (b"1234", {"dtype": "what"}, "must be one of NumPy's"),
        (b"1234", {"dtype": "u1", "shape": (-1, 4)}, "must be at most 32 ints of 0 or more"),
        (b"1234", {"dtype": "u1", "shape": (2.0, 2)}, "must be a row of ints"),
        (b"1234", {"dtype": "u1", "shape": 4}, "must be a row of ints"),
    ],
)
def test_what_is_told_must_be_enough(value: Any, told: dict[str, Any], said: str) -> None:
    """It is a mistake of whoever asks for the column, not of the record."""
    with pytest.raises(ConfigError, match=f"^Array: .*{said}"):
        layout_of(value, **told)


@pytest.mark.parametrize(
    ("value", "told", "said"),
    [
        (b"12345", {"dtype": "i2"}, "2 bytes each; found 5 bytes"),
        (b"12345", {"dtype": "i2", "shape": (2,)}, "must have 4 bytes; found 5"),
        (npy(np.zeros(3)), {"dtype": "f4"}, "must be float32; found float64"),
        (npy(np.zeros(3)), {"shape": (4,)}, r"shape must be \(4,\); found \(3,\)"),
        (npy(np.zeros(3))[:-1], {}, "must have 24 bytes"),
        ("text", {"dtype": "f4"}, "found str"),
        (None, {}, "found NoneType"),
        ([[1], [1, 2]], {"dtype": "f4"}, "rows of one length"),
        (["a"], {"dtype": "f4"}, "numbers alone"),
        ([None], {"dtype": "f4"}, "numbers alone"),
        ([1 << 80], {"dtype": "i8"}, "numbers alone"),
    ],
)
def test_a_first_record_that_is_not_so_is_a_bad_record(value: Any, told: dict[str, Any], said: str) -> None:
    """It does not make the layout of the others."""
    with pytest.raises(FormatError, match=f"^(array|npy): .*{said}"):
        layout_of(value, **told)


RAW = layout_of(bytes(12), "f4", (3,))
NPY = layout_of(npy(np.zeros(3, np.float32)))
NUMBERS = layout_of([1.0, 2.0, 3.0], "f4")


@pytest.mark.parametrize(
    ("layout", "value"),
    [
        (RAW, bytes(11)),
        (RAW, bytes(16)),
        (RAW, [1.0, 2.0, 3.0]),
        (RAW, "0123456789ab"),
        (RAW, None),
        (RAW, npy(np.zeros(3, np.float32))),
        (NPY, bytes(12)),
        (NPY, npy(np.zeros(3, np.float64))),
        (NPY, npy(np.zeros((1, 3), np.float32))),
        (NPY, npy(np.zeros(3, np.int32))),
        (NPY, [1.0, 2.0, 3.0]),
        (NUMBERS, [1.0, 2.0]),
        (NUMBERS, [1.0, 2.0, 1e300]),
        (NUMBERS, [1.0, 2.0, "3"]),
        (NUMBERS, bytes(12)),
    ],
)
def test_the_layout_is_held(layout: ArrayLayout, value: Any) -> None:
    """A record that differs is a bad one, and its row stays what it was."""
    batch = batch_for(layout, 2)
    batch[:] = 7
    with pytest.raises(FormatError):
        filler(layout, batch)(1, value)
    assert (batch == 7).all()


@pytest.mark.parametrize(
    ("dtype", "good", "bad"),
    [
        ("u1", [0, 255], [0, 256]),
        ("i1", [-128, 127], [-129, 0]),
        ("u8", [0, 1], [-1, 0]),
        ("i4", [1, 2], [1.5, 2.0]),
        ("?", [True, False], [1, 0]),
        ("f4", [1, 2.5], [1, 1e39]),
        ("f2", [True, 65504], [1.0, 70000.0]),
    ],
)
def test_numbers_are_cast_where_nothing_is_lost(dtype: str, good: list[Any], bad: list[Any]) -> None:
    """But for digits of a fraction: whole numbers that fit, fractions never to whole ones, nothing to infinity."""
    layout = layout_of(good, dtype)
    batch = batch_for(layout, 1)
    filler(layout, batch)(0, good)
    assert batch[0].tolist() == [np.dtype(dtype).type(each) for each in good]
    with pytest.raises(FormatError, match=f"must be {np.dtype(dtype)}; found"):
        filler(layout, batch)(0, bad)


def test_infinity_and_nan_that_were_there_stay() -> None:
    """Of doubles into floats."""
    layout = layout_of(np.array([np.inf, -np.inf, np.nan]), "f4")
    batch = batch_for(layout, 1)
    filler(layout, batch)(0, np.array([np.inf, -np.inf, np.nan]))
    assert np.isinf(batch[0][:2]).all()
    assert np.isnan(batch[0][2])


@pytest.mark.parametrize("value", [np.arange(6, dtype="<f4").tobytes(), npy(np.arange(6, dtype="<f4"))])
def test_before_the_row_nothing_is_copied(value: bytes) -> None:
    """What is copied into the row is a view of the record."""
    assert np.shares_memory(array_from(layout_of(value, "f4"), value), np.frombuffer(value, np.uint8))


def test_bytes_that_begin_like_a_npy_file() -> None:
    """Of exactly the bytes that are told they are no file."""
    value = b"\x93NUMPY\x01\x00"
    assert layout_of(value, "u1", (8,)).how == "raw"
    with pytest.raises(FormatError, match="^npy: "):
        layout_of(value, "u1")


def test_a_batch_of_another_layout_is_a_mistake() -> None:
    """Of dtype, shape or order in memory."""
    for batch in (np.empty((2, 3)), np.empty((2, 4), np.float32), np.empty((2, 6), np.float32)[:, ::2]):
        with pytest.raises(ConfigError, match=r"^batch: must be in C order, float32 \(rows, \*\(3,\)\)"):
            filler(RAW, batch)
