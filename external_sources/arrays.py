"""Arrays whose rows are samples: `.npy` files, raw files, and NumPy's arrays in memory."""

from __future__ import annotations

import hashlib
import math
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from dali_feed.errors import (
    ConfigError,
    DataLostError,
    FormatError,
    SourceChangedError,
    SourceEmptyError,
    SourceError,
)
from dali_feed.external_sources.file_source import named_files
from dali_feed.external_sources.ranges import FileReader, FileTable, check_file, runs_of
from dali_feed.external_sources.request import MemberReader, MemberSource, foremost
from dali_feed.formats.npy import MAGIC, header_of
from dali_feed.records.extents import MAX_POSITION
from dali_feed.records.pieces import Arrays, Pieces
from dali_feed.records.source import LABEL, Block, Int64s, Member, Reader, Slabs, Snapshot, Source
from dali_feed.storage.local import LOCAL
from dali_feed.storage.paths import matches, unique_names
from dali_feed.storage.store import Stamp, read_at, sizes_and_times

__all__ = ["ArrayShards", "array_file", "form_of", "told_form"]


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


@dataclass(frozen=True, slots=True)
class ArrayFile:
    """A file of `rows` rows, of which the first begins at byte `at`."""

    path: str
    stamp: Stamp
    at: int
    rows: int


def told_form(dtype: DTypeLike | None, shape: Sequence[int] | None) -> tuple[np.dtype[Any] | None, Any]:
    """What a user told of rows. ConfigError for what cannot be."""
    found: np.dtype[Any] | None = None
    if dtype is not None:
        try:
            found = np.dtype(dtype)
        except TypeError:
            found = np.dtype("O")
        _check_dtype(found, "dtype", repr(dtype), ConfigError)
    if shape is None:
        return found, None
    sides = (shape,) if isinstance(shape, int) else tuple(shape)
    if not all(isinstance(side, int | np.integer) and side > 0 for side in sides):
        msg = f"ArrayShards: shape must be that of one row, positive ints; found {shape!r}"
        raise ConfigError(msg)
    return found, tuple(int(side) for side in sides)


def form_of(array: NDArray[Any], told: str) -> RowForm:
    """Of the rows of an array in memory. ConfigError for one that has none, or rows that are no numbers."""
    _check_dtype(array.dtype, told, str(array.dtype), ConfigError)
    if not array.ndim or 0 in array.shape[1:]:
        msg = f"ArrayShards: an array must have at least one row, and numbers in it; found the shape {array.shape}"
        raise ConfigError(msg)
    return _checked(RowForm(array.dtype, tuple(array.shape[1:])), told)


def array_file(path: str, dtype: np.dtype[Any] | None, shape: tuple[int, ...] | None) -> tuple[ArrayFile, RowForm]:
    """A file, and what its rows are: a `.npy` file's own, or raw rows of `dtype` and `shape`.

    Raises:
        ConfigError: a raw file whose rows nobody told; a `.npy` file that holds others than were told; rows that are
            larger than this machine's memory, or too many.
        SourceNotFoundError, SourceDeniedError: it cannot be opened.
        SourceError: its dtype or its order cannot be taken.
        DataLostError: it ends inside a row, or before the last that its header promises.
    """
    file = LOCAL.open(path)
    try:
        stamp, head = file.stamp(), read_at(file, _HEAD, 0)
    except OSError as error:
        msg = f"{path}: an array file must be readable; found: {error.strerror} (errno {error.errno})"
        raise SourceError(msg) from error
    finally:
        file.close()
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
    form = _checked(RowForm(dtype, shape), path)
    rows, rest = divmod(stamp.size, form.size)
    if rest:
        msg = (
            f"{path}#{rows}: a file must hold whole rows of {form}, {form.size} bytes each; found only {rest} "
            "bytes of this row; fetch the file again, or correct dtype= and shape="
        )
        raise DataLostError(msg)
    return ArrayFile(path, stamp, 0, check_rows(rows, path)), form


