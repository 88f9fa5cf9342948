"""`Npy`: what NumPy saves, as a view; a header that is matched and never evaluated."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from kit.written import npy

from dali_feed.errors import FormatError
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


def test_no_member_may_be_asked_for() -> None:
    """The value is a good one all the same."""
    assert bound(Npy(), [])(npy(np.zeros(1))) == ()
