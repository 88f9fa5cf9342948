"""A number per record."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.columns.column import Column, Faults
from dali_feed.errors import ConfigError
from dali_feed.records.pieces import MOST_DIGITS, Pieces

_SHOWN = 40


@dataclass(frozen=True)
class Number(Column):
    """An int, a float, or decimal text. Gives (n,) of `dtype`, on the device.

    member   the member that it is made from; for "a;b" the first of these that a record has
    dtype    of NumPy's: int8..int64, uint8, float16..float64, bool. A number that it cannot hold makes a bad record.
    default  the number of a record without one
    """

    member: str
    dtype: str = "int64"

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            known = np.dtype(self.dtype).kind in "biuf"
        except TypeError:
            known = False
        if not known:
            raise ConfigError(f"{self.title}: dtype must be an int, float or bool type of NumPy; found {self.dtype!r}")

    def read(self, values: Sequence[Any], faults: Faults) -> NDArray[Any]:
        """The numbers, (n,); 0 for rows with a fault."""
        if isinstance(values, np.ndarray) and values.dtype == self.dtype:
            return values
        dtype = np.dtype(self.dtype)
        if dtype == np.int64 and (quick := _digits(values)) is not None:
            return quick
        out = np.zeros(len(values), dtype)
        for row, value in enumerate(values):
            try:
                out[row] = _number(value, dtype)
            except ValueError as error:
                faults[row] = str(error)
        return out


def _digits(values: Sequence[Any]) -> NDArray[np.int64] | None:
    """Decimal digits or an int in every row, the common case, by a few calls for all of them; else None."""
    if isinstance(values, Pieces):
        return values.decimals()
    kinds = set(map(type, values))
    if kinds == {int}:
        try:
            return np.array(values, np.int64)
        except OverflowError:
            return None
    if not kinds or not kinds <= {memoryview, bytes}:
        return None
    size = np.fromiter(map(len, values), np.int64, len(values))
    if size.max() > MOST_DIGITS:
        return None
    at = np.cumsum(size) - size
    return Pieces([memoryview(b"".join(values))], np.zeros(len(values), np.int64), at, size).decimals()


def _number(value: Any, dtype: np.dtype[Any]) -> Any:
    """The value as a number that the dtype holds; ValueError says why there is none."""
    if isinstance(value, memoryview | bytes | str):
        text = value if isinstance(value, str) else bytes(value[:_SHOWN]).decode("ascii", "replace")
        if len(value) >= _SHOWN or "_" in text:  # to Python 1_0 is a number too
            raise ValueError(f"a decimal number is needed; found {text!r}")
        try:
            value = float(text) if dtype.kind == "f" else int(text)
        except ValueError as error:
            raise ValueError(f"a decimal number is needed; found {text!r}") from error
    if not isinstance(value, int | float | np.number | np.bool_):
        msg = f"a number is needed; found {str(value)[:_SHOWN]!r}"
        raise ValueError(msg)  # noqa: TRY004  the data is wrong, not a program
    if dtype.kind in "iub" and (
        (isinstance(value, float | np.floating) and not np.isfinite(value)) or value != int(value)
    ):
        raise ValueError(f"a whole number is needed for {dtype}; found {value}")
    low, high = (0, 1) if dtype.kind == "b" else _ends(dtype)
    if not low <= value <= high and value == value and abs(value) != float("inf"):  # noqa: PLR0124  not a NaN
        raise ValueError(f"a number must fit into {dtype}; found {value}")
    return value


@functools.cache
def _ends(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    if dtype.kind == "f":
        return float(np.finfo(dtype).min), float(np.finfo(dtype).max)
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