def check_rows(rows: int, told: str) -> int:
    """The number of rows; ConfigError where there are more than ids can name."""
    if rows > MAX_POSITION + 1:
        msg = (
            f"{told}: an array may have at most {MAX_POSITION + 1} rows (2**40); found {rows}; give several arrays, "
            "or longer rows"
        )
        raise ConfigError(msg)
    return rows


def _npy(
    path: str, stamp: Stamp, head: bytes, dtype: np.dtype[Any] | None, shape: tuple[int, ...] | None
) -> tuple[ArrayFile, RowForm]:
    try:
        start, found, sides, order = header_of(head)
    except FormatError as error:
        msg = f"{path}: {error}; save an array of numbers: numpy.save(path, array)"
        raise SourceError(msg) from error
    _check_dtype(found, path, str(found), SourceError)
    if order == "F" and len(sides) > 1:
        msg = (
            f"{path}: rows must be stored one after the other (C order); found Fortran order; save "
            "numpy.ascontiguousarray(array)"
        )
        raise SourceError(msg)
    if not sides or 0 in sides[1:]:
        msg = f"{path}: an array must have at least one row, and numbers in it; found the shape {sides}"
        raise SourceError(msg)
    form = _checked(RowForm(found, sides[1:]), path)
    if (dtype or found) != found or (sides[1:] if shape is None else shape) != form.shape:
        told = f"{found if dtype is None else dtype} {form.shape if shape is None else shape}"
        msg = f"{path}: must hold rows of {told}, as dtype= and shape= say; found {form}; leave both out"
        raise ConfigError(msg)
    whole = (stamp.size - start) // form.size
    if whole < sides[0] or stamp.size != start + sides[0] * form.size:
        what = f"it ends at byte {stamp.size}" if whole < sides[0] else f"it has {stamp.size} bytes, which is more"
        msg = (
            f"{path}#{min(whole, sides[0])}: a file must hold the {sides[0]} rows of {form} that its header "
            f"says, {start + sides[0] * form.size} bytes in all; found that {what}; fetch or write it again"
        )
        raise DataLostError(msg)
    return ArrayFile(path, stamp, start, check_rows(sides[0], path)), form


def _check_dtype(dtype: np.dtype[Any], told: str, found: str, error: type[ConfigError | SourceError]) -> None:
    if dtype.kind not in "biuf" or dtype.itemsize > 8 or dtype.byteorder == ">":
        cure = "; convert them: array.astype('<f4')" if dtype.byteorder == ">" else ""
        msg = f"{told}: rows must hold little-endian numbers of NumPy, or bool; found {found}{cure}"
        raise error(msg)


def _checked(form: RowForm, told: str) -> RowForm:
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if form.size > most:
        msg = (
            f"{told}: a row must fit into memory; found rows of {form}, {form.size} bytes each, and {most} bytes of "
            "memory"
        )
        raise ConfigError(msg)
    return form


# Rows of arrays, read into slabs or, where they lie in memory, given as they are.
#
# The law: a row's bytes are copied once on their way into a slab, by the kernel, and never where the array is in
# memory. Files are read and not mapped: of a file that is cut while it is read the kernel says so, where a map ends the
# process.


ROW = "row"


