"""One array of a record, paths into one, and base64 in it: what they must be, and why a record is bad."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from kit.written import npy

from dali_feed.columns import Array
from dali_feed.columns.array import array_from, layout_of
from dali_feed.errors import ConfigError, FormatError
from dali_feed.formats.json_text import _decoder, _plain_decode
from dali_feed.formats.npy import MAGIC
from dali_feed.formats.paths import DEEPEST, MOST, flatten, path_of, pick, steps_of

DTYPES = st.sampled_from(["?", "i1", "u1", "<i2", "<u2", "<i4", "<i8", "<f2", "<f4", "<f8"])
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=1, max_side=4)


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
        kind, faults = Array("x", dtype, shape or None).settled(values[0]), dict[int, str]()
        batch = kind.batch(kind.read(values, faults))
        assert not faults
        assert [row.tobytes() for row in batch] == [array.tobytes() for array in arrays]
        assert batch.dtype == np.dtype(dtype)
        assert (kind.shape, batch.shape[1:]) == (shape, shape) or not shape


@pytest.mark.parametrize(
    ("value", "told", "dtype", "shape"),
    [
        (npy(np.zeros((2, 3), np.int16)), {}, "int16", (2, 3)),
        (npy(np.zeros(2, ">i2")), {}, "int16", (2,)),
        (bytes(12), {"dtype": "i2"}, "int16", (6,)),
        (np.zeros((2, 3), np.int16), {}, "int16", (2, 3)),
        ([[1, 2.5]], {"dtype": "f4"}, "float32", (1, 2)),
    ],
)
def test_the_first_record_says_what_nobody_told(value: Any, told: Any, dtype: str, shape: Any) -> None:
    """A .npy says all, bytes their number, an array its shape and dtype."""
    assert layout_of(value, **told) == (np.dtype(dtype), shape)


@pytest.mark.parametrize(
    ("error", "value", "told", "said"),
    [
        (ConfigError, b"1234", {}, "Array: the dtype of bytes without a header must be told"),
        (ConfigError, [1, 2], {}, "Array: the dtype of numbers in a list must be told"),
        (FormatError, b"12345", {"dtype": "i2"}, "array: .*2 bytes each; found 5 bytes"),
        (FormatError, npy(np.zeros(3)), {"dtype": "f4"}, "array: must be float32; found float64"),
        (FormatError, npy(np.zeros(3)), {"shape": (4,)}, r"array: shape must be \(4,\); found \(3,\)"),
        (FormatError, npy(np.zeros(3))[:-1], {}, "npy: .*must have 24 bytes"),
        (FormatError, b"\x93NUMPY\x01\x00", {"dtype": "u1"}, "npy: "),
        (FormatError, "text", {"dtype": "f4"}, "array: .*found str"),
        (FormatError, None, {}, "array: .*found NoneType"),
        (FormatError, [[1], [1, 2]], {"dtype": "f4"}, "array: .*rows of one length"),
        (FormatError, ["a"], {"dtype": "f4"}, "array: .*numbers alone"),
        (FormatError, [1 << 80], {"dtype": "i8"}, "array: .*numbers alone"),
    ],
)
def test_a_first_record_that_tells_too_little_or_is_not_so(error: Any, value: Any, told: Any, said: str) -> None:
    """A mistake of whoever asks for the column, or a bad record, which does not make the layout of the others."""
    with pytest.raises(error, match=f"^{said}"):
        layout_of(value, **told)


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
        ("f4", [float("inf"), float("-inf")], [1.0, "3"]),  # what is infinite may stay so
        ("f4", np.array([1, 2.5]), [1.0]),
        ("f4", np.array([1, 2.5], "<f4").tobytes(), bytes(7)),
        ("f4", npy(np.array([1, 2.5], "<f4")), npy(np.zeros(2))),
        ("f4", npy(np.array([1, 2.5], ">f4")), npy(np.zeros((1, 2), np.float32))),
    ],
)
def test_numbers_are_cast_where_nothing_is_lost(dtype: str, good: Any, bad: Any) -> None:
    """But for digits of a fraction: whole numbers that fit, fractions never to whole ones, nothing to infinity."""
    kind, faults = Array("x", dtype, (2,)), dict[int, str]()
    kept = kind.read([good, bad], faults)
    assert list(faults) == [1]
    wanted = [1, 2.5] if isinstance(good, bytes) else list(good)
    assert kind.batch(kept[:1])[0].tolist() == [np.dtype(dtype).type(each) for each in wanted]


def test_numbers_may_begin_as_a_file_does() -> None:
    """Of so many bytes as a record's numbers take they are its numbers."""
    kind, faults = Array("x", "uint8", (8,)), dict[int, str]()
    kept = kind.read([memoryview(MAGIC + b"\1\0"), npy(np.arange(8, dtype=np.uint8))], faults)
    assert not faults
    assert kind.batch(kept).tolist() == [[*MAGIC, 1, 0], [*range(8)]]


