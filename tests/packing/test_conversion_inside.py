"""Insides that contract/packing/test_conversion.py needs not: they go with what they test."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.tf_example import example_bytes as theirs
from kit.tf_example import example_class

from dali_feed.errors import FormatError
from dali_feed.packing.sinks import columns_of, example_bytes, tfrecord_bytes

INTS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(width=32, allow_nan=False)


@given(
    st.dictionaries(
        st.text(max_size=9),
        st.binary(max_size=300) | INTS | FLOATS | st.lists(INTS, min_size=1) | st.lists(FLOATS, min_size=1),
    )
)
def test_examples_are_those_of_protocol_buffers(features: dict[str, Any]) -> None:
    """It reads what was meant, whatever the order; a single feature is its own, byte for byte."""
    assert example_class().FromString(example_bytes(features)) == example_class().FromString(theirs(features))
    for name, value in features.items():
        assert example_bytes({name: value}) == theirs({name: value})


def test_a_frame_is_that_of_tensorflow() -> None:
    """Length and both CRCs of an empty record, as TensorFlow writes them."""
    assert tfrecord_bytes(b"") == struct.pack("<Q", 0) + bytes.fromhex("29039807d8ea82a2")


def test_values_that_a_format_has_no_place_for() -> None:
    """A float that 32 bits cannot hold, a number above 64 bits, an array of objects: each is said."""
    for value, words in ((1e300, "fit in 32 bits"), (2**63, "64 bits with a sign"), ([None], "bytes, a text, or")):
        with pytest.raises(FormatError, match=words):
            example_bytes({"x": value})
    columns = columns_of({"x": 1, "a": np.zeros(3, np.float32)}, pictures=True)
    for values, words in (
        ({"x": 1}, "'a' is missing"),
        ({"x": "1", "a": np.zeros(3, np.float32)}, "is int in this set"),
        ({"x": 1, "a": np.zeros(4, np.float32)}, "is ndarray:float32:3 in this set"),
        ({"x": 2**63, "a": np.zeros(3, np.float32)}, "64 bits"),
    ):
        with pytest.raises(FormatError, match=words):
            columns.sample(values)
