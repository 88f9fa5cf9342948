"""`Number`: what a value of any kind becomes, and why a record has none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dali_feed.columns import Array, Number
from dali_feed.columns.column import Faults
from dali_feed.errors import ConfigError


@pytest.mark.parametrize(
    ("value", "dtype", "said"),
    [
        ("1_000", "int64", "a decimal number is needed; found '1_000'"),
        (b"9" * 400, "float32", "a decimal number is needed; found '9"),
        ("twelve", "float32", "a decimal number is needed; found 'twelve'"),
        ([1], "int64", r"a number is needed; found '\[1\]'"),
        (1.5, "int64", "a whole number is needed for int64; found 1.5"),
        (float("nan"), "int32", "a whole number is needed for int32; found nan"),
        (float("inf"), "int32", "a whole number is needed for int32; found inf"),
        (np.float32("-inf"), "bool", "a whole number is needed for bool; found -inf"),
        (300, "uint8", "a number must fit into uint8; found 300"),
        (2, "bool", "a number must fit into bool; found 2"),
        (1 << 63, "int64", "a number must fit into int64; found 9223372036854775808"),
        (10**400, "int64", "a number must fit into int64; found 1000"),
        (np.float64(1 << 63), "int64", "a number must fit into int64; found 9.22"),
        (np.float64(1 << 64), "uint64", "a number must fit into uint64; found 1.84"),
        (np.complex64(1), "float32", "a number is needed; found"),
        (70000.0, "float16", "a number must fit into float16; found 70000.0"),
    ],
)
def test_a_record_whose_number_cannot_be_held_is_bad(value: Any, dtype: str, said: str) -> None:
    """Its reason says what is needed and what was found; the other rows have their numbers."""
    faults: Faults = {}
    found = Number("n", dtype).read([1, value], faults)
    assert (found.dtype, found.tolist()) == (np.dtype(dtype), [1, 0])
    assert list(faults) == [1]
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(faults[1])


def test_floats_that_are_no_number_are_kept() -> None:
    """A float column has NaN and infinities as the data has them."""
    faults: Faults = {}
    found = Number("n", "float32").read([float("inf"), "-inf", float("nan")], faults)
    assert faults == {}
    np.testing.assert_array_equal(found, np.array([np.inf, -np.inf, np.nan], np.float32))


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("int16", list(range(10))), ("float32", [0.5] * 10), ("int64", np.arange(10, dtype=np.uint8))],
    ids=["JSON", "floats", "bytes"],
)
def test_at_most_so_many_rows_are_rows_of_any_dtype(dtype: str, value: Any) -> None:
    """Rows are counted, not the bytes that they had where they come from, wider or narrower than the column's."""
    faults: Faults = {}
    Array("x", dtype, (None,), ragged="pad", most=9).read([value], faults)
    assert faults == {0: "at most 9 rows (most=) are allowed; found 10"}
    column = Array("x", dtype, (None,), ragged="pad", most=10)
    kept = column.read([value], faults := {})
    assert not faults
    assert column.batch(kept).rows.tolist() == [list(value)]


@pytest.mark.parametrize("dtype", ["complex64", "none of them", "datetime64[s]"])
def test_a_dtype_that_is_no_number_is_refused(dtype: str) -> None:
    """When the column is made, with what it may be."""
    with pytest.raises(ConfigError, match=r"Number\('n'\): dtype must be an int, float or bool type"):
        Number("n", dtype)
    with pytest.raises(ConfigError, match=r"Array\('n'\): dtype"):
        Array("n", dtype, (2,))


@pytest.mark.parametrize("scale", [np.float32(0.5), np.float64(0.5), [0.5, np.float32(0.5)], (np.int64(1) / 2, 0.5)])
def test_factors_may_be_numbers_of_numpys_and_lists(scale: Any) -> None:
    """As people keep means and deviations; they are Python's own behind it, so that columns can be compared."""
    column = Array("x", "uint8", (2,), scale=scale)
    assert repr(column.scale) in ("0.5", "(0.5, 0.5)")
    assert column.batch([b"\2\4"]).tolist() == [[1.0, 2.0]]
    assert Array("x", "uint8", (2,), bias=scale).batch([b"\2\4"]).tolist() == [[2.5, 4.5]]


@pytest.mark.parametrize("scale", [True, (1.0, False), np.float32("nan"), [], np.zeros(2)])
def test_what_is_no_factor_is_refused(scale: Any) -> None:
    """A flag is none, though Python counts with it."""
    with pytest.raises(ConfigError, match="scale must be a float32 number"):
        Array("x", "uint8", (2,), scale=scale)