@pytest.mark.parametrize("value", [np.arange(6, dtype="<f4").tobytes(), npy(np.arange(6, dtype="<f4"))])
def test_before_the_row_nothing_is_copied(value: bytes) -> None:
    """What is copied into the row is a view of the record."""
    assert np.shares_memory(array_from(*layout_of(value, "f4"), value), np.frombuffer(value, np.uint8))


NAMES = st.text(st.characters(codec="utf-8", exclude_characters='"'), max_size=8)


@pytest.mark.parametrize(
    ("path", "steps"),
    [
        ("label", ("label",)),
        ("body.features", ("body", "features")),
        ("images[0].data", ("images", 0, "data")),
        ("[3]", (3,)),
        ("[0][1]", (0, 1)),
        ('body["a.b"].c', ("body", "a.b", "c")),
        ('[""]', ("",)),
        ("image id", ("image id",)),
        ("$", ()),
    ],
)
def test_a_path_is_names_and_numbers(path: str, steps: tuple[Any, ...]) -> None:
    """As people write them, and back."""
    assert steps_of(path) == steps
    assert steps_of(path_of(steps)) == steps


@given(st.lists(st.one_of(NAMES, st.integers(0, 999_999_999)), max_size=5))
def test_every_row_of_steps_has_a_path(steps: list[str | int]) -> None:
    """Names with dots, brackets and blanks too; only a quotation mark cannot be written."""
    assert steps_of(path_of(tuple(steps))) == tuple(steps)


RECORD = {"body": {"features": [1, 2], "label": 3, "images": [{"data": "x"}]}, "text": "abc"}


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("label", "label: no such member; the record has 'body', 'text'"),
        ("body.lable", "body.lable: no such member; body has 'features', 'label', 'images'"),
        ("body.features[2]", r"body.features\[2\]: no such member; body.features has 2 items"),
        ("text[0]", "text must be a list, found str"),
        ("text.a", "text must be a record, found str"),
        ("body[0]", "body must be a list, found dict"),
        ("body.images.data", "body.images must be a record, found list"),
    ],
)
def test_a_member_that_is_missing_says_what_there_is(path: str, said: str) -> None:
    """How far the path goes, and what lies there; a text is not taken letter by letter."""
    with pytest.raises(FormatError, match=f"^json: .*{said}"):
        pick(RECORD, steps_of(path), "json")


def test_all_members_of_a_record_have_paths() -> None:
    """And each path leads to its member."""
    found = flatten(RECORD)
    assert list(found) == ["body.features", "body.label", "body.images[0].data", "text"]
    assert all(pick(RECORD, steps_of(path), "json") == value for path, value in found.items())


def test_a_record_of_very_many_members_is_listed_in_part() -> None:
    """People look at it."""
    assert len(flatten({str(k): {"a": k, "b": k} for k in range(10_000)})) <= 2 * MOST
    deep: Any = 1
    for _ in range(3 * DEEPEST):
        deep = {"a": deep}
    assert len(flatten(deep)) == 1


@given(st.text("AQgw=-_ \n", max_size=12))
def test_both_decoders_take_and_refuse_the_same(text: str) -> None:
    """A record is bad by both or by none, and its bytes are the same."""
    found = []
    for decode in (_decoder(), _plain_decode):
        try:
            found.append(decode(text))
        except ValueError:
            found.append(b"bad!")
    assert found[0] == found[1]
