"""Rows of an Arrow table: images as they were encoded, with the table's other columns beside them.

No image is copied. A payload is a view of the table's own buffer, which for a file that is
mapped into memory is the file itself; only an image that the table names by its path is read into a slab.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike

from dali_feed.errors import ConfigError, SourceEmptyError
from dali_feed.external_sources.arrow_values import (
    ArrowReader,
    Images,
    Leaf,
    Numbers,
    Strings,
    Values,
    check_image,
    check_types,
    image_of,
    images_of,
    members_in,
    values_of,
)
from dali_feed.external_sources.files import EXTENT_BYTES, SAMPLED, FileList, shared_folder
from dali_feed.external_sources.request import MemberSource, foremost, forms_of, with_formats
from dali_feed.formats.format import Format
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import Block, Int64s, Member, Reader, Slabs, Snapshot, Source

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ArrowRows"]


_VIEWS = "_views"  # the attribute that keeps values of columns


class ArrowRows:
    """A pyarrow Table with a column of images. Position k is the table's row k, or rows[k].

    table   a pyarrow Table with one column of images, and others of numbers, booleans, texts or bytes: the fields
    image   the name of the images' column: binary, string (paths), or a struct of `bytes` and `path` as Hugging Face's
            datasets keep them, where the bytes count if both are there. None: it has none, and is read with `columns=`
    rows    of the table, in the order wanted; duplicates are allowed. None for all
    name    for messages
    format  what columns of bytes or texts hold, for `columns=`: column -> format, {"meta": "json"}; a member is then
            `meta:body.label` too. See docs/formats.md

    Its batches are dicts of columns. Integers become int64. A null in any column makes a bad record. With `columns=`
    lists, structs and several columns of images can be asked for, and a null counts where it was asked for.

    Raises:
        ConfigError: no table, no such column, or rows that the table does not have; at the first use without
            `columns=`, a column of a type that is not supported.
        SourceEmptyError: no row at all.
    """

    def __init__(
        self,
        table: pa.Table,
        image: str | None = "image",
        rows: ArrayLike | None = None,
        *,
        name: str = "table",
        format: Mapping[str, Format | str] | None = None,  # noqa: A002  what users call it
    ) -> None:
        if not hasattr(table, "schema"):
            cure = "for files use ParquetRows or ArrowFiles; DataLoader takes a Hugging Face dataset as it is"
            msg = f"ArrowRows: table must be a pyarrow Table; found {type(table).__name__} {table!r:.100}; {cure}"
            raise ConfigError(msg)
        self._table, self._image, self._name = table, image, name
        self._columns, self._known = tuple(table.column_names), members_in(table.schema)
        self._forms = forms_of(format, None, f"ArrowRows({name})")
        if (image is not None and self._columns.count(image) != 1) or len(set(self._columns)) < len(self._columns):
            msg = (
                f"{self!r}: a table must have one column {image!r}, of images, and no two columns of the same "
                f"name; found {list(self._columns)}; give image=, or rename columns"
            )
            raise ConfigError(msg)
        if image is not None:
            check_image(table.schema, image, repr(self))
        self._rows = np.arange(table.num_rows, dtype=np.int64) if rows is None else self._checked(rows)
        if not len(self._rows):
            msg = f"{self!r}: must have at least one row; found none"
            raise SourceEmptyError(msg)

    def __repr__(self) -> str:
        return f"ArrowRows({self._name})"

    def __len__(self) -> int:
        return len(self._rows)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != _VIEWS}  # none in a pickle

    def chosen(self, positions: Int64s) -> ArrowRows:
        """These records, in this order; negative positions count from the end. IndexError for one that is not there."""
        return ArrowRows(self._table, self._image, self._rows[positions], name=self._name, format=self._forms)

    @property
    def columns(self) -> tuple[str, ...]:
        """All names, the images' too, in the table's order: the keys of a batch."""
        return self._columns

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of all columns but the images'."""
        return tuple(name for name in self._columns if name != self._image)

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
            msg = f"{self!r}: a table is fixed and takes no pin; found {dict(pin)!r}"
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

    def check(self) -> None:
        """Raise the ConfigError for a table that batches without `columns=` cannot be made of."""
        if self._image is None:
            msg = f"{self!r}: without columns= a batch has images; found image=None; give image=, or ask for columns="
            raise ConfigError(msg)
        check_types(self._table.schema, self._image, repr(self))

    @property
    def leaves(self) -> Mapping[str, Leaf]:
        """Where each member lies in the table, and of which type it is."""
        return self._known

    def members(self) -> tuple[Member, ...]:
        """The table's columns, and the parts of structs among them, `answers.text`."""
        rows = max(1, self._table.num_rows)
        columns = ((name, leaf.of(self._table)) for name, leaf in self._known.items())
        return tuple(Member(name, 1 - column.null_count / rows, column.nbytes // rows) for name, column in columns)

    def giving(self, image: str | None, members: tuple[str, ...]) -> Source:
        """The same records with other members; see `records.members`."""
        return with_formats(self._giving, self._forms.get, image, members, known=lambda: self._known)

    def _giving(self, image: str | None, members: tuple[str, ...]) -> Source:
        told = f"{self!r} has the columns"
        asked = {name: foremost(name, self._known, told) for name in members}
        picture = None if image is None else image_of(self._known, image, repr(self))
        return MemberSource(self, members, partial(_RowReader, self, picture, asked))

    def reader(self, slabs: Slabs | None = None, stop: threading.Event | None = None) -> Reader:
        """A reader for one thread; see `dali_feed.records.source.Source`. Raises what `check` does."""
        self.check()
        columns = {name: name for name in self.fields}
        return _WholeRows(self, self._image, columns, SlabPool() if slabs is None else slabs, stop or threading.Event())

    def where(self, partition: int, position: int) -> str:
        """`table#17`, the row in the table; with its path where the image lies in a file."""
        row = self._rows[position : position + 1]
        found = None if self._image is None else self._images.at(row)[0]
        return f"{self._name}#{row[0]}" + (f" ({found})" if isinstance(found, str) else "")

    @property
    def _images(self) -> Images:
        return cast("Images", self._values(self._image or "", True))

    def _values(self, name: str, as_image: bool) -> Values:
        """A member's values, taken out of the table once; structs of bytes and path are images in any case."""
        leaf = self._known[name]
        as_image = as_image or name == self._image or leaf.is_struct
        held: dict[tuple[str, bool], Values] = self.__dict__.setdefault(_VIEWS, {})
        if (name, as_image) not in held:  # two threads may do it at once, and one of them in vain
            column = leaf.of(self._table)
            held[name, as_image] = images_of(column) if as_image else values_of(column, name, repr(self))
        return held[name, as_image]

    def _checked(self, rows: ArrayLike) -> Int64s:
        count, array = self._table.num_rows, np.asarray(rows)
        wrong = array.dtype.kind not in "iu" or array.ndim != 1
        if array.size and (wrong or array.min() < 0 or array.max() >= count):
            found = f"{array.dtype} of shape {array.shape}" if wrong else f"{array.min()}..{array.max()}"
            msg = f"{self!r}: rows must be a flat sequence of integers in 0..{count - 1}; found {found}"
            raise ConfigError(msg)
        return array.astype(np.int64)

    def _fingerprint(self) -> str:
        digest = hashlib.sha256()
        if self._image is not None:
            self._tell(digest.update, self._images)
        for name, leaf in self._known.items():
            if leaf.path[0] != self._image:
                digest.update(f"\0{name}\0".encode())
                self._tell(digest.update, self._values(name, False))
        return digest.hexdigest()

    def _tell(self, update: Callable[[bytes], None], values: Values) -> None:
        """What would be different of other values."""
        if isinstance(values, Numbers):
            update(values.values.dtype.str.encode() + values.values[self._rows].tobytes())
            update(b"" if values.null is None else np.packbits(values.null[self._rows]).tobytes())
            return
        held = values.held if isinstance(values, Images) else values
        for part in () if held is None else held.told(self._rows):
            update(part)
        if isinstance(values, Images):
            paths = values.in_files(self._rows)
            skip = len(shared_folder(min(paths), max(paths))) if paths else 0
            for path in paths:
                update(path[skip:].lstrip(os.sep).encode(errors="surrogateescape") + b"\0")

    def _mean_size(self) -> int:
        """Of some images; of a table that has none, of some rows' texts, bytes and lists."""
        spread = self._rows[np.unique(np.linspace(0, len(self) - 1, SAMPLED).round().astype(np.int64))]
        if self._image is None:
            sizes = [_sizes(self._values(name, False), spread) for name in self._known]
            return max(1, round(sum(sizes) / len(spread)))
        found = self._images.at(spread)
        held = [len(view) for view in found if isinstance(view, memoryview)]
        if held:
            return max(1, round(sum(held) / len(held)))
        paths = [path for path in found if isinstance(path, str)]
        return FileList(paths).snapshot().record_bytes if paths else 1


def _sizes(values: Values, rows: Int64s) -> int:
    """Bytes of these rows, as far as they can be told."""
    if isinstance(values, Numbers):
        return values.values.itemsize * len(rows)
    found: Iterable[Any] = values.at(rows) if isinstance(values, Images) else values.of(rows)
    return sum(getattr(value, "nbytes", 0) for value in found)


class _RowReader(ArrowReader):
    """Gives views of the table's buffers, and reads the files that it names."""

    def __init__(
        self, of: ArrowRows, image: str | None, asked: Mapping[str, str], slabs: Slabs, stop: threading.Event
    ) -> None:
        super().__init__(repr(of), len(of), slabs, stop)
        self._rows = of._rows
        self._picture = None if image is None else cast("Images", of._values(image, True))
        self._asked = {name: of._values(member, False) for name, member in asked.items()}

    def _fill(self, block: Block, _: Int64s, position: Int64s) -> None:
        rows = self._rows[position]
        if self._picture is not None:
            self._image(self._picture, rows, block)
        for name, values in self._asked.items():
            block.fields[name] = self._given(values, rows, block)


class _WholeRows(_RowReader):
    """Gives all columns of rows, as batches without `columns=` have them: a null in any of them is a fault."""

    def _fill(self, block: Block, _: Int64s, position: Int64s) -> None:
        rows = self._rows[position]
        for k, found in enumerate(cast("Images", self._picture).at(rows)):
            if found is None:
                block.faults[k] = "the image is null"
            view = self._loaded(found, block, k) if isinstance(found, str) else found
            block.payloads[k] = memoryview(b"") if view is None else view
        for name, column in self._asked.items():
            block.fields[name] = _field(cast("Numbers | Strings", column), rows, name, block.faults)


def _field(column: Numbers | Strings, rows: Int64s, name: str, faults: dict[int, str]) -> Any:
    """A column's values; a null is a fault where its row has none yet."""
    if isinstance(column, Numbers):
        for k in [] if column.null is None else np.flatnonzero(column.null[rows]).tolist():
            faults.setdefault(k, f"column {name!r} is null")
        return column.values[rows]
    values: list[str | bytes] = []
    for k, view in enumerate(column.of(rows)):
        values.append(str(view or b"", "utf-8", "replace") if column.text else bytes(view or b""))
        if view is None:
            faults.setdefault(k, f"column {name!r} is null")
    return values
