"""Rows of an Arrow table: images as they were encoded, with the table's other columns beside them.

No image is copied. A payload is a view of the table's own buffer, which for a file that is
mapped into memory is the file itself; only an image that the table names by its path is read into a slab.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike

from dali_feed.columns.request import formats_of
from dali_feed.errors import ConfigError, SourceEmptyError
from dali_feed.external_sources.arrow_values import (
    FILE,
    Files,
    Held,
    Leaf,
    check_image,
    check_types,
    column_of,
    contents_of,
    image_of,
    members_in,
    rows_of,
    values_of,
)
from dali_feed.external_sources.files import EXTENT_BYTES, SAMPLED, FileList
from dali_feed.external_sources.ranges import RowReader, check_known
from dali_feed.formats.format import Format
from dali_feed.records.pieces import Pieces
from dali_feed.records.source import Block, Int64s, Member, Reader, Snapshot, Source
from dali_feed.records.values import nbytes

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ArrowRows"]


_VIEWS = "_views"  # the attribute that keeps values of columns


class ArrowRows(Source):
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

    named = True

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
        self._formats = formats_of(format, None, f"ArrowRows({name})")
        if (image is not None and self._columns.count(image) != 1) or len(set(self._columns)) < len(self._columns):
            msg = (
                f"{self!r}: a table must have one column {image!r}, of images, and no two columns of the same "
                f"name; found {list(self._columns)}; give image=, or rename columns"
            )
            raise ConfigError(msg)
        if image is not None:
            check_image(table.schema.field(image).type, image, repr(self))
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
        return ArrowRows(self._table, self._image, self._rows[positions], name=self._name, format=self._formats)

    @property
    def preset(self) -> Mapping[str, Any]:
        """All columns, in the table's order, each by its type.

        Raises:
            ConfigError: there is no column of images, or one of a type that batches without `columns=` cannot hold.
        """
        self.check()
        return {name: column_of(name, self._known[name].kind, image=name == self._image) for name in self._columns}

    def check(self) -> None:
        """Raise the ConfigError for a table that batches without `columns=` cannot be made of."""
        if self._image is None:
            msg = f"{self!r}: without columns= a batch has images; found image=None; give image=, or ask for columns="
            raise ConfigError(msg)
        check_types(self._table.schema, self._image, repr(self))

    @property
    def image(self) -> str | None:
        """The column of images."""
        return self._image

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

    @property
    def leaves(self) -> Mapping[str, Leaf]:
        """Where each member lies in the table, and of which type it is."""
        return self._known

    def members(self) -> tuple[Member, ...]:
        """The table's columns, and the parts of structs among them, `answers.text`."""
        rows = max(1, self._table.num_rows)
        columns = ((name, leaf.of(self._table)) for name, leaf in self._known.items())
        return tuple(Member(name, 1 - column.null_count / rows, column.nbytes // rows) for name, column in columns)

    def can_have(self, member: str) -> bool:
        """Whether the table has it; of a column of paths also the bytes of the files."""
        return member.removesuffix(FILE) in self._known

    def format_of(self, member: str) -> Format | None:
        """What was given for the column."""
        return self._formats.get(member)

    def image_of(self, member: str) -> str:
        """A column of paths becomes that of the files' bytes. ConfigError where no image can be made of it."""
        return image_of(self._known, member, repr(self))

    def reader(self, members: Sequence[str], stop: threading.Event | None = None) -> Reader:
        """A reader for one thread; see `dali_feed.records.source.Source`."""
        check_known([member.removesuffix(FILE) for member in members], self._known, repr(self))
        values = {member: self._values(member) for member in members}
        return _RowReader(repr(self), self._rows, values, stop)

    def where(self, partition: int, position: int) -> str:
        """`table#17`, the row in the table; with its path where the image lies in a file."""
        row = self._rows[position : position + 1]
        images = self._images
        (path,) = images.paths_of(row) if isinstance(images, Files) else (None,)
        return f"{self._name}#{row[0]}" + ("" if path is None else f" ({path})")

    @property
    def _images(self) -> Held | None:
        return None if self._image is None else self._values(self.image_of(self._image))

    def _values(self, member: str) -> Held:
        """A member's values, taken out of the table once."""
        held: dict[str, Held] = self.__dict__.setdefault(_VIEWS, {})
        if member not in held:  # two threads may do it at once, and one of them in vain
            name = member.removesuffix(FILE)
            column = self._known[name].of(self._table)
            held[member] = values_of(column, name, repr(self), files=name != member)
        return held[member]

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
        if (images := self._images) is not None:
            self._tell(digest.update, images)
        for name, leaf in self._known.items():
            if leaf.path[0] != self._image:
                digest.update(f"\0{name}\0".encode())
                self._tell(digest.update, self._values(name))
        return digest.hexdigest()

    def _tell(self, update: Callable[[bytes], None], values: Held) -> None:
        for part in contents_of(values, self._rows):
            update(part)

    def _mean_size(self) -> int:
        """Of some images; of a table that has none, of some rows' texts, bytes and lists."""
        spread = self._rows[np.unique(np.linspace(0, len(self) - 1, SAMPLED).round().astype(np.int64))]
        images = self._images
        if images is None:
            return max(1, round(sum(_bytes_of(self._values(name), spread) for name in self._known) / len(spread)))
        held = images.held[spread] if isinstance(images, Files) else cast("Pieces", images)[spread]
        if not held.missing.all():
            return max(1, round(float(held.size[~held.missing].mean())))
        paths = [path for path in images.paths_of(spread) if path is not None] if isinstance(images, Files) else []
        return FileList(paths).snapshot().record_bytes if paths else 1


def _bytes_of(values: Held, rows: Int64s) -> int:
    """Bytes of these rows, as far as they can be told."""
    return nbytes(values.held[rows] if isinstance(values, Files) else values[rows])


class _RowReader(RowReader):
    """Gives views of the table's buffers, and reads the files that it names."""

    def __init__(self, title: str, rows: Int64s, values: Mapping[str, Held], stop: threading.Event | None) -> None:
        super().__init__(title, len(rows), stop)
        self._rows, self._values = rows, values

    def _fill(self, block: Block, _: Int64s, position: Int64s) -> None:
        rows = self._rows[position]
        for name, values in self._values.items():
            block.values[name] = rows_of(values, rows, block, self._check_stop)
