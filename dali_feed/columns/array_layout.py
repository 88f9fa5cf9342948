"""One array of a record into its row of a batch: little-endian bytes, a .npy file, or numbers that a format gave.

The law of this file: all records of a column have one layout, the first one's where nobody told it. One that differs
is a bad record, never a cast that loses something, and its bytes are copied once, into the row.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dali_feed.errors import ConfigError, FormatError
from dali_feed.formats.npy import MAGIC, array_of, header_of

__all__ = ["ArrayLayout", "array_from", "batch_for", "filler", "layout_of"]

_KINDS = "biufc"  # what a dtype may be: no objects, texts or times
_BYTES = (bytes, bytearray, memoryview)


@dataclass(frozen=True, slots=True)
class ArrayLayout:
    """What all arrays of a column are.

    dtype  in this machine's byte order
    how    `raw`: bytes without a header, little-endian, in C order; `npy`: a .npy file each; `numbers`: arrays or lists
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    how: Literal["raw", "npy", "numbers"]

    @property
    def size(self) -> int:
        """Bytes of one array."""
        return math.prod(self.shape) * self.dtype.itemsize


def layout_of(first: Any, dtype: DTypeLike | None = None, shape: Sequence[int] | None = None) -> ArrayLayout:
    """The layout of a column whose first good record has this value, where dtype and shape are told or not.

    Bytes without a header need a dtype, and are one row of such numbers unless a shape is told; lists need a dtype.

    Raises:
        ConfigError: what is told cannot be, or is not enough.
        FormatError: the value is not what is told, or no array: it should be another record's turn to be first.
    """
    told = None if dtype is None else _dtype(dtype)
    sides = None if shape is None else _shape(shape)
    how: Literal["raw", "npy", "numbers"]
    if isinstance(first, _BYTES):
        found_dtype, found_shape, how = _of_bytes(first, told, sides)
    elif isinstance(first, np.ndarray | list):
        if told is None and isinstance(first, list):
            msg = "Array: the dtype of numbers in a list must be told; give dtype="
            raise ConfigError(msg)
        array = _plain(first)
        found_dtype, found_shape, how = told or array.dtype.newbyteorder("="), array.shape, "numbers"
    else:
        msg = f"array: must be bytes, an array or a list of numbers; found {type(first).__name__}"
        raise FormatError(msg)
    layout = ArrayLayout(told or found_dtype, found_shape if sides is None else sides, how)
    array_from(layout, first)
    return layout


def _dtype(told: DTypeLike) -> np.dtype[Any]:
    try:
        dtype = np.dtype(told)
    except TypeError as error:
        msg = f"Array: dtype must be one of NumPy's; found {told!r}"
        raise ConfigError(msg) from error
    if dtype.kind not in _KINDS or dtype.itemsize > 16 or dtype == np.longdouble:
        msg = f"Array: dtype must be of numbers or booleans; found {dtype}"
        raise ConfigError(msg)
    return dtype.newbyteorder("=")


def _shape(told: Sequence[int]) -> tuple[int, ...]:
    try:
        shape = tuple(operator.index(side) for side in told)
    except TypeError as error:
        msg = f"Array: shape must be a row of ints; found {told!r}"
        raise ConfigError(msg) from error
    if any(side < 0 for side in shape) or len(shape) > 32:
        msg = f"Array: shape must be at most 32 ints of 0 or more; found {told!r}"
        raise ConfigError(msg)
    return shape


