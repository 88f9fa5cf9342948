"""Column: how a column of a batch is made from a member of the records; and the plain ones, numbers, texts and bytes.

The law: what a value needs to be is known when its record is read, so a member that is missing or malformed makes a bad
record, and its slot goes to another. Nothing is copied before a batch is made, where the column can help it.
"""

from __future__ import annotations

import enum
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dali_feed.checks import dtype_of
from dali_feed.errors import BadRecordError, ConfigError, DaliFeedError, FormatError
from dali_feed.formats.json_text import loads
from dali_feed.options import Decode
from dali_feed.records.pieces import MOST_DIGITS, Pieces
from dali_feed.records.source import Stage

Faults = dict[int, str]  # row -> why its record cannot be used


class Required(enum.Enum):
    """What stands in place of a default where there is none."""

    REQUIRED = "required"


REQUIRED = Required.REQUIRED


@dataclass(frozen=True)
class Column:
    """What a column takes and gives: a base for frozen dataclasses with a field `member`. Used by many threads at once.

    A user's own column has `read`; it has `batch` if a batch is not what `read` kept, and `open` and `settled` if the
    first record can tell what the user did not.

    member   that it is made from, or several, "jpg;png", of which the first one counts
    default  what stands for a record without that member, or with null; a record without it is a bad one where no
             default is given
    """

    default: Any = field(default=REQUIRED, kw_only=True, repr=False)

    if TYPE_CHECKING:
        member: str  # a field of the subclass
    stage: ClassVar[Stage] = "source"  # what refuses a value: the screen, of what is an image

    def __post_init__(self) -> None:
        """A column's own checks come after this one: ConfigError for what is no member's name."""
        if not isinstance(self.member, str) or not self.member.strip(" ;."):
            rule = "member must be a name such as 'txt', or several such as 'jpg;png'"
            raise ConfigError(f"{type(self).__name__}: {rule}; found {self.member!r}")

    @property
    def title(self) -> str:
        """What begins an error of a setting: `Array('depth')`."""
        return f"{type(self).__name__}({self.member!r})"

    @property
    def optional(self) -> bool:
        """Whether a record may lack its member."""
        return self.default is not REQUIRED

    @property
    def open(self) -> bool:
        """Whether something is left to the first record: then `settled` is called with its value."""
        return False

    def settled(self, first: Any) -> Self:
        """This column, with what the first record tells; None: none of the first few has a value.

        ConfigError if it tells too little. It is called only if the column is `open`.
        """
        return self

    def decoding(self, decode: Decode) -> Self:
        """This column in a loader that decodes images so; one that is no image is as it is."""
        del decode
        return self

    def read(self, values: Any, faults: Faults) -> Any:
        """What is kept of a read's values until they stand in a batch, row for row: an array, a list, or `Pieces`.

        Called by the threads that read. `values` is a sequence without a missing one: a value is a view of bytes, or
        what the source has. It may be empty. Where it is a `dali_feed.records.pieces.Pieces`, all views can be asked
        about at once, and it can be kept as it is. Rows that are put into `faults` may be given any value.
        """
        raise NotImplementedError

    def read_default(self, faults: Faults) -> Any:
        """One row of what `read` keeps, for records without the member; a `default` that cannot be is a fault."""
        return self.read([self.default], faults)

    def batch(self, values: Any) -> Any:
        """The column of a batch, from rows of what `read` kept, while the memory of its views is still there."""
        return values

    def of_lanes(self, values: Any, lanes: int) -> Any:
        """The same, from rows of so many lanes, equally many each, one lane after the other.

        For a column that makes something of several records together: what it makes of one lane must not depend on the
        other lanes, because a rank has more or fewer lanes at another world size.
        """
        del lanes
        return self.batch(values)


# Plain columns: a number per record, and lists of texts, JSON values and bytes.


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
        if dtype_of(self.dtype).kind not in "biuf":
            raise ConfigError(f"{self.title}: dtype must be an int, float or bool type of NumPy; found {self.dtype!r}")

    def read(self, values: Sequence[Any], faults: Faults) -> NDArray[Any]:
        """The numbers, (n,); 0 for rows with a fault."""
        if isinstance(values, np.ndarray) and values.dtype == self.dtype:
            return values
        dtype = np.dtype(self.dtype)
        if dtype == np.int64 and (quick := _digits(values)) is not None:
            return quick
        out = np.zeros(len(values), dtype)
        for row, value in enumerate(values.tolist() if isinstance(values, np.ndarray) else values):
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
    if isinstance(value, np.number | np.bool_):
        value = value.item()  # Python compares an int and a float exactly
    if not isinstance(value, int | float):
        msg = f"a number is needed; found {str(value)[:_SHOWN]!r}"
        raise ValueError(msg)  # noqa: TRY004  the data is wrong, not a program
    if dtype.kind in "iub" and ((isinstance(value, float) and not math.isfinite(value)) or value != int(value)):
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

    The views cannot be written to. One that is kept keeps its batch's bytes, or those of up to 16 MiB that were read
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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decode is not None and not callable(self.decode):
            raise ConfigError(f"{self.title}: decode must be a function of a memoryview; found {self.decode!r}")

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
