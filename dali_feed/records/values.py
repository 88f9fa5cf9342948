"""Values of a block, one per row: taken, joined and put without looking at each where they need not be.

They are `Pieces` (bytes), `ArrayPieces` (arrays over such), an array (numbers), or a list (anything); a class of a
column's own may be one more, where it has `taken`, `joined` and `room` itself (`dali_feed.columns.image.Images`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, Self, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dali_feed.records.extents import Int64s
from dali_feed.records.pieces import ArrayPieces, Pieces

Values: TypeAlias = Pieces | ArrayPieces | NDArray[Any] | list[Any]
"""One value per row. `Pieces`: bytes, none where `of` < 0. `ArrayPieces`: arrays over such. NDArray: numbers, none
missing. list: anything, None where a row has none."""


@runtime_checkable
class OwnValues(Protocol):
    """Values of a class of their own."""

    def __len__(self) -> int:
        """Rows."""
        ...

    def taken(self, rows: slice | Int64s) -> Self:
        """Those rows."""
        ...

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Parts end to end."""
        ...

    def room(self, rows: int) -> Self:
        """So many rows of this kind that have nothing yet."""
        ...

    def put(self, rows: slice | int | Int64s, values: Any) -> None:
        """Those rows become the values."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes that they take."""
        ...


def take(values: Any, rows: slice | Int64s) -> Any:
    """Those rows, of the same kind."""
    if isinstance(values, OwnValues):
        return values.taken(rows)
    if isinstance(values, np.ndarray | Pieces | ArrayPieces) or isinstance(rows, slice):
        return values[rows]
    return [values[row] for row in rows.tolist()]


def join(parts: Sequence[Any]) -> Any:
    """Values of one column end to end; a single part as it is. Parts of several kinds become a list."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    if isinstance(first, OwnValues):
        return type(first).joined(parts)
    if all(isinstance(part, Pieces) for part in parts):
        return Pieces.joined(parts)
    if all(isinstance(part, ArrayPieces) and (part.dtype, part.shape) == (first.dtype, first.shape) for part in parts):
        return ArrayPieces(Pieces.joined([part.pieces for part in parts]), first.dtype, first.shape)
    if all(isinstance(part, np.ndarray) and _alike(part, first) for part in parts):
        return np.concatenate(parts)
    return [value for part in parts for value in part]


def _alike(one: np.ndarray[Any, Any], other: Any) -> bool:
    """Whether both are arrays of one kind of number and one shape of rows."""
    return bool(one.dtype.kind == other.dtype.kind and one.shape[1:] == other.shape[1:])


def room(values: Any, rows: int) -> Any:
    """So many rows that such values go into, by `put`."""
    if isinstance(values, OwnValues):
        return values.room(rows)
    if isinstance(values, Pieces):
        return Pieces.none(rows)
    return np.zeros((rows, *values.shape[1:]), values.dtype) if isinstance(values, np.ndarray) else [None] * rows


def put(into: Any, rows: slice | Int64s, values: Any) -> Any:
    """Those rows of `into` become `values`; gives it, or a list in its place where it cannot take such values."""
    if isinstance(into, OwnValues):
        into.put(rows, values)
        return into
    if (isinstance(into, Pieces) and not isinstance(values, Pieces)) or (
        isinstance(into, np.ndarray) and not isinstance(values, np.ndarray)
    ):
        into = list(into)
    if isinstance(into, list) and not isinstance(rows, slice):
        for row, value in zip(rows.tolist(), values, strict=True):
            into[row] = value
    else:
        into[rows] = values
    return into


def nbytes(values: Any) -> int:
    """Bytes that the values take, as far as they are bytes, texts or arrays."""
    if isinstance(values, Pieces):
        return int(values.size[values.of >= 0].sum())
    if isinstance(values, ArrayPieces):
        return nbytes(values.pieces)
    if isinstance(values, np.ndarray | OwnValues):
        return values.nbytes
    return sum(
        each.nbytes if isinstance(each, memoryview | np.ndarray) else len(each) if isinstance(each, bytes | str) else 0
        for each in values
    )
