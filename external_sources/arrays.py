"""Arrays whose rows are samples: `.npy` files, raw files, and NumPy's arrays in memory."""

from __future__ import annotations

import hashlib
import math
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from dali_feed.checks import dtype_of, integers_of
from dali_feed.columns import Array, Number
from dali_feed.errors import (
    ConfigError,
    DataLostError,
    FormatError,
    SourceChangedError,
    SourceEmptyError,
    SourceError,
    SourceNotFoundError,
)
from dali_feed.external_sources.file_source import FileSource, named_files
from dali_feed.external_sources.ranges import EvenSpans, FileTable
from dali_feed.formats.npy import MAGIC, header_of
from dali_feed.records.extents import MAX_POSITION
from dali_feed.records.pieces import ArrayPieces, Pieces
from dali_feed.records.source import (
    EXTENT_BYTES,
    LABEL,
    Block,
    Int64s,
    Lease,
    Member,
    Reader,
    RowReader,
    alternatives,
    sampled,
    unpack_ids,
)
from dali_feed.storage.paths import matches
from dali_feed.storage.store import LOCAL, Stamp, read_at

# Where the rows of array files lie: `.npy` files by their header, raw files by what they are told to hold.
#
# The law: a file holds the rows that it promises, whole, or it is refused before anything is read of it. Nothing in a
# file is evaluated; objects are refused.


_HEAD = 4096 + 12  # bytes of the longest header that is taken


@dataclass(frozen=True, slots=True)
class RowForm:
    """What a row is: its dtype, little-endian, and its shape."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes of a row."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype.name} {self.shape}"

    @property
    def pixels(self) -> bytes | None:
        """The header of PPM or PGM that makes an image of a row's bytes; None where it is no image."""
        color = len(self.shape) == 3 and self.shape[2] in {1, 3}
        if self.dtype != np.uint8 or not (color or len(self.shape) == 2):
            return None
        height, width = self.shape[:2]
        return b"P%d\n%d %d\n255\n" % (6 if self.shape[2:] == (3,) else 5, width, height)


