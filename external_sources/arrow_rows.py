"""Rows of an Arrow table: images as they were encoded, with the table's other columns beside them.

No image is copied. A payload is a view of the table's own buffer, which for a file that is
mapped into memory is the file itself; only an image that the table names by its path is read into a slab.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from dali_feed.errors import ClosedError, ConfigError, SourceEmptyError
from dali_feed.external_sources.arrow_columns import Images, Numbers, Strings, check_types, images_of, values_of
from dali_feed.external_sources.arrow_members import ArrowMembers, Held
from dali_feed.external_sources.files import EXTENT_BYTES, SAMPLED, FileList, shared_folder
from dali_feed.external_sources.one_file import check_read, load_file
from dali_feed.records.members import Member
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import Block, Extents, Int64s, Lease, Reader, Slabs, Snapshot, Source, unpack_ids

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ArrowRows"]


@dataclass(frozen=True, slots=True)
class _Columns:
    """All rows of a table, and which of them stand at positions 0, 1, ..."""

    rows: Int64s
    images: Images  # of the first column of images
    further: Mapping[str, Images]
    beside: Mapping[str, Numbers | Strings]


class ArrowRows:
    """A pyarrow Table with a column of images. Position k is the table's row k, or rows[k].

    table  a pyarrow Table with one column of images, and others of numbers, booleans, texts or bytes: the fields
    image  the name of the images' column: binary, string (paths), or a struct of `bytes` and `path` as Hugging Face's
           datasets keep them, where the bytes count if both are there. Several names for several such columns: with
           `columns=` each can be an `Image`, and without it those behind the first are bytes as encoded
    rows   of the table, in the order wanted; duplicates are allowed. None for all
    name   for messages

    Its batches are dicts of columns. Integers become int64. A null in any column makes a bad record.

    Raises:
        ConfigError: no such column, a column of a type that is not supported, or rows that the table does not have.
        SourceEmptyError: no row at all.
    """

    def __init__(
        self,
        table: pa.Table,
        image: str | Sequence[str] = "image",
        rows: ArrayLike | None = None,
        *,
        name: str = "table",
    ) -> None:
        self._table, self._name = table, name
        self._images = (image,) if isinstance(image, str) else tuple(image)
        self._columns = tuple(table.column_names)
        missing = [each for each in self._images or ("",) if each not in self._columns]
        if missing or len(set(self._columns)) < len(self._columns):
            msg = (
                f"{self!r}: a table must have one column {(*missing, *self._images)[0]!r}, of images, and no two of one"
                f" name; found {list(self._columns)}; give image=, or rename columns"
            )
            raise ConfigError(msg)
        check_types(table.schema, self._images, repr(self))
        self._rows = np.arange(table.num_rows, dtype=np.int64) if rows is None else self._checked(rows)
        if not len(self._rows):
            msg = f"{self!r}: must have at least one row; found none"
            raise SourceEmptyError(msg)

    def __repr__(self) -> str:
        return f"ArrowRows({self._name})"

    def __len__(self) -> int:
        return len(self._rows)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_loaded"}  # no views in a pickle

    def chosen(self, positions: Int64s) -> ArrowRows:
        """These records, in this order; negative positions count from the end. IndexError for one that is not there."""
        return ArrowRows(self._table, self._images, self._rows[positions], name=self._name)

    @property
    def columns(self) -> tuple[str, ...]:
        """All names, the images' too, in the table's order: the keys of a batch."""
        return self._columns

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of all columns but that of the images, or of the first ones."""
        return tuple(name for name in self._columns if name != self._images[0])

    def snapshot(self, pin: Mapping[str, Any] | None = None) -> Snapshot:
        """All records, as one partition.

        The fingerprint is made of the columns' names, the numbers, the sizes of all images and texts, the contents of
        64 of each, and the names of images that lie in files: equal in every process, however the table is chunked
        and wherever it lies.

        Raises:
            ConfigError: a pin is given, which only a source that changes has; or integers of more than 64 bits.
            SourceNotFoundError: the images lie in files, and none of the 64 that were looked at is there.
        """
        if pin is not None:
            msg = f"{self!r}: a table is fixed as it is and takes no pin; found {dict(pin)!r}"
            raise ConfigError(msg)
        record_bytes = self._mean_size()
        return Snapshot(
            source=repr(self),
            names=(self._name,),
            starts=np.zeros(1, np.int64),
            stops=np.array([len(self)], np.int64),
            extent=max(1, EXTENT_BYTES // record_bytes),
            record_bytes=record_bytes,
            random_access=True,
            interleaved=False,
            fingerprint=self._fingerprint(),
        )

    def members(self) -> tuple[Member, ...]:
        """The table's columns."""
        rows = max(1, self._table.num_rows)
        columns = ((name, self._table[name]) for name in self._columns)
        return tuple(Member(name, 1 - column.null_count / rows, column.nbytes // rows) for name, column in columns)

    def giving(self, image: str | None, members: tuple[str, ...]) -> Source:
        """The same records with other members; see `records.members`."""
        held = self._loaded
        images = {self._images[0]: held.images, **held.further}
        return ArrowMembers(self, Held(held.rows, images, held.beside), image, members)

    def reader(self, slabs: Slabs | None = None, stop: threading.Event | None = None) -> Reader:
        """A reader for one thread; see `dali_feed.records.source.Source`."""
        return _RowReader(self._loaded, repr(self), SlabPool() if slabs is None else slabs, stop)

    def where(self, partition: int, position: int) -> str:
        """`table#17`, the row in the table; with its path where the image lies in a file."""
        row = self._rows[position : position + 1]
        (found,) = self._loaded.images.at(row)
        return f"{self._name}#{row[0]}" + (f" ({found})" if isinstance(found, str) else "")

    @cached_property
    def _loaded(self) -> _Columns:
        beside = {
            name: values_of(self._table[name], name, repr(self)) for name in self._columns if name not in self._images
        }
        images = {name: images_of(self._table[name]) for name in self._images}
        return _Columns(self._rows, images.pop(self._images[0]), images, beside)

    def _checked(self, rows: ArrayLike) -> Int64s:
        count, array = self._table.num_rows, np.asarray(rows)
        wrong = array.dtype.kind not in "iu" or array.ndim != 1
        if array.size and (wrong or array.min() < 0 or array.max() >= count):
            found = f"{array.dtype} of shape {array.shape}" if wrong else f"{array.min()}..{array.max()}"
            msg = f"{self!r}: rows must be a flat sequence of integers in 0..{count - 1}; found {found}"
            raise ConfigError(msg)
        return array.astype(np.int64)

    def _fingerprint(self) -> str:
        columns, digest = self._loaded, hashlib.sha256()
        for name, images in (("", columns.images), *columns.further.items()):
            digest.update(name.encode())
            if images.held is not None:
                for part in images.held.told(self._rows):
                    digest.update(part)
            paths = images.in_files(self._rows)
            skip = len(shared_folder(min(paths), max(paths))) if paths else 0
            for path in paths:
                digest.update(path[skip:].lstrip(os.sep).encode(errors="surrogateescape") + b"\0")
        for name, column in columns.beside.items():
            digest.update(f"\0{name}\0".encode())
            if isinstance(column, Strings):
                for part in column.told(self._rows):
                    digest.update(part)
            else:
                digest.update(column.values.dtype.str.encode() + column.values[self._rows].tobytes())
                digest.update(b"" if column.null is None else np.packbits(column.null[self._rows]).tobytes())
        return digest.hexdigest()

    def _mean_size(self) -> int:
        spread = np.unique(np.linspace(0, len(self) - 1, SAMPLED).round().astype(np.int64))
        every = (self._loaded.images, *self._loaded.further.values())
        return sum(_mean(images.at(self._rows[spread])) for images in every)


def _mean(found: list[memoryview | str | None]) -> int:
    """Of images, or of files with images, the mean size; at least 1."""
    sizes = [len(view) for view in found if isinstance(view, memoryview)]
    if sizes:
        return max(1, round(sum(sizes) / len(sizes)))
    paths = [path for path in found if isinstance(path, str)]
    return FileList(paths).snapshot().record_bytes if paths else 1


class _RowReader:
    """Gives views of a table's buffers, and reads the files that it names."""

    def __init__(self, columns: _Columns, told: str, slabs: Slabs, stop: threading.Event | None) -> None:
        self._columns, self._told, self._slabs = columns, told, slabs
        self._stop = stop or threading.Event()
        self._closed = False

    def read(self, extents: Extents) -> Block:
        """The rows of `extents`; see `dali_feed.records.source.Reader`.

        Raises:
            ConfigError: an extent that leaves the source.
            ClosedError: the reader is closed or the stop event is set.
            SourceError: the process has no descriptors or memory left for a file.
        """
        rows = self._columns.rows
        check_read(self._told, extents, len(rows), closed=self._closed)
        ids = extents.ids()
        rows = rows[unpack_ids(ids)[1]]
        block = Block(ids, [], {}, self._slabs.lease())
        try:
            for k, found in enumerate(self._columns.images.at(rows)):
                if self._stop.is_set():
                    msg = f"{self._told}: the read was stopped"
                    raise ClosedError(msg)
                block.payloads.append(_payload(found, block.lease, k, block.faults))
            for name, column in self._columns.beside.items():
                block.fields[name] = _field(column, rows, name, block.faults)
            for name, images in self._columns.further.items():
                every = enumerate(images.at(rows))
                block.fields[name] = [bytes(_payload(each, block.lease, row, block.faults)) for row, each in every]
        except BaseException:
            block.lease.release()
            raise
        return block

    def close(self) -> None:
        """Nothing stays open between reads. Safe to call twice."""
        self._closed = True


def _payload(found: memoryview | str | None, lease: Lease, k: int, faults: dict[int, str]) -> memoryview:
    """The bytes of row k, or none and a fault."""
    if isinstance(found, str):
        loaded = load_file(found, lease)
        if isinstance(loaded, memoryview):
            return loaded
        faults[k] = loaded
    elif found is not None:
        return found
    else:
        faults[k] = "the image is null"
    return memoryview(b"")


def _field(column: Numbers | Strings, rows: Int64s, name: str, faults: dict[int, str]) -> Any:
    """A column's values; a null is a fault where its row has none yet."""
    if isinstance(column, Numbers):
        for k in [] if column.null is None else np.flatnonzero(column.null[rows]).tolist():
            faults.setdefault(k, f"column {name!r} is null")
        return column.values[rows]
    values: list[str | bytes] = []
    for k, view in enumerate(column.views(rows)):
        values.append(str(view or b"", "utf-8", "replace") if column.text else bytes(view or b""))
        if view is None:
            faults.setdefault(k, f"column {name!r} is null")
    return values
