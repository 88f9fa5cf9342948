"""Arrays whose rows are samples: `.npy` files, raw files, and NumPy's arrays in memory."""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from dali_feed.errors import ConfigError, SourceEmptyError, SourceError
from dali_feed.external_sources.array_layout import ArrayFile, RowForm, array_file, check_rows, form_of, told_form
from dali_feed.external_sources.array_reader import ROW, FileRows, HeldArray, HeldRows, Wanted, mapped_file
from dali_feed.external_sources.array_rows import copies
from dali_feed.external_sources.member_source import MemberSource, foremost
from dali_feed.external_sources.shard_reader import Shards, check_shard
from dali_feed.records.members import Member
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import LABEL, Extents, Int64s, Reader, Slabs, Snapshot, Source
from dali_feed.storage.local import LOCAL
from dali_feed.storage.paths import matches, unique_names
from dali_feed.storage.store import Stamp

__all__ = ["ArrayShards"]

EXTENT_BYTES = 8 << 20
SAMPLED = 64  # rows of which a fingerprint takes the contents
SAMPLED_BYTES = 64 << 10  # of each
_LOADING = threading.RLock()  # of the module, for pickles; labels in files are read while it is held
_Path = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class _Table:
    """All rows of all arrays: what they are, how many each array has, and the labels of all of them in order."""

    form: RowForm
    parts: tuple[ArrayFile, ...] | tuple[HeldArray, ...]
    counts: Int64s
    base: Int64s
    labels: Int64s | None

    def runs(self, rows: Int64s) -> Extents:
        """The runs of neighbours among rows, which are numbered through all arrays."""
        part = np.searchsorted(self.base + self.counts, rows, side="right")  # past those that have none
        position = rows - self.base[part]
        begin = np.flatnonzero(np.append(True, (np.diff(position) != 1) | (np.diff(part) != 0))[: len(rows)])
        length = np.diff(np.append(begin, len(rows)))
        return Extents(part[begin], position[begin], position[begin] + length)

    def reader(
        self, names: tuple[str, ...], wanted: Wanted, slabs: Slabs, stop: threading.Event | None
    ) -> FileRows | HeldRows:
        """Of files or of memory."""
        files = tuple(part for part in self.parts if isinstance(part, ArrayFile))
        if not files:
            held = tuple(part for part in self.parts if isinstance(part, HeldArray))
            return HeldRows(held, self.counts, wanted, slabs, stop)
        shards = Shards(names, tuple(file.stamp for file in files), ("",) * len(files), self.counts, self.base)
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
            self._title = f"ArrayShards({', '.join(named[:3])}{', ...' if len(named) > 3 else ''})"
            found = (matches(name, "ArrayShards", "*.npy") for name in named)
            self._paths = tuple(itertools.chain.from_iterable(found))
            if len(set(self._paths)) < len(self._paths):
                twice = next(path for path in self._paths if self._paths.count(path) > 1)
                msg = f"ArrayShards: each file may be named once; found {twice} twice; remove one of the two"
                raise ConfigError(msg)
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
            ConfigError: a pin is given, which only a source that changes has; or what `array_layout.array_file` raises.
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
                check_shard(LOCAL, part.path, part.stamp, "ArrayShards")
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
        return _ArrayMembers(self, asked, image, members)

    def reader(self, slabs: Slabs | None = None, stop: threading.Event | None = None) -> Reader:
        """ConfigError: rows are read with columns alone; a `DataLoader` without `columns=` asks for them by itself."""
        del slabs, stop
        msg = f"{self._title}: without columns= a batch has images; found rows of arrays. Ask for columns: Array('row')"
        raise ConfigError(msg)

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
        table, rows = self._load(), np.arange(len(self), dtype=np.int64)
        with closing(self._plain_reader(table)) as reader:
            return copies(reader, table.form, table.runs(rows), len(rows))

    def _plain_reader(self, table: _Table) -> FileRows | HeldRows:
        return table.reader(self._names, Wanted(table.form, None, {ROW: ROW}, None), SlabPool(), None)

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
        with closing(self._plain_reader(table)) as reader:
            for k in range(len(spread)):  # a row may be large: one at a time
                row = copies(reader, table.form, table.runs(spread[k : k + 1]), 1)
                digest.update(row.reshape(-1).view(np.uint8)[:SAMPLED_BYTES].tobytes())
        digest.update(b"" if table.labels is None else table.labels.tobytes())
        return digest.hexdigest()


class _ArrayMembers(MemberSource):
    """Rows with the members that were asked for. See `records.members.Members.giving`."""

    def __init__(self, source: ArrayShards, asked: dict[str, str], image: str | None, members: tuple[str, ...]) -> None:
        super().__init__(source, image, members)
        self._arrays, self._asked = source, asked

    def _opened(self, slabs: Slabs, stop: threading.Event) -> Reader:
        return self._arrays.opened(self._image, self._asked, slabs, stop)


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
