"""Pieces: the bytes of many rows, as arrays that say where each lies; a view is made when it is asked for.

The law: to its readers it is a sequence of views, None where a row has none. What is asked of all rows at once (which
are missing, whether they have one size, their bytes side by side) costs a few calls, and no Python per row where the
library in C is there.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Self, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from dali_feed.native import library as native
from dali_feed.records.extents import Int64s
from dali_feed.records.slabs import Lease

MOST_DIGITS = 18  # of a number that int64 holds, whichever they are

_SMALL = 4096  # bytes of a row, on average, up to which rows are faster copied together than one after the other
_FEW = 8  # rows of one memory, on average, from which it is worth a call of NumPy's


class Pieces(Sequence[memoryview | None]):
    """Rows of bytes: row k is `size[k]` bytes from byte `at[k]` of `memories[of[k]]`. Memory is shared, never copied.

    memories  contiguous bytes
    of        int64 (n,): which of them a row lies in; -1 where it has none
    at, size  int64 (n,)
    lent      whether memories stay as they are for as long as there is a view of them (`Lease.dense`)
    even      bytes of each row, where all lie side by side in one memory and that is known; else 0
    """

    __slots__ = ("_looked_up", "at", "even", "lent", "memories", "of", "size")

    def __init__(
        self, memories: list[memoryview], of: Int64s, at: Int64s, size: Int64s, *, lent: bool = False, even: int = 0
    ) -> None:
        self.memories, self.of, self.at, self.size, self.lent, self.even = memories, of, at, size, lent, even
        self._looked_up = _LookedUp()

    @classmethod
    def none(cls, rows: int) -> Pieces:
        """Rows that have nothing yet."""
        return cls([], np.full(rows, -1, np.int64), np.zeros(rows, np.int64), np.zeros(rows, np.int64))

    @classmethod
    def joined(cls, parts: Sequence[Pieces]) -> Pieces:
        """Parts end to end."""
        begins: dict[int, int] = {}  # of each list of memories, in all of them
        memories, known = list[memoryview](), list[tuple[_LookedUp, list[memoryview]]]()
        for part in parts:
            if id(part.memories) not in begins:
                begins[id(part.memories)] = len(memories)
                memories += part.memories
                known.append((part._looked_up, part.memories))
        shifts = [begins[id(part.memories)] for part in parts]
        of = [np.where(part.of < 0, -1, part.of + shift) for part, shift in zip(parts, shifts, strict=True)]
        at, size = ([getattr(part, name) for part in parts] for name in ("at", "size"))
        lent = all(part.lent for part in parts)
        whole = (np.concatenate(each) if each else np.zeros(0, np.int64) for each in (of, at, size))
        joined = cls(memories, *whole, lent=lent)
        joined._looked_up = _LookedUp(known)
        return joined

    def __len__(self) -> int:
        return len(self.of)

    def __iter__(self) -> Iterator[memoryview | None]:
        memories, ends = self.memories, (self.at + self.size).tolist()
        for of, at, end in zip(self.of.tolist(), self.at.tolist(), ends, strict=True):
            yield memories[of][at:end] if of >= 0 else None

    def views(self) -> list[memoryview | None]:
        """All rows; cheaper than one after the other where neighbours lie in one memory."""
        begins = [0, *(np.flatnonzero(self.of[1:] != self.of[:-1]) + 1).tolist()]
        if len(begins) * _FEW > len(self):
            return list(self)
        views: list[memoryview | None] = []
        for a, b in itertools.pairwise([*begins, len(self)]):
            of, at = int(self.of[a]), self.at[a:b]
            if of < 0:
                views += [None] * (b - a)
            else:
                memory, ends = self.memories[of], at + self.size[a:b]
                views += [memory[first:end] for first, end in zip(at.tolist(), ends.tolist(), strict=True)]
        return views

    @overload
    def __getitem__(self, rows: int) -> memoryview | None: ...

    @overload
    def __getitem__(self, rows: slice | NDArray[Any]) -> Pieces: ...

    def __getitem__(self, rows: int | slice | NDArray[Any]) -> memoryview | Pieces | None:
        if isinstance(rows, slice):
            some = self._of(self.of[rows], self.at[rows], self.size[rows])
            some.even = self.even if rows.step in (None, 1) else 0
            return some
        if isinstance(rows, np.ndarray):
            run, whole = _run(rows, len(self)), (self.of, self.at, self.size)
            return self._of(*(each[rows] if run is None else each[run].copy() for each in whole))
        of, at = int(self.of[rows]), int(self.at[rows])
        return self.memories[of][at : at + int(self.size[rows])] if of >= 0 else None

    def __setitem__(self, rows: int | slice, values: memoryview | Pieces | None) -> None:
        """Other rows, or one row's view, in the place of some: their memories are added to those that there are."""
        memories = values.memories if isinstance(values, Pieces) else [] if values is None else [values]
        known = {id(memory): k for k, memory in enumerate(self.memories)}
        self.memories = [*self.memories, *(memory for memory in memories if id(memory) not in known)]
        self._looked_up, self.even = _LookedUp(), 0
        self.lent = self.lent and isinstance(values, Pieces) and values.lent
        if isinstance(values, Pieces):
            fresh = iter(range(len(known), len(self.memories)))
            become = [*(known[id(m)] if id(m) in known else next(fresh) for m in memories), -1]
            self.of[rows] = np.array(become, np.int64)[values.of]
            self.at[rows], self.size[rows] = values.at, values.size
        else:
            self.of[rows] = -1 if values is None else len(self.memories) - 1
            self.at[rows], self.size[rows] = 0, 0 if values is None else len(values)

    def copy(self) -> Pieces:
        """The same rows, whose places can be taken by others."""
        return self._of(self.of.copy(), self.at.copy(), self.size.copy())

    def _of(self, of: Int64s, at: Int64s, size: Int64s) -> Pieces:
        """Other rows of the same memories, which are looked up once for all of them."""
        other = Pieces(self.memories, of, at, size, lent=self.lent)
        other._looked_up = self._looked_up
        return other

    @property
    def missing(self) -> NDArray[np.bool_]:
        """Which rows have none, bool (n,)."""
        return self.of < 0

    def as_they_lie(self, size: int) -> NDArray[np.uint8] | None:
        """The bytes of all rows, each of `size` bytes, uint8 (n, size): no copy, and it may be kept and written to.

        None where they do not lie side by side in lent memory.
        """
        if not self.lent or not len(self) or self.even != size:
            return None
        first = int(self.at[0])
        whole = np.frombuffer(self.memories[0], np.uint8)[first : first + len(self) * size]
        return whole.reshape(len(self), size)

    def together(self, size: int, out: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
        """The bytes of all rows, each of `size` bytes and none missing, uint8 (n, size): one copy of them.

        out  uint8 (n * size,) that they are copied into, or None: memory of their own

        Raises ValueError where a row is missing, or leaves its memory.
        """
        out = np.empty(len(self) * size, np.uint8) if out is None else out
        return self._end_to_end(np.full(len(self), size), out).reshape(len(self), size)

    def copied(self) -> Pieces:
        """The same rows, none missing, end to end in one memory of their own, which stays as it is.

        Raises ValueError where a row is missing, or leaves its memory.
        """
        ends = np.cumsum(self.size)
        memory = self._end_to_end(self.size, np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)).data
        return Pieces([memory], np.zeros(len(self), np.int64), ends - self.size, self.size, lent=True)

    def read_only(self) -> Pieces:
        """The same rows, of which no view can be written to."""
        memories = [memory.toreadonly() for memory in self.memories]
        return Pieces(memories, self.of, self.at, self.size, lent=self.lent)

    def as_bytes(self) -> list[bytes]:
        """Bytes of each row, none missing."""
        ends = np.cumsum(self.size).tolist()
        if not ends or ends[-1] > _SMALL * len(self):  # each is copied by itself, and once
            return [b"" if view is None else bytes(view) for view in self.views()]
        whole, size = self._end_to_end(self.size, np.empty(ends[-1], np.uint8)), int(self.size[0])
        if size and (self.size == size).all():
            alike: list[bytes] = whole.view(f"V{size}").tolist()
            return alike
        joined = whole.tobytes()
        return [joined[begin:end] for begin, end in itertools.pairwise([0, *ends])]

    def _end_to_end(self, size: Int64s, out: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """`out`, which so many bytes of each row are copied into."""
        if native.together(self._looked_up.of(self.memories), self.of, self.at, size, out):
            return out
        raw, memories, begin = out.data, self.memories, 0
        for of, at, count in zip(self.of.tolist(), self.at.tolist(), size.tolist(), strict=True):
            raw[begin : begin + count] = memories[of][at : at + count]
            begin += count
        return out

    def padded(self, width: int) -> NDArray[np.uint8]:
        """The first `width` bytes of each row, 0 behind the end of a shorter one: uint8 (n, width).

        ValueError where a row leaves its memory.
        """
        there = np.flatnonzero(self.of >= 0)
        size, rows = np.zeros(len(self), np.int64), self[there]
        size[there] = rows.size.clip(0, width)
        out = np.zeros((len(self), width), np.uint8)
        out[np.arange(width) < size[:, None]] = rows._end_to_end(size[there], np.empty(int(size.sum()), np.uint8))
        return out

    def decimals(self) -> Int64s | None:
        """The numbers that the rows are in decimal digits, 1 to 18 of them each; None where one is anything else."""
        size = self.size
        if not ((self.of >= 0) & (size > 0) & (size <= MOST_DIGITS)).all():
            return None
        numbers = np.zeros(len(self), np.int64)
        if (done := native.decimals(self._looked_up.of(self.memories), self.of, self.at, size, numbers)) is not None:
            return numbers if done else None
        for row, view in enumerate(self):
            digits = bytes(view or b"")
            if not digits.isdigit():
                return None
            numbers[row] = int(digits)
        return numbers


def _run(rows: NDArray[Any], count: int) -> slice | None:
    """Rows of so many, as a slice where each follows the one before, as in a window that is read in order.

    A copy of them costs less then.
    """
    if not len(rows) or rows.dtype == np.bool_ or not 0 <= rows[0] <= rows[-1] == rows[0] + len(rows) - 1 < count:
        return None
    return slice(int(rows[0]), int(rows[-1]) + 1) if (rows[1:] - rows[:-1] == 1).all() else None


class _LookedUp:
    """What `native` needs to know of memories, found when it is first asked for.

    parts  of memories that are others' end to end: those, and who knows them
    """

    __slots__ = ("_last", "_parts")

    def __init__(self, parts: Sequence[tuple[_LookedUp, list[memoryview]]] = ()) -> None:
        self._last: tuple[list[memoryview], native.Memories] | None = None
        self._parts = parts

    def of(self, memories: list[memoryview]) -> native.Memories:
        """That of these, which are those of the last time or others."""
        last = self._last
        if last is None or last[0] is not memories or len(last[1]) != len(memories):
            parts, self._parts = [known.of(its) for known, its in self._parts], ()
            if not parts or sum(map(len, parts)) != len(memories):
                parts = [native.Memories.of(memories)]
            self._last = last = memories, native.Memories.joined(parts)
        return last[1]


# ArrayPieces: rows of numbers of one dtype that lie in memory that they share; an array is made when it is asked for.


class ArrayPieces(Sequence[NDArray[Any] | None]):
    """Arrays that are views of `pieces`, None where a row has none; what is asked of all at once is asked of `pieces`.

    pieces  the bytes of each row, little-endian, in C order
    dtype   of all of them
    shape   of all of them; None: each is flat, as long as its bytes
    """

    __slots__ = ("dtype", "pieces", "shape")

    def __init__(self, pieces: Pieces, dtype: np.dtype[Any], shape: tuple[int, ...] | None = None) -> None:
        self.pieces, self.dtype, self.shape = pieces, dtype, shape

    def __len__(self) -> int:
        return len(self.pieces)

    def __iter__(self) -> Iterator[NDArray[Any] | None]:
        return map(self._array, self.pieces)

    @overload
    def __getitem__(self, rows: int) -> NDArray[Any] | None: ...

    @overload
    def __getitem__(self, rows: slice | NDArray[Any]) -> ArrayPieces: ...

    def __getitem__(self, rows: int | slice | NDArray[Any]) -> NDArray[Any] | ArrayPieces | None:
        if isinstance(rows, slice | np.ndarray):
            return ArrayPieces(self.pieces[rows], self.dtype, self.shape)
        return self._array(self.pieces[rows])

    def are(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
        """Whether bytes of the right number are an array of that dtype and shape."""
        return self.dtype == dtype and (len(shape) == 1 if self.shape is None else self.shape == shape)

    def are_rows(self, dtype: np.dtype[Any], sides: tuple[int, ...]) -> bool:
        """Whether bytes of the right number are rows of that shape, any number of them."""
        return self.dtype == dtype and (not sides if self.shape is None else self.shape[1:] == sides)

    def _array(self, view: memoryview | None) -> NDArray[Any] | None:
        if view is None:
            return None
        flat = np.frombuffer(view, self.dtype)
        return flat if self.shape is None else flat.reshape(self.shape)


# Pieces in the making: rows whose bytes are copied into a lease one after the other.
#
# The law: nothing is made per row that Python's garbage collector looks at. A view is, and a million views that wait
# for their batches cost it a microsecond each, over and over; numbers cost it nothing.


AT_ONCE = 1 << 20  # bytes that are asked of a lease for many rows: what is left of the last of them is lost


class Filling:
    """Rows that have nothing yet; each may be given its bytes, in any order."""

    def __init__(self, rows: int, lease: Lease) -> None:
        self._lease, self._rows = lease, rows
        self._of, self._at, self._size = [-1] * rows, [0] * rows, [0] * rows
        self._memories: list[memoryview] = []
        self._memory, self._number, self._free = memoryview(b""), -1, 1  # the one in use, and its first free byte

    def __bool__(self) -> bool:
        """Whether any row has been given its bytes."""
        return bool(self._memories)

    def copy(self, row: int, data: bytes | bytearray | memoryview) -> None:
        """A row's bytes are these: they are copied."""
        size, first = len(data), self._free
        if first + size > len(self._memory):
            most = min(AT_ONCE, self._lease.slab_bytes, size * self._rows)
            self._memory, self._number, first = self._lease.room(max(size, most)), len(self._memories), 0
            self._memories.append(self._memory)
        self._free = stop = first + size
        self._memory[first:stop] = data
        self._of[row], self._at[row], self._size[row] = self._number, first, size

    def keep(self, row: int, view: memoryview | None) -> None:
        """A row's bytes are these, which lie in the lease already; None: it has none."""
        if view is not None:
            self._of[row], self._at[row], self._size[row] = len(self._memories), 0, len(view)
            self._memories.append(view)

    def pieces(self) -> Pieces:
        """All rows."""
        of, at, size = (np.array(each, np.int64) for each in (self._of, self._at, self._size))
        return Pieces(self._memories, of, at, size)


# Values of a block, one per row: taken, joined and put without looking at each where they need not be.
#
# They are `Pieces` (bytes), `ArrayPieces` (arrays over such), an array (numbers), or a list (anything); a class of a
# column's own may be one more (`OwnValues`, such as `dali_feed.columns.image.Images`).


Values: TypeAlias = Pieces | ArrayPieces | NDArray[Any] | list[Any]
"""One value per row. `Pieces`: bytes, none where `of` < 0. `ArrayPieces`: arrays over such. NDArray: numbers, none
missing. list: anything, None where a row has none."""


class OwnValues(Sequence[Any]):
    """Values of a class of their own: `values[rows]` of a slice or of int64 (n,) is one too, and can be set to one."""

    @classmethod
    @abstractmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Parts end to end."""

    @abstractmethod
    def room(self, rows: int) -> Self:
        """So many rows of this kind that have nothing yet."""

    @abstractmethod
    def __setitem__(self, rows: Any, values: Any) -> None:
        """Those rows become the values."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes that they take."""


def take(values: Any, rows: slice | Int64s) -> Any:
    """Those rows, of the same kind."""
    if isinstance(values, np.ndarray | Pieces | ArrayPieces | OwnValues) or isinstance(rows, slice):
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
        return values.even * len(values) or int(values.size[values.of >= 0].sum())
    if isinstance(values, ArrayPieces):
        return nbytes(values.pieces)
    if isinstance(values, np.ndarray | OwnValues):
        return values.nbytes
    return sum(
        each.nbytes if isinstance(each, memoryview | np.ndarray) else len(each) if isinstance(each, bytes | str) else 0
        for each in values
    )
