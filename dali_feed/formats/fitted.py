"""Values of a source made into what a schema wants: bytes and decimal text too, which is all that tar shards have.

The law: nothing is lost on the way but digits, or it is an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from dali_feed.errors import FormatError
from dali_feed.formats.npy import MAGIC, array_of

__all__ = ["Fit", "flag", "many", "octets", "plain", "real", "text", "whole"]

Fit = Callable[[Any], Any]

_BYTES = (bytes, bytearray, memoryview)
_FLOAT32 = float(np.finfo(np.float32).max)
_LONGEST = 40  # letters of a number


def plain(value: Any) -> Any:
    """Without NumPy, and without views of memory that is given back."""
    if isinstance(value, memoryview | bytearray):
        return bytes(value)
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return value


def octets(value: Any) -> bytes:
    """Bytes."""
    if isinstance(value, _BYTES):
        return bytes(value)
    raise FormatError(_odd("bytes", value))


def text(value: Any) -> str:
    """A text, or one in UTF-8."""
    if isinstance(value, str):
        return value
    if not isinstance(value, _BYTES):
        raise FormatError(_odd("a text", value))
    try:
        return bytes(value).decode()
    except UnicodeDecodeError as error:
        msg = f"must be text in UTF-8; {error}"
        raise FormatError(msg) from None


def flag(value: Any) -> bool:
    """True or False."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise FormatError(_odd("a boolean", value))


def whole(least: int, most: int) -> Fit:
    """A whole number from `least` to `most`, or its decimal text."""

    def fit(value: Any) -> int:
        if isinstance(value, str | bytes | bytearray | memoryview):
            value = _parsed(int, value)
        if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
            raise FormatError(_odd("a whole number", value))
        if not least <= int(value) <= most:
            msg = f"must be a whole number in {least}..{most}; found {value}"
            raise FormatError(msg)
        return int(value)

    return fit


def real(*, single: bool) -> Fit:
    """A number, or its decimal text; `single`: one that 32 bits can hold, but for digits."""

    def fit(value: Any) -> float:
        if isinstance(value, str | bytes | bytearray | memoryview):
            value = _parsed(float, value)
        if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
            raise FormatError(_odd("a number", value))
        try:
            found = float(value)
        except OverflowError:
            found = math.inf
        if (single and _FLOAT32 < abs(found) < math.inf) or (math.isinf(found) and isinstance(value, int)):
            msg = f"must be a number of {32 if single else 64} bits; found {str(value)[:_LONGEST]}"
            raise FormatError(msg)
        return found

    return fit


def many(each: Fit, dtype: str | None = None) -> Fit:
    """Several in a row: a list, an array of one dimension, or the bytes of one as NumPy saves it.

    dtype  of numbers, all of which are taken as they are
    """
    known = None if dtype is None else np.dtype(dtype)

    def fit(value: Any) -> list[Any]:
        if isinstance(value, _BYTES) and bytes(value[:6]) == MAGIC:
            value = array_of(bytes(value))
        if isinstance(value, np.ndarray):
            if value.ndim != 1:
                msg = f"must be numbers in a row; found an array of shape {value.shape}"
                raise FormatError(msg)
            if known is not None and value.dtype.kind in known.kind + "iu" and np.can_cast(value.dtype, known):
                return cast("list[Any]", value.tolist())
            value = value.tolist()
        if isinstance(value, str | bytes | bytearray | memoryview) or not isinstance(value, Sequence):
            raise FormatError(_odd("a list", value))
        return [each(one) for one in value]

    return fit


def _parsed(kind: Callable[[str], Any], value: Any) -> Any:
    shown = text(value)
    try:
        if len(shown) > _LONGEST or "_" in shown:
            raise ValueError
        found = kind(shown)
        if isinstance(found, float) and math.isinf(found) and "n" not in shown.lower():
            raise ValueError  # too large
    except ValueError:
        msg = f"must be a number in decimal text; found {shown[:_LONGEST]!r}"
        raise FormatError(msg) from None
    return found


def _odd(wanted: str, value: Any) -> str:
    return f"must be {wanted}; found {'nothing' if value is None else type(value).__name__}"
