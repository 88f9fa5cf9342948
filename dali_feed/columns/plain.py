"""Plain columns: a number per record, and lists of texts, JSON values and bytes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.columns.column import Column, Faults
from dali_feed.errors import BadRecordError, ConfigError, DaliFeedError, FormatError
from dali_feed.formats.json_text import loads
from dali_feed.records.pieces import MOST_DIGITS, Pieces

_SHOWN = 40
_BYTES = (memoryview, bytes, bytearray)


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


class _Listed(Column):
    """Values in a list, where a default stands as it is."""

    def read_default(self, faults: Faults) -> list[Any]:
        """As it is."""
        del faults
        return [self.default]


@dataclass(frozen=True)
class Text(_Listed):
    """UTF-8 text. Gives a list of n str; bytes that are no UTF-8 make a bad record.

    member   the member that it is made from; for "a;b" the first of these that a record has
    default  what stands in the list for a record without one: a text, or None
    """

    member: str

    def read(self, values: Sequence[Any], faults: Faults) -> list[str]:
        """The texts, decoded."""
        return texts(values, faults)


@dataclass(frozen=True)
class JsonValue(_Listed):
    """A JSON document (RFC 8259: no NaN, no Infinity). Gives a list of n values as Python's json has them.

    What a format has read already (`json:meta`, or `json:$` for all of it) comes as the format gives it; a text there
    is read as a document.

    member   the member that it is made from; for "a;b" the first of these that a record has
    default  what stands in the list for a record without one
    """

    member: str

    def read(self, values: Sequence[Any], faults: Faults) -> list[Any]:
        """The documents, parsed."""
        return _each(values, faults, lambda value: loads(value) if isinstance(value, (*_BYTES, str)) else value, None)


@dataclass(frozen=True)
class Bytes(Column):
    """Bytes that only the user understands. Gives a list of n: memoryviews, or what `decode` makes of the bytes.

    The views cannot be written to. One that is kept keeps its batch's bytes, or those of up to 8 MiB that were read
    together with it; `bytes(view)` is a copy of its own. For small records give `decode=bytes`: a view of 100 bytes
    takes several times the time of a copy, most of it in Python's garbage collector.

    Arrays and tensors that it makes stay a list, of equal shapes too; arrays of numbers come as tensors on the device.

    member   the member that it is made from; for "a;b" the first of these that a record has
    decode   is called with a memoryview of one record's bytes, which it may keep and write to, by `Tuning(threads=...)`
             threads at once, when the record's batch is run. What it raises makes that record a bad one. It must not
             use random numbers of its own, or a resumed run differs. `bytes` is not called: a batch is copied at once.
    default  the bytes of a record without them, which `decode` gets too
    """

    member: str
    decode: Callable[[memoryview], Any] | None = None

    @property
    def late(self) -> bool:
        """Whether anything is left to make when a batch is run: a record that is in none costs no call of `decode`."""
        return self.decode not in (None, bytes)

    def read(self, values: Any, faults: Faults) -> Any:
        """Views as they are; what is no bytes is a fault."""
        if isinstance(values, Pieces):
            return values
        for row, value in enumerate(values):
            if value.__class__ not in _BYTES:
                faults[row] = f"must be bytes; found {type(value).__name__}"
        return values

    def attempt(self, data: memoryview) -> tuple[Any, str]:
        """What is made of a record's bytes, in memory of their own; or None, and why its record is a bad one.

        Called by many threads at once. Errors of ours that speak of no record go on, and so does what is no Exception,
        such as KeyboardInterrupt.
        """
        try:
            return data if self.decode is None else self.decode(data), ""
        except Exception as error:
            if isinstance(error, DaliFeedError) and not isinstance(error, BadRecordError | FormatError):
                raise
            hint = (
                ": decode= is given a memoryview, of which bytes(view) makes bytes"
                if "memoryview" in str(error)
                else ""
            )
            return None, f"{type(error).__name__}: {error}{hint}"

    def batch(self, values: Any) -> Any:
        """Rows of lent memory, or of a copy of the batch's bytes, of which views are made late; or a list."""
        if self.late:
            return list(values)
        if self.decode is bytes:
            return values.as_bytes() if isinstance(values, Pieces) else list(map(bytes, values))
        if isinstance(values, Pieces):
            return (values if values.lent else values.copied()).read_only()
        whole, ends = memoryview(b"".join(values)), itertools.accumulate(map(len, values), initial=0)
        return [whole[a:b] for a, b in itertools.pairwise(ends)]


def texts(values: Sequence[Any], faults: Faults) -> list[str]:
    """Each value as a text; what is no UTF-8 is a fault."""
    return _each(values, faults, _text, "")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value, "utf-8")


def _each(values: Sequence[Any], faults: Faults, make: Callable[[Any], Any], instead: Any) -> list[Any]:
    """What is made of each value; one that fails is a fault."""
    out: list[Any] = [instead] * len(values)
    for row, value in enumerate(values):
        try:
            out[row] = make(value)
        except Exception as error:  # noqa: BLE001 - whatever a user's function raises is about this record
            faults[row] = f"{type(error).__name__}: {error}"
    return out
