"""Arrays of numbers of one dtype and shape: raw little-endian bytes, `.npy`, or numbers that a format found.

The law: all records of a column have one layout, the first one's where nobody told it. One that differs is a bad
record, never a cast that loses something, and its bytes are copied once, into its row of the batch. Where the first
side is None each record has its own number of rows. `scale` and `bias` are for a batch: float32, the product rounded
and then the sum, on a GPU too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dali_feed.checks import dtype_of, whole
from dali_feed.columns.column import Column, Faults
from dali_feed.errors import ConfigError, FormatError
from dali_feed.formats.npy import MAGIC, array_of, header_of
from dali_feed.records.pieces import ArrayPieces, Pieces

_LARGEST = float(np.finfo(np.float32).max)
MAX_CHANNELS = 4  # of the kernel `unpack`
LARGE, LARGE_BATCH = 1 << 13, 1 << 18  # bytes of a record and of a batch, of which a second copy costs more than calls

Room = Callable[[int], NDArray[np.uint8]]  # memory of so many bytes

Factors = float | tuple[float, ...] | None

_BYTES = (memoryview, bytes, bytearray)
_BYTE_TYPES = frozenset((memoryview, bytes))
_KINDS = "biufc"  # of NumPy's dtypes, what numbers may be: each holds those before it


class Scaled(NamedTuple):
    """Numbers of a batch as they were read, which a GPU makes `rows * scale + bias` of: so bytes travel as bytes.

    rows         uint8 or uint16 (n, *shape)
    scale, bias  one number, or up to four for the last side
    """

    rows: Any
    scale: Factors
    bias: Factors

    def whole(self, room: Room | None = None) -> NDArray[np.float32]:
        """The same by NumPy, in memory of `room`."""
        numbers = self.rows
        memory = np.empty(numbers.size * 4, np.uint8) if room is None else room(numbers.size * 4)
        out = memory.view(np.float32).reshape(numbers.shape)
        each = max(1, math.prod(numbers.shape[1:] if numbers.ndim > 1 else numbers.shape))  # of a record, or all
        some, floats = numbers.reshape(-1, each), out.reshape(-1, each)
        with np.errstate(over="ignore", invalid="ignore"):  # a float64 may be larger, and a float not a number
            np.multiply(some, _for_each(self.scale, 1.0, each), out=floats, dtype=np.float32)
            np.add(floats, _for_each(self.bias, 0.0, each), out=floats)
        return out


def _for_each(factors: Factors, neutral: float, each: int) -> NDArray[np.float32]:
    """A factor for all, or one for each number of a record: NumPy is slow along three numbers of a pixel."""
    known = np.asarray(neutral if factors is None else factors, np.float32)
    return np.tile(known, each // known.size)


@dataclass(frozen=True)
class Array(Column):
    """Numbers of one dtype and shape. Gives (n, *shape) on the device; float32 where there is a `scale` or a `bias`.

    member   the member that it is made from; for "a;b" the first of these that a record has
    dtype    of NumPy's: integers, floats or bool. None: the first record's, of a `.npy` file or an array
    shape    of one record's array. None: that of the first record, which all others must have too; for raw bytes it is
             flat. `(None, 4)`: each record has its own number of rows
    ragged   what a batch of such rows is: "list", of n arrays; "pad", a `Counted`, which needs `most`; "nested", a
             nested tensor of torch's (layout=torch.jagged)
    most     of such rows, at most so many a record
    scale    numbers become x * scale + bias: one for all, or one for each of the last side
    bias     the same; without the other one that is 1, or 0
    default  of a record without one, in place of x: an array, or a number that fills one
    """

    member: str
    dtype: str | None = None
    shape: tuple[int | None, ...] | None = None
    ragged: Literal["list", "pad", "nested"] = "list"
    most: int | None = None
    scale: Factors = None
    bias: Factors = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_shape()
        self._check_ragged()
        for name in ("scale", "bias"):
            object.__setattr__(self, name, self._factors(name, getattr(self, name)))
        dtype = None if self.dtype is None else dtype_of(self.dtype)
        if dtype is not None and (dtype.kind not in "biuf" or dtype.byteorder == ">"):
            msg = f"{self.title}: dtype must be a little-endian number type of NumPy; found {self.dtype!r}"
            raise ConfigError(msg)

    def _check_shape(self) -> None:
        sides: Any = () if self.shape is None else self.shape
        if isinstance(sides, tuple | list) and all(isinstance(n, int) and n > 0 for n in sides[self._own_rows :]):
            return
        rule = "shape must be a tuple of positive ints, the first may be None"
        raise ConfigError(f"{self.title}: {rule}; found {self.shape!r}; one side is (3,)")

    def _check_ragged(self) -> None:
        if self.most is not None:
            whole(f"{self.title}: most, where it is not None,", self.most, 1)
        if self.ragged not in ("list", "pad", "nested"):
            raise ConfigError(f'{self.title}: ragged must be "list", "pad" or "nested"; found {self.ragged!r}')
        if not self._own_rows and (self.ragged != "list" or self.most is not None):
            rule = "ragged and most are of a shape whose first side is None, such as (None, 4)"
            raise ConfigError(f"{self.title}: {rule}; found {self.shape!r}")
        if self.ragged == "pad" and self.most is None:
            msg = f'{self.title}: ragged="pad" needs most=, as a batch must not depend on what else is in it'
            raise ConfigError(msg)

    def _factors(self, name: str, factors: Any) -> Factors:
        """In Python's own floats."""
        several = isinstance(factors, tuple | list)
        each = factors if several else () if factors is None else (factors,)
        last = self.shape[-1] if self.shape else None
        sound = all(isinstance(n, Real) and not isinstance(n, bool) for n in each)
        sound = sound and all(abs(n) <= _LARGEST for n in each)
        if not sound or (several and (not each or (self.shape is not None and len(each) != last))):
            rule = f"{name} must be a float32 number, or a tuple of one for each of the last side of {self.shape}"
            raise ConfigError(f"{self.title}: {rule}; found {factors!r}")
        return None if factors is None else tuple(map(float, each)) if several else float(factors)

    @property
    def _own_rows(self) -> bool:
        """Whether each record has its own number of rows."""
        return self.shape is not None and self.shape[:1] == (None,)

    @property
    def _sides(self) -> tuple[int, ...]:
        """The shape of a record's array, or of each of its rows."""
        return tuple(side for side in self.shape or () if side is not None)

    @property
    def open(self) -> bool:
        """Where dtype or shape was not given."""
        return self.dtype is None or self.shape is None

    def settled(self, first: Any) -> Self:
        """With the dtype and shape of the first record's, where they were not given."""
        if first is None:
            rule = "dtype and shape are taken from the first records, and none of them has this member"
            raise ConfigError(f"{self.title}: {rule}; check its name, or give dtype= and shape=")
        try:
            if self._own_rows:
                dtype, _ = layout_of(first, title=self.title)
                return replace(self, dtype=dtype.name)
            sides = None if self.shape is None else self._sides
            dtype, shape = layout_of(first, self.dtype, sides, self.title)
        except FormatError as error:
            rule = "dtype and shape are taken from the first record, which cannot be read"
            raise ConfigError(f"{self.title}: {rule}: {error}; give dtype= and shape=") from error
        return replace(self, dtype=dtype.name, shape=shape)

    def read(self, values: Any, faults: Faults) -> Sequence[Any]:
        """Raw bytes as they are, and arrays of all others: views, where the source's are."""
        dtype, shape = np.dtype(self.dtype), self._sides
        if self._own_rows:
            return self._read_rows(values, dtype, shape, faults)
        size = math.prod(shape) * dtype.itemsize
        if isinstance(values, ArrayPieces) and values.are(dtype, shape):
            values = values.pieces
        if isinstance(values, Pieces) and (values.even == size or (values.size == size).all()):
            return values
        out = list(values)
        if set(map(type, out)) <= _BYTE_TYPES and set(map(len, out)) == {size}:
            return out  # all as they should be, by two calls
        for row, value in enumerate(out):
            if value.__class__ in _BYTES and len(value) == size:
                continue
            try:
                out[row] = array_from(dtype, shape, value)
            except FormatError as error:
                faults[row] = str(error)
        return out

    def _read_rows(self, values: Any, dtype: np.dtype[Any], sides: tuple[int, ...], faults: Faults) -> Sequence[Any]:
        """The same of records that have their own number of rows."""
        each = math.prod(sides) * dtype.itemsize
        most = np.iinfo(np.int64).max if self.most is None else self.most
        if isinstance(values, ArrayPieces) and values.are_rows(dtype, sides):
            values, raw = values.pieces, True
        else:
            raw = isinstance(values, Pieces) and not (values.padded(len(MAGIC)) == list(MAGIC)).all(axis=1).any()
        if raw and ((values.size % each == 0) & (values.size // each <= most)).all():
            return values  # type: ignore[no-any-return]  # Pieces
        out = list(values)
        for row, value in enumerate(out):
            try:
                out[row] = rows_from(dtype, sides, value)
                if len(out[row]) > most:
                    faults[row] = f"at most {self.most} rows (most=) are allowed; found {len(out[row])}"
            except FormatError as error:
                faults[row] = str(error)
        return out

    def read_default(self, faults: Faults) -> Any:
        """An array of the column's shape."""
        value = self.default
        if isinstance(value, int | float | np.number | np.bool_) and not self._own_rows:
            value = np.full(self._sides, value)
        return self.read([value], faults)

    def batch(self, values: Sequence[Any], room: Room | None = None, *, gpu: bool = False) -> Any:
        """One array, in memory of its own: each record's bytes are copied once. Of ragged rows what `ragged` says.

        A large one lies where it was read to, where its rows lie side by side in lent memory; else in memory of `room`,
        from where it goes to a GPU without another copy. For a `gpu` bytes and 16 unsigned bits are left `Scaled`; all
        else takes as many bytes there as floats do.
        """
        dtype, shape = np.dtype(self.dtype), self._sides
        if self._own_rows:
            every = end_to_end(values, dtype, shape)
            every = every._replace(rows=self.scaled(every.rows))
            if self.most is not None and self.ragged == "pad":
                return every.padded(self.most)
            return every if self.ragged == "nested" else every.split()
        there = gpu and self._scales_there
        each = math.prod(shape) * dtype.itemsize
        size = len(values) * each
        floats = room if 4 * len(values) * math.prod(shape) >= LARGE_BATCH else None
        small = size < LARGE_BATCH or (each < LARGE and not isinstance(values, Pieces))
        if small or (gpu and self._scales and not there):
            room = None
        if isinstance(values, Pieces):
            rows = None if room is None else values.as_they_lie(each)
            memory = (values.together(each, room and room(size)) if rows is None else rows).reshape(-1)
        elif room is None and set(map(type, values)) <= _BYTE_TYPES:
            memory = np.frombuffer(bytearray().join(values), np.uint8)
        else:
            memory = np.empty(size, np.uint8) if room is None else room(size)
            _fill(memory, values, dtype, shape)
        rows = memory.view(dtype).reshape(len(values), *shape)
        return Scaled(rows, self.scale, self.bias) if there else self.scaled(rows, floats)

    @property
    def _scales(self) -> bool:
        return self.scale is not None or self.bias is not None

    @property
    def _scales_there(self) -> bool:
        """Whether the kernel `unpack` does it."""
        few = all(not isinstance(each, tuple) or len(each) <= MAX_CHANNELS for each in (self.scale, self.bias))
        return self._scales and few and self.dtype in ("uint8", "uint16")

    def scaled(self, numbers: NDArray[Any], room: Room | None = None) -> NDArray[Any]:
        """Numbers of a batch, or of a record, as `scale` and `bias` make them; themselves where there is neither."""
        if not self._scales:
            return numbers
        return Scaled(numbers, self.scale, self.bias).whole(room)


def kept_as_array(column: Array, value: Any) -> NDArray[Any]:
    """What `read` has kept of a record, as an array; as `scale` and `bias` make it."""
    if not isinstance(value, np.ndarray):
        sides = [-1 if side is None else side for side in column.shape or ()]
        value = np.frombuffer(value, column.dtype).reshape(sides)
    return column.scaled(value.astype(column.dtype, copy=False))


def _fill(memory: NDArray[np.uint8], values: Sequence[Any], dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Copy arrays of that dtype and shape, or their bytes, into memory that they fill."""
    each, raw = math.prod(shape) * dtype.itemsize, memory.data
    arrays = memory.view(dtype).reshape(len(values), *shape)
    for row, value in enumerate(values):
        if value.__class__ in _BYTES:
            raw[row * each : (row + 1) * each] = memoryview(value).cast("B")
        else:
            arrays[row] = value


# One array of a record: what it must be.


def layout_of(
    first: Any, dtype: str | None = None, shape: tuple[int, ...] | None = None, title: str = "Array"
) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Dtype and shape of a column, called `title`, whose first good record has this value, where they are told or not.

    Bytes without a header need a dtype, and are one row of such numbers unless a shape is told; lists need a dtype.

    Raises:
        ConfigError: what is told is not enough.
        FormatError: the value is not what is told, or no array: it should be another record's turn to be first.
    """
    wanted = None if dtype is None else np.dtype(dtype)
    if isinstance(first, _BYTES):
        own, sides = _of_bytes(first, wanted, title)
    elif isinstance(first, np.ndarray | list):
        if wanted is None and isinstance(first, list):
            raise ConfigError(f"{title}: the dtype of numbers in a list must be told; give dtype=")
        array = _plain(first)
        own, sides = wanted or array.dtype.newbyteorder("="), array.shape
    else:
        raise FormatError(f"array: must be bytes, an array or a list of numbers; found {type(first).__name__}")
    layout = wanted or own, sides if shape is None else shape
    array_from(*layout, first)
    return layout


def _of_bytes(
    value: bytes | bytearray | memoryview, wanted: np.dtype[Any] | None, title: str
) -> tuple[np.dtype[Any], tuple[int, ...]]:
    if value[: len(MAGIC)] == MAGIC:
        _, dtype, sides, _ = header_of(value)
        return dtype.newbyteorder("="), sides
    if wanted is None:
        raise ConfigError(f"{title}: the dtype of bytes without a header must be told; give dtype=")
    if len(value) % wanted.itemsize:
        raise FormatError(f"array: must be a row of {wanted}, {wanted.itemsize} bytes each; found {len(value)} bytes")
    return wanted, (len(value) // wanted.itemsize,)


def array_from(dtype: np.dtype[Any], shape: tuple[int, ...], value: Any) -> NDArray[Any]:
    """The array of one record, little-endian bytes, a `.npy` file or numbers; a view, but for lists.

    Raises:
        FormatError: it is not of this dtype and shape.
    """
    if not isinstance(value, _BYTES):
        return _fitted(dtype, shape, _plain(value))
    size = math.prod(shape) * dtype.itemsize
    if len(value) != size and value[: len(MAGIC)] == MAGIC:
        return _fitted(dtype, shape, array_of(value), exact=True)
    if len(value) != size:
        raise FormatError(f"array: {dtype} {shape} must have {size} bytes; found {len(value)}")
    return np.ndarray(shape, dtype.newbyteorder("<"), value)


def rows_from(dtype: np.dtype[Any], sides: tuple[int, ...], value: Any) -> NDArray[Any]:
    """The array of a record that has its own number of rows, each of the shape `sides`, as `array_from` makes it.

    Raises:
        FormatError: it is not of this dtype, or its rows are not of this shape.
    """
    exact = isinstance(value, _BYTES)
    if exact and value[: len(MAGIC)] != MAGIC:
        each = math.prod(sides) * dtype.itemsize
        if len(value) % each:
            raise FormatError(f"array: rows of {dtype} {sides} must have {each} bytes each; found {len(value)} bytes")
        return array_from(dtype, (len(value) // each, *sides), value)
    array = array_of(value) if exact else _plain(value)
    if not array.size:
        array = array.reshape(0, *sides)
    if array.ndim != len(sides) + 1:
        raise FormatError(f"array: shape must be ({', '.join(map(str, ('rows', *sides)))}); found {array.shape}")
    return _fitted(dtype, (len(array), *sides), array, exact=exact)


def _plain(value: Any) -> NDArray[Any]:
    """An array of numbers, of an array or of lists in lists."""
    if not isinstance(value, np.ndarray | list):
        raise FormatError(f"array: must be numbers in a row, as the first record's were; found {type(value).__name__}")
    try:
        array = np.asarray(value)
    except ValueError as error:  # rows of different lengths
        raise FormatError(f"array: must be rows of one length; {error}") from None
    if array.dtype.kind not in _KINDS:
        raise FormatError(f"array: must be numbers alone; found {array.dtype}")
    return array


def _fitted(wanted: np.dtype[Any], shape: tuple[int, ...], array: NDArray[Any], *, exact: bool = False) -> NDArray[Any]:
    """The array, where that dtype can take it with nothing lost but digits of a fraction."""
    dtype = array.dtype.newbyteorder("=")
    if array.shape != shape:
        raise FormatError(f"array: shape must be {shape}; found {array.shape}")
    if dtype == wanted or not array.size:
        return array
    if exact or _KINDS.index(dtype.kind.replace("u", "i")) > _KINDS.index(wanted.kind):
        raise FormatError(f"array: must be {wanted}; found {dtype}")
    if wanted.kind in "iu" and dtype.kind in "iu":
        bounds = np.iinfo(wanted)
        least, most = int(array.min()), int(array.max())
        if least < bounds.min or most > bounds.max:
            raise FormatError(f"array: must be {wanted}; found {least if least < bounds.min else most}")
        return array
    try:
        with np.errstate(over="raise", invalid="ignore"):
            return array.astype(wanted)
    except FloatingPointError:
        raise FormatError(f"array: must be {wanted}; found numbers too large for it") from None


# Rows of which each record has its own number: those of a batch padded and counted, or end to end.


class Counted(NamedTuple):
    """Rows of a batch in one array.

    rows   (n, most, ...), filled with 0 after those of a record: float32 of boxes and points
    count  int64 (n,): how many rows each record has
    """

    rows: Any
    count: Any


class Jagged(NamedTuple):
    """Rows of a batch end to end, of which a loader makes a nested tensor.

    rows   (all, ...)
    count  int64 (n,): how many rows each record has
    """

    rows: Any
    count: Any

    def split(self) -> list[NDArray[Any]]:
        """The rows of each record: views."""
        return np.split(self.rows, np.cumsum(self.count))[: len(self.count)]

    def padded(self, most: int) -> Counted:
        """At most so many rows a record, as one array."""
        out = np.zeros((len(self.count), most, *self.rows.shape[1:]), self.rows.dtype)
        nth = np.arange(len(self.rows)) - np.repeat(np.cumsum(self.count) - self.count, self.count)
        out[np.repeat(np.arange(len(self.count)), self.count), nth] = self.rows
        return Counted(out, self.count)


def end_to_end(values: Sequence[Any], dtype: np.dtype[Any], sides: tuple[int, ...]) -> Jagged:
    """Arrays of records, or their bytes, of that dtype, whose rows have the shape `sides`: each is copied once."""
    parts: list[Any] = values.views() if isinstance(values, Pieces) else [_as_bytes(value, dtype) for value in values]
    rows = np.frombuffer(bytearray().join(parts), dtype).reshape(-1, *sides)
    return Jagged(rows, np.array([part.nbytes for part in parts], np.int64) // (math.prod(sides) * dtype.itemsize))


def _as_bytes(value: Any, dtype: np.dtype[Any]) -> Any:
    """What has a record's bytes."""
    return np.ascontiguousarray(value, dtype) if isinstance(value, np.ndarray) else memoryview(value)
