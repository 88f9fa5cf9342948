"""Arrays of numbers of one dtype and shape: raw little-endian bytes, `.npy`, or numbers that a format found."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dali_feed.columns.array_layout import ArrayLayout, array_from, layout_of
from dali_feed.columns.column import Faults, Kind, check_member, missing
from dali_feed.errors import ConfigError, FormatError
from dali_feed.formats.npy import MAGIC
from dali_feed.records.pieces import Arrays, Pieces

__all__ = ["LARGE", "Array", "Room"]


LARGE, LARGE_BATCH = 1 << 13, 1 << 18  # bytes of a record and of a batch, of which a second copy costs more than calls

Room = Callable[[int], NDArray[np.uint8]]  # so many bytes

_BYTES = (memoryview, bytes)
_BYTE_TYPES = frozenset(_BYTES)


@dataclass(frozen=True)
class Array(Kind):
    """Numbers of one dtype and shape. Gives (n, *shape) on the device.

    member  the member that it is made from; for "a;b" the first of these that a record has
    dtype  of NumPy's: integers, floats or bool. None: the first record's, of a `.npy` file or an array
    shape  of one record's array. None: that of the first record, which all others must have too; for raw bytes it is
           flat
    """

    member: str
    dtype: str | None = None
    shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_member("Array", self.member)
        if self.dtype is not None:
            try:
                dtype = np.dtype(self.dtype)
            except TypeError:
                dtype = np.dtype("O")
            if dtype.kind not in "biuf" or dtype.byteorder == ">":
                msg = (
                    f"Array({self.member!r}): dtype must be a little-endian number type of NumPy; found {self.dtype!r}"
                )
                raise ConfigError(msg)
        if self.shape is not None and not all(isinstance(n, int) and n > 0 for n in self.shape):
            msg = f"Array({self.member!r}): shape must be a tuple of positive ints; found {self.shape!r}"
            raise ConfigError(msg)

    @property
    def open(self) -> bool:
        """Where dtype or shape was not given."""
        return self.dtype is None or self.shape is None

    def settled(self, first: Any) -> Self:
        """With the dtype and shape of the first record's, where they were not given."""
        if first is None:
            rule = "dtype and shape are taken from the first records, and none of them has this member"
            msg = f"Array({self.member!r}): {rule}; give dtype= and shape="
            raise ConfigError(msg)
        try:
            layout = layout_of(first, self.dtype, self.shape)
        except FormatError as error:
            rule = "dtype and shape are taken from the first record, which cannot be read"
            msg = f"Array({self.member!r}): {rule}: {error}; give dtype= and shape="
            raise ConfigError(msg) from error
        return replace(self, dtype=layout.dtype.name, shape=layout.shape)

    def read(self, values: Any, faults: Faults) -> Sequence[Any]:
        """Raw bytes as they are, and arrays of all others: views, where the source's are."""
        missing(values.pieces if isinstance(values, Arrays) else values, faults)
        dtype, shape = np.dtype(self.dtype), self.shape or ()
        size = math.prod(shape) * dtype.itemsize
        if isinstance(values, Arrays) and values.are(dtype, shape):
            values = values.pieces
        if isinstance(values, Pieces) and ((values.size == size) | values.missing).all():
            return values
        out = list(values)
        if set(map(type, out)) <= _BYTE_TYPES and set(map(len, out)) == {size}:
            return out  # all as they should be, by two calls
        for row, value in enumerate(out):
            if row in faults or (value.__class__ in _BYTES and len(value) == size):
                continue
            how = "numbers" if value.__class__ not in _BYTES else "npy" if value[: len(MAGIC)] == MAGIC else "raw"
            try:
                out[row] = array_from(ArrayLayout(dtype, shape, how), value)  # type: ignore[arg-type]
            except FormatError as error:
                faults[row] = str(error)
        return out

    def batch(self, values: Sequence[Any]) -> NDArray[Any]:
        """One array, in memory of its own: each record's bytes are copied once."""
        if isinstance(values, Pieces):
            return self._shaped(values.together(self.size(1)), len(values))
        if set(map(type, values)) <= _BYTE_TYPES:
            return np.frombuffer(bytearray().join(values), self.dtype).reshape(len(values), *(self.shape or ()))
        return self._laid(values, np.empty(self.size(len(values)), np.uint8))

    def size(self, count: int) -> int:
        """Bytes of so many records' arrays."""
        return count * math.prod(self.shape or ()) * np.dtype(self.dtype).itemsize

    def laid(self, values: Sequence[Any], room: Room) -> NDArray[Any]:
        """The same; a large one in memory of `room`: from there it goes to a GPU without another copy."""
        size, each = self.size(len(values)), self.size(1)
        if size < LARGE_BATCH:
            return self.batch(values)
        if isinstance(values, Pieces):
            return self._shaped(values.together(each, room(size)), len(values))
        return self._laid(values, room(size)) if each >= LARGE else self.batch(values)

    def _shaped(self, rows: NDArray[np.uint8], count: int) -> NDArray[Any]:
        return rows.reshape(-1).view(np.dtype(self.dtype)).reshape(count, *(self.shape or ()))

    def _laid(self, values: Sequence[Any], memory: NDArray[np.uint8]) -> NDArray[Any]:
        each, raw = self.size(1), memory.data
        out = memory.view(np.dtype(self.dtype)).reshape(len(values), *(self.shape or ()))
        for row, value in enumerate(values):
            if value.__class__ in _BYTES:
                raw[row * each : (row + 1) * each] = memoryview(value).cast("B")
            else:
                out[row] = value
        return out