def _of_bytes(
    value: bytes | bytearray | memoryview, told: np.dtype[Any] | None, sides: tuple[int, ...] | None
) -> tuple[np.dtype[Any], tuple[int, ...], Literal["raw", "npy"]]:
    whole = told is not None and sides is not None and len(value) == math.prod(sides) * told.itemsize
    if value[: len(MAGIC)] == MAGIC and not whole:  # bytes without a header may begin like that too
        _, dtype, shape, _ = header_of(value)
        return dtype.newbyteorder("="), shape, "npy"
    if told is None:
        msg = "Array: the dtype of bytes without a header must be told; give dtype="
        raise ConfigError(msg)
    if sides is None and len(value) % told.itemsize:
        msg = f"array: must be a row of {told}, {told.itemsize} bytes each; found {len(value)} bytes"
        raise FormatError(msg)
    return told, (len(value) // told.itemsize,), "raw"


def array_from(layout: ArrayLayout, value: Any) -> NDArray[Any]:
    """The array of one record; a view, but for lists.

    Raises:
        FormatError: it is not of this layout.
    """
    if layout.how == "numbers":
        return _held(layout, _plain(value))
    if not isinstance(value, _BYTES):
        msg = f"array: must be bytes, as the first record's were; found {type(value).__name__}"
        raise FormatError(msg)
    if layout.how == "npy":
        return _held(layout, array_of(value), exact=True)
    if len(value) != layout.size:
        msg = f"array: {layout.dtype} {layout.shape} must have {layout.size} bytes; found {len(value)}"
        raise FormatError(msg)
    return np.ndarray(layout.shape, layout.dtype.newbyteorder("<"), value)


def batch_for(layout: ArrayLayout, rows: int) -> NDArray[Any]:
    """Memory for a batch, (rows, *shape). It is not set: every row must be filled."""
    return np.empty((rows, *layout.shape), layout.dtype)


def filler(layout: ArrayLayout, batch: NDArray[Any]) -> Callable[[int, Any], None]:
    """What puts a record's value into a row of a batch, in one copy. Where it raises FormatError the row is as it was.

    batch  (rows, *shape) of the layout's dtype, in C order
    """
    if batch.dtype != layout.dtype or batch.shape[1:] != layout.shape or not batch.flags.c_contiguous:
        msg = f"batch: must be in C order, {layout.dtype} (rows, *{layout.shape}); found {batch.dtype} {batch.shape}"
        raise ConfigError(msg)
    if layout.how != "raw" or sys.byteorder == "big":

        def put(row: int, value: Any) -> None:
            np.copyto(batch[row, ...], array_from(layout, value), casting="unsafe")  # it has been looked at

        return put

    # By memoryview: a copy by NumPy lets go of the interpreter's lock, and waits for it again, for each record.
    flat, size = batch.reshape(-1).view(np.uint8).data, layout.size

    def copy(row: int, value: Any) -> None:
        if value.__class__ not in _BYTES or len(value) != size:
            array_from(layout, value)  # which says what is wrong
        flat[row * size : (row + 1) * size] = value

    return copy


def _plain(value: Any) -> NDArray[Any]:
    """An array of numbers, of an array or of lists in lists."""
    if not isinstance(value, np.ndarray | list):
        msg = f"array: must be numbers in a row, as the first record's were; found {type(value).__name__}"
        raise FormatError(msg)
    try:
        array = np.asarray(value)
    except ValueError as error:  # rows of different lengths
        msg = f"array: must be rows of one length; {error}"
        raise FormatError(msg) from None
    if array.dtype.kind not in _KINDS:
        msg = f"array: must be numbers alone; found {array.dtype}"
        raise FormatError(msg)
    return array


def _held(layout: ArrayLayout, array: NDArray[Any], *, exact: bool = False) -> NDArray[Any]:
    """The array, where the layout can take it with nothing lost but digits of a fraction."""
    dtype = array.dtype.newbyteorder("=")
    if array.shape != layout.shape:
        msg = f"array: shape must be {layout.shape}; found {array.shape}"
        raise FormatError(msg)
    if dtype == layout.dtype or not array.size:
        return array
    kinds = "biufc"
    if exact or kinds.index(dtype.kind.replace("u", "i")) > kinds.index(layout.dtype.kind):
        msg = f"array: must be {layout.dtype}; found {dtype}"
        raise FormatError(msg)
    if layout.dtype.kind in "iu" and dtype.kind in "iu":
        bounds = np.iinfo(layout.dtype)
        least, most = int(array.min()), int(array.max())
        if least < bounds.min or most > bounds.max:
            msg = f"array: must be {layout.dtype}; found {least if least < bounds.min else most}"
            raise FormatError(msg)
        return array
    try:
        with np.errstate(over="raise", invalid="ignore"):
            return array.astype(layout.dtype)
    except FloatingPointError:
        msg = f"array: must be {layout.dtype}; found numbers too large for it"
        raise FormatError(msg) from None