@dataclass(frozen=True, slots=True)
class HeldArray:
    """An array in memory; of a mapped file also its path, and what the file was."""

    array: NDArray[Any]
    file: tuple[str, Stamp] | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is read of each row.

    form    what a row is
    header  what stands before each payload, that it is an image; None: no payload is asked for
    fields  name -> member, `row` or `label`
    labels  int64, one for each row of all arrays, or None
    """

    form: RowForm
    header: bytes | None
    fields: dict[str, str]
    labels: Int64s | None

    def give(self, block: Block, rows: Int64s, pieces: Pieces) -> None:
        """Put the rows, numbered through all arrays, into the block; `pieces` are their bytes."""
        found: Any = Arrays(pieces, self.form.dtype, self.form.shape)
        if not self.form.shape and ROW in self.fields.values():
            found = pieces.together(self.form.size).view(self.form.dtype).reshape(-1)
        for name, member in self.fields.items():
            block.fields[name] = found if member == ROW else self.labels[rows]  # type: ignore[index]

    def rooms(self, block: Block) -> tuple[list[NDArray[np.uint8]], Pieces]:
        """Room for all rows, uint8 (rows, bytes) each, of which the last `form.size` bytes of each are to be filled.

        What stands before them is there. The pieces are the rows' own bytes.
        """
        head, size, count = self.header or b"", self.form.size, len(block.ids)
        stride = len(head) + size
        most = max(1, block.lease.slab_bytes // stride)
        rooms = [block.lease.room(min(most, count - k) * stride) for k in range(0, count, most)]
        arrays = [np.frombuffer(room, np.uint8).reshape(-1, stride) for room in rooms]
        nth = np.arange(count, dtype=np.int64)
        if self.header is not None:
            for array in arrays:
                array[:, : len(head)] = np.frombuffer(head, np.uint8)
            block.payloads[:] = [room[k : k + stride] for room in rooms for k in range(0, len(room), stride)]
        at = nth % most * stride + len(head)
        return arrays, Pieces(rooms, nth // most, at, np.full(count, size, np.int64))


class FileRows(FileReader):
    """Reads rows of files: one read for neighbours, one for a lone row."""

    told = "ArrayShards"

    def __init__(
        self,
        files: tuple[ArrayFile, ...],
        table: FileTable,
        wanted: Wanted,
        slabs: Slabs,
        stop: threading.Event | None,
    ) -> None:
        super().__init__(tuple(file.path for file in files), table, slabs, stop, LOCAL)
        self._wanted = wanted
        self._at = np.array([file.at for file in files], np.int64)

    def _fill(self, block: Block, partition: Int64s, position: Int64s) -> None:
        wanted, size = self._wanted, self._wanted.form.size
        if wanted.header is None and ROW not in wanted.fields.values():
            wanted.give(block, self._shards.base[partition] + position, Pieces.none(len(partition)))
            return
        rooms, pieces = wanted.rooms(block)
        low = self._at[partition] + position * size
        for k, room in enumerate(rooms):
            first = k * len(rooms[0])
            part = slice(first, first + len(room))
            if wanted.header is None:
                # From 1 on: to runs_of a row that lies at 0 is one that is missing.
                begin, end = runs_of(partition[part], position[part], low[part] + 1, low[part] + 1 + size)
            else:
                begin, end = np.arange(len(room)), np.arange(1, len(room) + 1)
            views = [
                room[a:b, room.shape[1] - size :].reshape(-1).data
                for a, b in zip(begin.tolist(), end.tolist(), strict=True)
            ]
            rows = begin + first
            self._fill_rows(partition[rows].tolist(), views, low[rows].tolist(), block.ids, rows.tolist())
        self._check_read(partition)
        wanted.give(block, self._shards.base[partition] + position, pieces)

    def _fill_rows(
        self, shards: list[int], views: list[memoryview], at: list[int], ids: Int64s, rows: list[int]
    ) -> None:
        """As `_fill_views`, and a run that comes short is told by the row that the file ends in."""
        size = self._wanted.form.size
        try:
            self._fill_views(shards, views, at, ids, rows)
        except DataLostError:
            for shard, view, byte, row in zip(shards, views, at, rows, strict=True):
                held = self._file(shard).stamp().size
                if held < byte + len(view):
                    short = row + max(0, held - byte) // size
                    raise self._lost(ids[short], held) from None
            raise


class HeldRows(MemberReader):
    """Gives rows of arrays in memory: views, where they lie side by side and no image is made of them."""

    def __init__(
        self,
        arrays: tuple[HeldArray, ...],
        counts: Int64s,
        wanted: Wanted,
        slabs: Slabs,
        stop: threading.Event | None,
    ) -> None:
        super().__init__("ArrayShards", counts, slabs, stop)
        self._arrays, self._wanted, self._base = arrays, wanted, np.cumsum(counts) - counts
        self._plain = wanted.header is None and all(held.array.flags.c_contiguous for held in arrays)

    def _fill(self, block: Block, partition: Int64s, position: Int64s) -> None:
        wanted, size = self._wanted, self._wanted.form.size
        for part in np.unique(partition).tolist():
            mapped_file(self._arrays[part])
        if self._plain:
            memories = [_bytes(held.array) for held in self._arrays]
            pieces = Pieces(memories, partition, position * size, np.full(len(partition), size, np.int64))
        else:
            rooms, pieces = wanted.rooms(block)
            for k, room in enumerate(rooms):
                first = k * len(rooms[0])
                parts, rows = partition[first : first + len(room)], position[first : first + len(room)]
                for part in np.unique(parts).tolist():
                    here = np.flatnonzero(parts == part)
                    taken = np.ascontiguousarray(self._arrays[part].array[rows[here]])
                    room[here, room.shape[1] - size :] = taken.reshape(-1).view(np.uint8).reshape(len(here), size)
        wanted.give(block, self._base[partition] + position, pieces)


def _bytes(array: NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")


def mapped_file(held: HeldArray) -> None:
    """SourceChangedError where the file that an array is a map of is not what it was."""
    if held.file is None:
        return
    path, stamp = held.file
    try:
        found = stamp.change(Stamp.of(os.stat(path)))
    except OSError as error:
        found = str(error.strerror)
    if found:
        msg = f"{path}: a mapped file must stay as it is while it is read; {found}; map it again"
        raise SourceChangedError(msg)


def bytes_of(part: ArrayFile | HeldArray, form: RowForm, row: int, size: int) -> bytes:
    """So many bytes from the beginning of a row on. DataLostError where its file ends before."""
    if isinstance(part, HeldArray):
        rows = part.array[row : row + 1 + (size - 1) // form.size]
        return np.ascontiguousarray(rows).reshape(-1).view(np.uint8)[:size].tobytes()
    file = LOCAL.open(part.path)
    try:
        found = read_at(file, size, part.at + row * form.size)
    finally:
        file.close()
    if len(found) < size:
        msg = f"{part.path}#{row + len(found) // form.size}: the file ended inside this row; fetch the file again"
        raise DataLostError(msg)
    return found


EXTENT_BYTES = 8 << 20
SAMPLED = 64  # rows of which a fingerprint takes the contents
SAMPLED_BYTES = 64 << 10  # of each
_LOADING = threading.RLock()  # of the module, for pickles; labels in files are read while it is held
_Path = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class _Table:
    """All rows of all arrays: what they are, how many each array has, and the labels of all of them in order."""

    form: RowForm
    parts: tuple[ArrayFile | HeldArray, ...]
    counts: Int64s
    base: Int64s
    labels: Int64s | None

    def reader(
        self, names: tuple[str, ...], wanted: Wanted, slabs: Slabs, stop: threading.Event | None
    ) -> FileRows | HeldRows:
        """Of files or of memory."""
        files = tuple(part for part in self.parts if isinstance(part, ArrayFile))
        if not files:
            held = tuple(part for part in self.parts if isinstance(part, HeldArray))
            return HeldRows(held, self.counts, wanted, slabs, stop)
        shards = FileTable(names, tuple(file.stamp for file in files), ("",) * len(files), self.counts, self.base)
        return FileRows(files, shards, wanted, slabs, stop)


class ArrayShards:
    """Rows of arrays, one after the other. Row k of array p is position k of partition p.

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

    def __init__(
        self,
        arrays: _Path | NDArray[Any] | Sequence[_Path] | Sequence[NDArray[Any]],
        dtype: DTypeLike | None = None,
        shape: Sequence[int] | int | None = None,
        label: ArrayLike | _Path | Sequence[_Path] | None = None,
    ) -> None:
        self._dtype, self._shape = told_form(dtype, (shape,) if isinstance(shape, int) else shape)
        them: Any = arrays
        one = isinstance(them, str | os.PathLike | np.ndarray) or not isinstance(them, Iterable)
        given: list[Any] = [them] if one else list(them)
        self._paths: tuple[str, ...] = ()
        self._held: tuple[HeldArray, ...] = ()
        if given and all(isinstance(each, np.ndarray) for each in given):
            self._title = f"ArrayShards({len(given)} array{'s' * (len(given) > 1)})"
            self._names = ("array",) if len(given) == 1 else tuple(f"array-{k}" for k in range(len(given)))
            if dtype is not None or shape is not None:
                msg = "ArrayShards: dtype and shape are for files; an array has its own; leave both out"
                raise ConfigError(msg)
            self._held = tuple(map(_held, given))
        elif given and all(isinstance(each, str | os.PathLike) for each in given):
            named = [os.fspath(each) for each in given]
            self._title, self._paths = named_files(
                "ArrayShards", named, lambda name: matches(name, "ArrayShards", "*.npy")
            )
            self._names = unique_names(self._paths)
        else:
            kinds = ", ".join(sorted({type(each).__name__ for each in given})) or "nothing"
            msg = f"ArrayShards: must be given paths, or NumPy arrays; found {kinds}; numpy.asarray() makes an array"
            raise ConfigError(msg)
        self._label = label
        self._table: _Table | None = None

    def __repr__(self) -> str:
        return self._title

    def __getstate__(self) -> dict[str, Any]:
        """Without what the files held: another process, perhaps on another machine, looks at its own."""
        return self.__dict__ | {"_table": None}

    def __len__(self) -> int:
        return int(self._load().counts.sum())

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the rows."""
        return self._load().form.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Of all rows as one array."""
        return (len(self), *self._load().form.shape)

    @property
    def paths(self) -> tuple[str, ...]:
        """The files in partition order; none where arrays are in memory."""
        return self._paths

    @property
    def fields(self) -> tuple[str, ...]:
        """('label',), or () without labels."""
        return () if self._label is None else (LABEL,)

    def snapshot(self, pin: Mapping[str, Any] | None = None) -> Snapshot:
        """All rows of all arrays.

        The fingerprint is made of the files' names, what rows are, how many, the labels, and the contents of 64 rows.

        Raises:
            ConfigError: a pin is given, which only a source that changes has; or what `array_file` raises.
            SourceChangedError: a file is not what it was at first. DataLostError: it is gone, or cut.
            SourceEmptyError: no row at all.
        """
        if pin is not None:
            msg = f"{self._title}: arrays are fixed and take no pin; found {dict(pin)!r}"
            raise ConfigError(msg)
        table = self._load()
        for part in table.parts:
            if isinstance(part, HeldArray):
                mapped_file(part)
            else:
                check_file(LOCAL, part.path, part.stamp, "ArrayShards")
        if not table.counts.any():
            msg = f"{self._title}: arrays must have rows; found none in {len(table.counts)}"
            raise SourceEmptyError(msg)
        return Snapshot(
            source=self._title,
            names=self._names,
            starts=np.zeros(len(table.counts), np.int64),
            stops=table.counts.copy(),
            extent=max(1, EXTENT_BYTES // table.form.size),
            record_bytes=table.form.size,
            random_access=True,
            interleaved=False,
            fingerprint=self._fingerprint(table),
        )

    def members(self) -> tuple[Member, ...]:
        """`row`, and `label` where there are labels."""
        row = Member(ROW, 1.0, self._load().form.size)
        return (row,) if self._label is None else (row, Member(LABEL, 1.0, 0))

    def giving(self, image: str | None, members: tuple[str, ...]) -> Source:
        """The same rows with other members; see `records.members`."""
        known, told = (ROW, *self.fields), f"{self._title} has the members"
        asked = {name: foremost(name, known, told) for name in members}
        if image is not None:
            foremost(image, (ROW,), f"an image of {self._title} is made of")
        return MemberSource(self, members, partial(self.opened, image, asked))

    def reader(self, slabs: Slabs | None = None, stop: threading.Event | None = None) -> Reader:
        """ConfigError: rows are read with columns alone; a `DataLoader` without `columns=` asks for them by itself."""
        del slabs, stop
        msg = f"{self._title}: without columns= a batch has images; found rows of arrays. Ask for columns: Array('row')"
        raise ConfigError(msg)

    def file_stamps(self) -> bytes:
        """See `records.source.Stamped`."""
        return sizes_and_times(part.stamp for part in self._load().parts if isinstance(part, ArrayFile))

    def where(self, partition: int, position: int) -> str:
        """`features.npy#17`."""
        return f"{self._names[partition]}#{position}"

    def opened(
        self, image: str | None, asked: dict[str, str], slabs: Slabs, stop: threading.Event | None
    ) -> FileRows | HeldRows:
        """A reader of those members, name -> member. ConfigError where rows are no images, and one is asked for."""
        table = self._load()
        header = None if image is None else table.form.pixels
        if image is not None and header is None:
            rule = "an image is a row of uint8 of the shape (height, width), (height, width, 1) or (height, width, 3)"
            msg = f"member {image!r}: {rule}; found {table.form} in {self._title}; use Array('row')"
            raise ConfigError(msg)
        return table.reader(self._names, Wanted(table.form, header, asked, table.labels), slabs, stop)

    def _rows(self) -> NDArray[Any]:
        """A copy of all rows."""
        table = self._load()
        counts = table.counts.tolist()
        whole = [
            bytes_of(part, table.form, 0, n * table.form.size) for part, n in zip(table.parts, counts, strict=True) if n
        ]
        return np.frombuffer(b"".join(whole), table.form.dtype).reshape(-1, *table.form.shape)

    def _load(self) -> _Table:
        with _LOADING:
            if self._table is None:
                self._table = self._tabulated()
            return self._table

    def _tabulated(self) -> _Table:
        found: list[tuple[Any, RowForm, int]] = []
        for path in self._paths:
            file, form = array_file(path, self._dtype, self._shape)
            found.append((file, form, file.rows))
        for held, name in zip(self._held, self._names, strict=False):
            found.append((held, form_of(held.array, name), check_rows(len(held.array), name)))
        form = found[0][1]
        odd = next((k for k, each in enumerate(found) if each[1] != form), None)
        if odd is not None:
            others = f"{found[odd][1]} in {self._names[odd]}"
            msg = f"{self._title}: all rows must have one dtype and shape; found {form} in {self._names[0]}, {others}"
            raise (SourceError if self._paths else ConfigError)(msg)
        counts = np.array([count for _, _, count in found], np.int64)
        labels = None if self._label is None else _labels(self._label, int(counts.sum()), self._title)
        return _Table(form, tuple(part for part, _, _ in found), counts, np.cumsum(counts) - counts, labels)

    def _fingerprint(self, table: _Table) -> str:
        digest = hashlib.sha256(f"{table.form}\0".encode())
        for name, count in zip(self._names, table.counts.tolist(), strict=True):
            digest.update(f"{name}\0{count}\n".encode(errors="surrogateescape"))
        total = int(table.counts.sum())
        spread = np.unique(np.linspace(0, total - 1, SAMPLED).round().astype(np.int64))
        part = np.searchsorted(table.base + table.counts, spread, side="right")  # past those that have none
        for p, row in zip(part.tolist(), (spread - table.base[part]).tolist(), strict=True):
            digest.update(bytes_of(table.parts[p], table.form, row, min(table.form.size, SAMPLED_BYTES)))
        digest.update(b"" if table.labels is None else table.labels.tobytes())
        return digest.hexdigest()


def _held(array: NDArray[Any]) -> HeldArray:
    """An array, and of a map the file that it shows."""
    path = getattr(array, "filename", None)
    if not isinstance(array, np.memmap) or path is None:
        return HeldArray(array, None)
    return HeldArray(np.asarray(array), (os.fspath(path), Stamp.of(os.stat(path))))


def _labels(label: Any, rows: int, told: str) -> Int64s:
    """A label for each row, int64. ConfigError where there are others."""
    named = isinstance(label, str | os.PathLike)
    if named or (isinstance(label, list | tuple) and label and isinstance(label[0], str | os.PathLike)):
        label = ArrayShards(label)._rows()
    found = np.asarray(label)
    if found.shape != (rows,) or found.dtype.kind not in "iub" or (found.dtype == np.uint64 and (found >> 63).any()):
        msg = f"{told}: label must be {rows} integers, one for each row; found {found.dtype} {found.shape}"
        raise ConfigError(msg)
    return found.astype(np.int64)
