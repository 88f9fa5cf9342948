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


@pytest.mark.parametrize("dtype", ["complex64", "none of them", "datetime64[s]"])
def test_a_dtype_that_is_no_number_is_refused(dtype: str) -> None:
    """When the column is made, with what it may be."""
    with pytest.raises(ConfigError, match=r"Number\('n'\): dtype must be an int, float or bool type"):
        Number("n", dtype)
    with pytest.raises(ConfigError, match=r"Array\('n'\): dtype"):
        Array("n", dtype, (2,))