_NO_FILE = Stamp(0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class ArrayPart:
    """One array: `rows` rows of a file, of which the first begins at byte `at`, or in memory.

    path, stamp  of the file, or of the one that `array` is a map of; "" and nothing where there is none
    array        in memory; None: rows are read of the file
    """

    form: RowForm
    rows: int
    path: str = ""
    stamp: Stamp = _NO_FILE
    at: int = 0
    array: NDArray[Any] | None = None
    digest: str = ""  # a fingerprint takes some of the rows instead

    def __len__(self) -> int:
        return self.rows

    def checked(self, title: str) -> Self:
        """The same. ConfigError, which `title` begins, for rows that no memory holds, or more than ids can name."""
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if self.form.size > memory:
            what = f"found rows of {self.form}, {self.form.size} bytes each, and {memory} bytes of memory"
            msg = f"{title}: a row must fit into memory; {what}"
            raise ConfigError(msg)
        if self.rows > MAX_POSITION + 1:
            rule = f"an array may have at most {MAX_POSITION + 1} rows (2**40); found {self.rows}"
            msg = f"{title}: {rule}; give several arrays, or longer rows"
            raise ConfigError(msg)
        return self

    def check_map(self) -> None:
        """SourceChangedError where the file that an array is a map of is not what it was."""
        if self.array is None or not self.path:
            return
        try:
            change = self.stamp.change(Stamp.of(os.stat(self.path)))
        except OSError as error:
            change = str(error.strerror)
        if change:
            msg = f"{self.path}: a mapped file must stay as it is while it is read; {change}; map it again"
            raise SourceChangedError(msg)

    def bytes_at(self, row: int, size: int) -> bytes:
        """So many bytes from the beginning of a row on. DataLostError where its file ends before."""
        if self.array is not None:
            rows = self.array[row : row + 1 + (size - 1) // self.form.size]
            return np.ascontiguousarray(rows).reshape(-1).view(np.uint8)[:size].tobytes()
        with closing(LOCAL.open(self.path)) as file:
            data = read_at(file, size, self.at + row * self.form.size)
        if len(data) < size:
            where = f"{self.path}#{row + len(data) // self.form.size}"
            msg = f"{where}: the file ended inside this row; fetch the file again"
            raise DataLostError(msg)
        return data


def given_form(dtype: DTypeLike | None, shape: Sequence[int] | int | None) -> tuple[np.dtype[Any] | None, Any]:
    """What a user says of rows. ConfigError for what cannot be."""
    wanted = None if dtype is None else dtype_of(dtype)
    if wanted is not None:
        _check_dtype(wanted, "dtype", repr(dtype), ConfigError)
    if shape is None:
        return wanted, None
    sides = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    if not all(isinstance(side, int | np.integer) and side > 0 for side in sides):
        msg = f"Arrays: shape must be that of one row, positive ints; found {shape!r}"
        raise ConfigError(msg)
    return wanted, tuple(int(side) for side in sides)


def array_in_memory(array: NDArray[Any], title: str) -> ArrayPart:
    """An array, and of a map the file that it shows. ConfigError for one that has no rows, or rows of other things."""
    _check_dtype(array.dtype, title, str(array.dtype), ConfigError)
    if isinstance(array, np.ma.MaskedArray):
        msg = f"{title}: an array must have a number in each place; found a masked array; fill it: array.filled(0)"
        raise ConfigError(msg)
    if not array.ndim or 0 in array.shape[1:]:
        msg = f"Arrays: an array must have at least one row, and numbers in it; found the shape {array.shape}"
        raise ConfigError(msg)
    part = ArrayPart(RowForm(array.dtype, tuple(array.shape[1:])), len(array), array=array).checked(title)
    path = getattr(array, "filename", None)
    if not isinstance(array, np.memmap) or path is None:
        return part
    try:
        stamp = Stamp.of(os.stat(path))
    except OSError as error:
        msg = f"{path}: the file of a map must be there; found: {error.strerror}; map it again, or give a copy"
        raise SourceNotFoundError(msg) from error
    return replace(part, path=os.fspath(path), stamp=stamp, array=np.asarray(array))


def array_file(path: str, dtype: np.dtype[Any] | None, shape: tuple[int, ...] | None) -> ArrayPart:
    """A file by its header, or of raw rows of `dtype` and `shape`: ConfigError where those do not fit it."""
    with closing(LOCAL.open(path)) as file:
        try:
            stamp, head = file.stamp(), read_at(file, _HEAD, 0)
        except OSError as error:
            msg = f"{path}: an array file must be readable; found: {error.strerror} (errno {error.errno})"
            raise SourceError(msg) from error
    if head[: len(MAGIC)] == MAGIC:
        return _npy(path, stamp, head, dtype, shape)
    if path.endswith(".npy"):
        msg = f"{path}: a .npy file must begin with {MAGIC!r}; found {head[:8]!r} in {stamp.size} bytes; write it again"
        raise DataLostError(msg)
    if dtype is None or shape is None:
        msg = (
            f"{path}: where a file is not a .npy file, the dtype and shape of a row are needed; give dtype= and shape="
        )
        raise ConfigError(msg)
    form = RowForm(dtype, shape)
    rows, rest = divmod(stamp.size, form.size)
    part = ArrayPart(form, rows, path, stamp).checked(path)
    if rest:
        msg = (
            f"{path}#{rows}: a file must hold whole rows of {form}, {form.size} bytes each; found only {rest} "
            "bytes of this row; fetch the file again, or correct dtype= and shape="
        )
        raise DataLostError(msg)
    return part


def _npy(path: str, stamp: Stamp, head: bytes, dtype: np.dtype[Any] | None, shape: tuple[int, ...] | None) -> ArrayPart:
    try:
        start, own, sides, order = header_of(head)
    except FormatError as error:
        msg = f"{path}: {error}; save an array of numbers: numpy.save(path, array)"
        raise SourceError(msg) from error
    _check_dtype(own, path, str(own), SourceError)
    if order == "F" and len(sides) > 1:
        msg = (
            f"{path}: rows must be stored one after the other (C order); found Fortran order; save "
            "numpy.ascontiguousarray(array)"
        )
        raise SourceError(msg)
    if not sides or 0 in sides[1:]:
        msg = f"{path}: an array must have at least one row, and numbers in it; found the shape {sides}"
        raise SourceError(msg)
    form = RowForm(own, sides[1:])
    part = ArrayPart(form, sides[0], path, stamp, start).checked(path)
    if (dtype or own) != own or (sides[1:] if shape is None else shape) != form.shape:
        wanted = f"{own if dtype is None else dtype} {form.shape if shape is None else shape}"
        msg = f"{path}: must hold rows of {wanted}, as dtype= and shape= say; found {form}; leave both out"
        raise ConfigError(msg)
    whole = (stamp.size - start) // form.size
    if whole < sides[0] or stamp.size != start + sides[0] * form.size:
        what = f"it ends at byte {stamp.size}" if whole < sides[0] else f"it has {stamp.size} bytes, which is more"
        msg = (
            f"{path}#{min(whole, sides[0])}: a file must hold the {sides[0]} rows of {form} that its header "
            f"says, {start + sides[0] * form.size} bytes in all; found that {what}; fetch or write it again"
        )
        raise DataLostError(msg)
    return part


def _check_dtype(dtype: np.dtype[Any], title: str, what: str, error: type[ConfigError | SourceError]) -> None:
    if dtype.kind not in "biuf" or dtype.itemsize > 8 or dtype.byteorder == ">":
        cure = "; convert them: array.astype('<f4')" if dtype.byteorder == ">" else ""
        msg = f"{title}: rows must hold little-endian numbers of NumPy, or bool; found {what}{cure}"
        raise error(msg)


# Rows of arrays, read into slabs or, where they lie in memory, given as they are.
#
# The law: a row's bytes are copied once on their way into a slab, by the kernel, and never where the array is in
# memory. Files are read and not mapped: of a file that is cut while it is read the kernel says so, where a map ends the
# process.


ROW, PIXELS = "row", "row@image"  # a row as numbers; as the bytes of an image


class _MemoryReader(RowReader):
    """Gives rows of arrays in memory: views, where they lie side by side."""

    def __init__(
        self, source: Arrays, parts: Sequence[ArrayPart], members: tuple[str, ...], stop: threading.Event | None
    ) -> None:
        super().__init__(source.kind, source.table().counts, stop)
        self._source, self._parts, self._members = source, parts, members

    def _fill(self, block: Block, partition: Int64s, position: Int64s) -> None:
        size, memories = self._parts[0].form.size, list[memoryview]()
        rows = Pieces([], partition, position * size, np.full(len(partition), size, np.int64))
        for number, part in enumerate(self._parts):
            here = partition == number
            if here.any():
                part.check_map()
            array: Any = part.array
            if array.flags.c_contiguous:
                memory = _bytes(array)
            elif here.any():
                memory = block.lease.room(int(here.sum()) * size)
                memory[:] = _bytes(np.ascontiguousarray(array[position[here]]))
                rows.at[here] = np.arange(here.sum()) * size
            else:
                memory = memoryview(b"")
            memories.append(memory)
        rows.memories = memories
        self._source.finish(block, [rows], self._members)


def encoded(rows: Pieces, form: RowForm, header: bytes, lease: Lease) -> Pieces:
    """The rows as images: `header`, of PPM or PGM, before the bytes of each."""
    stride = len(header) + form.size
    most = max(1, lease.slab_bytes // stride)
    memories = list[memoryview]()
    for k in range(0, len(rows), most):
        some = rows[k : k + most]
        memory = lease.room(len(some) * stride)
        pixels = np.frombuffer(memory, np.uint8).reshape(len(some), stride)
        pixels[:, : len(header)] = np.frombuffer(header, np.uint8)
        pixels[:, len(header) :] = some.together(form.size)
        memories.append(memory)
    nth = np.arange(len(rows), dtype=np.int64)
    return Pieces(memories, nth // most, nth % most * stride, np.full(len(rows), stride, np.int64))


def _bytes(array: NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")


SAMPLED_BYTES = 64 << 10  # of each row of which a fingerprint takes the contents
_Path = str | os.PathLike[str]


class Arrays(FileSource):
    """Rows of arrays, one array after the other. Row k of array p is position k of partition p.

    arrays  a pattern or path of files, or several; or a NumPy array, or several. Patterns are those of `ShardSet`. A
            `.npy` file says what it holds, any other file is raw rows, little-endian, without a header
    dtype   of raw files; of `.npy` files it is compared
    shape   of one row, as `dtype`; a number alone is a row of so many
    label   a number for each row, in the order of all rows: an array, or paths of `.npy` files; None for none

    Its members are `row` and, with labels, `label`. Without `columns=` a `DataLoader` gives tuples, (rows,) or
    (rows, labels), as it would of torch's TensorDataset. Rows of uint8 of the shape (height, width), or with a last
    side of 1 or 3, can be images too: `Image("row")`.


    Raises:
        ConfigError: an argument has a value that is not allowed, or a file is named twice.
        SourceNotFoundError: a pattern matches nothing, or a named file is not there.
    """

    kind = "Arrays"

    def __init__(
        self,
        arrays: _Path | NDArray[Any] | Sequence[_Path] | Sequence[NDArray[Any]],
        dtype: DTypeLike | None = None,
        shape: Sequence[int] | int | None = None,
        label: ArrayLike | _Path | Sequence[_Path] | None = None,
    ) -> None:
        self._dtype, self._shape = given_form(dtype, shape)
        many: Any = arrays
        one = isinstance(many, str | os.PathLike | np.ndarray) or not isinstance(many, Iterable)
        every: list[Any] = [many] if one else list(many)
        self._arrays: tuple[NDArray[Any], ...] = ()
        if every and all(isinstance(each, np.ndarray) for each in every):
            super().__init__(f"Arrays({len(every)} array{'s' * (len(every) > 1)})", (), LOCAL)
            self._names = ("array",) if len(every) == 1 else tuple(f"array-{k}" for k in range(len(every)))
            if dtype is not None or shape is not None:
                msg = "Arrays: dtype and shape are for files; an array has its own; leave both out"
                raise ConfigError(msg)
            self._arrays = tuple(every)
        elif every and all(isinstance(each, str | os.PathLike) for each in every):
            super().__init__(*_files_of(every), LOCAL)
        else:
            kinds = ", ".join(sorted({type(each).__name__ for each in every})) or "nothing"
            msg = f"Arrays: must be given paths, or NumPy arrays; found {kinds}; numpy.asarray() makes an array"
            raise ConfigError(msg)
        self._label = label
        self._parts: tuple[ArrayPart, ...] = ()
        self._labels: Int64s | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without what the files held: another process, perhaps on another machine, looks at its own."""
        return super().__getstate__() | {"_parts": (), "_labels": None}

    def __len__(self) -> int:
        return int(self.table().counts.sum())

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the rows."""
        return self._form.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Of all rows as one array."""
        return (len(self), *self._form.shape)

    @property
    def preset(self) -> Mapping[str, Any]:
        """`row`, and `label` where there are labels, as torch's TensorDataset would give them."""
        dtype, shape = self._form.dtype.name, self._form.shape
        row = Array(ROW, dtype, shape) if shape else Number(ROW, dtype)
        return {ROW: row} | ({} if self._label is None else {LABEL: Number(LABEL)})

    def members(self) -> tuple[Member, ...]:
        """`row`, and `label` where there are labels."""
        row = Member(ROW, 1.0, self._form.size)
        return (row,) if self._label is None else (row, Member(LABEL, 1.0, 0))

    def can_have(self, member: str) -> bool:
        """Whether it is one of these."""
        return member in (ROW, PIXELS) or (member == LABEL and self._label is not None)

    def image_of(self, member: str) -> str:
        """The row as the bytes of an image. ConfigError where rows are no images."""
        known = [each for each in alternatives(member) if self.can_have(each)]
        if not known or known[0] == PIXELS:
            return member
        if known[0] != ROW or self._form.pixels is None:
            rule = "an image is a row of uint8 of the shape (height, width), (height, width, 1) or (height, width, 3)"
            msg = f"member {member!r}: {rule}; found {self._form} in {self._title}; use Array('row')"
            raise ConfigError(msg)
        return PIXELS

    def reader(self, members: Sequence[str], stop: threading.Event | None = None) -> Reader:
        """A reader for one thread; see `dali_feed.records.source.Source`."""
        if self._paths:
            return super().reader(members, stop)
        self.check_members(members)
        return _MemoryReader(self, self._parts_of_table(), tuple(members), stop)

    def dense(self, members: Sequence[str]) -> bool:
        """Of rows of files, as numbers."""
        return bool(self._paths) and PIXELS not in members

    def index(self, path: str) -> ArrayPart:
        """See `array_file`."""
        return array_file(path, self._dtype, self._shape)

    def spans_of(self, indexes: Sequence[ArrayPart], members: tuple[str, ...]) -> EvenSpans:
        """Rows one behind the other; none is read where labels alone are asked for."""
        rows = (ROW,) if {ROW, PIXELS} & {*members} else ()
        return EvenSpans(rows, np.array([index.at for index in indexes], np.int64), self._form.size)

    def sizes_of(self, indexes: Sequence[Any]) -> tuple[int, int]:
        """A row's."""
        size = indexes[0].form.size
        return max(1, EXTENT_BYTES // size), size

    def finish(self, block: Block, read: list[Pieces], members: tuple[str, ...]) -> None:
        """Rows as arrays over what was read, as numbers or as images, and their labels."""
        form, values = self._form, dict[str, Any]()
        for name in members:
            if name == LABEL and self._labels is not None:
                partition, position = unpack_ids(block.ids)
                values[name] = self._labels[self.table().base[partition] + position]
            elif name == PIXELS:
                values[name] = encoded(read[0], form, form.pixels or b"", block.lease)
            elif form.shape:
                values[name] = ArrayPieces(read[0], form.dtype, form.shape)
            else:
                values[name] = read[0].together(form.size).view(form.dtype).reshape(-1)
        block.values = values

    @property
    def _form(self) -> RowForm:
        """Of all rows."""
        return self._parts_of_table()[0].form

    def _parts_of_table(self) -> tuple[ArrayPart, ...]:
        self.table()
        return self._parts

    def _indexed(self) -> list[Any]:
        if self._paths:
            return super()._indexed()
        return [array_in_memory(array, name) for array, name in zip(self._arrays, self._names, strict=True)]

    def _tabulated(self, indexes: Sequence[Any]) -> FileTable:
        form = indexes[0].form
        odd = next((k for k, each in enumerate(indexes) if each.form != form), None)
        if odd is not None:
            others = f"{indexes[odd].form} in {self._names[odd]}"
            msg = f"{self._title}: all rows must have one dtype and shape; found {form} in {self._names[0]}, {others}"
            raise (SourceError if self._paths else ConfigError)(msg)
        rows = sum(map(len, indexes))
        if not rows:
            msg = f"{self._title}: arrays must have rows; found none in {len(indexes)}"
            raise SourceEmptyError(msg)
        self._labels = None if self._label is None else _labels(self._label, rows, self._title)
        self._parts = tuple(indexes)
        return super()._tabulated(indexes)

    def _check(self, table: FileTable) -> None:
        if self._paths:
            super()._check(table)
        for part in self._parts:
            part.check_map()

    def _fingerprint(self, table: FileTable) -> str:
        """Of the names, what rows are, how many, the labels, and the contents of 64 rows."""
        form = self._parts[0].form
        digest = hashlib.sha256(f"{form}\0".encode())
        for name, count in zip(self._names, table.counts.tolist(), strict=True):
            digest.update(f"{name}\0{count}\n".encode(errors="surrogateescape"))
        spread = table.located(sampled(int(table.counts.sum())))
        for p, row in zip(*(each.tolist() for each in spread), strict=True):
            digest.update(self._parts[p].bytes_at(row, min(form.size, SAMPLED_BYTES)))
        digest.update(b"" if self._labels is None else self._labels.tobytes())
        return digest.hexdigest()


def _labels(label: Any, rows: int, title: str) -> Int64s:
    """A label for each row, int64. ConfigError where there are others."""
    named = isinstance(label, str | os.PathLike)
    if named or (isinstance(label, list | tuple) and label and isinstance(label[0], str | os.PathLike)):
        parts = [array_file(path, None, None) for path in _files_of([label] if named else label)[1]]
        rows_of = [np.frombuffer(part.bytes_at(0, len(part) * part.form.size), part.form.dtype) for part in parts]
        label = np.concatenate(rows_of)
    array = integers_of(f"{title}: label", label)
    if array.shape != (rows,) or array.dtype.kind not in "iub" or (array.dtype == np.uint64 and (array >> 63).any()):
        msg = f"{title}: label must be {rows} integers, one for each row; found {array.dtype} {array.shape}"
        raise ConfigError(msg)
    return array.astype(np.int64)


def _files_of(patterns: Sequence[_Path]) -> tuple[str, tuple[str, ...]]:
    """The title of a source of these files, and the files in order."""
    return named_files("Arrays", [os.fspath(pattern) for pattern in patterns], partial(matches, files="*.npy"))
