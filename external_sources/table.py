"""Rows of tables: a pyarrow Table, or Parquet, Arrow and Feather files.

The law: no value of a table in memory is copied, and only the columns that were asked for are read of files, group by
group. What rows a block gives of files is copied into its slabs, so that a decoded group lives no longer than its
reader's cache of two.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike

from dali_feed.checks import integers_of, of_kind, paths_of
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
    others_in,
    rows_of,
    values_of,
)
from dali_feed.external_sources.file_source import FileSource, images_and_labels
from dali_feed.external_sources.files import FileList
from dali_feed.external_sources.ranges import FileTable
from dali_feed.external_sources.table_files import (
    FileGroups,
    GroupsRead,
    TableGroups,
    check_columns,
    sizes_by_batch,
    table_file,
)
from dali_feed.formats.format import Format
from dali_feed.records.pieces import Pieces, Values, join, nbytes
from dali_feed.records.source import (
    EXTENT_BYTES,
    LABEL,
    Block,
    Int64s,
    Member,
    Reader,
    RowReader,
    Snapshot,
    check_no_pin,
    fixed_snapshot,
    sampled,
)
from dali_feed.storage.paths import matches, named_twice
from dali_feed.storage.store import LOCAL

if TYPE_CHECKING:
    import pyarrow as pa

KEPT = 2  # decoded groups of a reader: two lanes may meet in one
MAPPED = 1024  # those that are no more than views of their file


class Table(FileSource):
    """Rows of a pyarrow Table, or of Parquet, Arrow (IPC, streams) and Feather files, file after file.

    table   a pyarrow Table; or files: a pattern or path, or several, as `ShardSet` takes them
    image   the column of encoded images of batches without `columns=`: binary, paths as string, or a struct of `bytes`
            and `path` as Hugging Face's datasets keep them, where the bytes count if both are there. None: there is
            none, and rows are read with `columns=`
    label   of files, the column of integers beside the images; None for none, "auto": `label` where there is such a
            column
    rows    of a pyarrow Table, in the order wanted; duplicates are allowed. None for all
    name    of a pyarrow Table, for messages
    format  what columns of bytes or texts hold, for `columns=`: column -> format, {"meta": "json"}; a member is then
            `meta:body.label` too. See docs/formats.md

    Members are the columns, and the parts of structs, `image.bytes`. Without `columns=` files give images and labels;
    a pyarrow Table gives dicts of all its columns, with integers as int64, and a null in any makes a bad record.

    A pyarrow Table is one partition. A row group of a Parquet file is one, and a record batch of an Arrow file. Groups
    are read whole, and shuffled in windows of several: `Shuffle(window=...)` says how many. Arrow files are mapped into
    memory: where no batch is compressed and no column is a dictionary, a row costs its own bytes, and rows are shuffled
    over all files. A file that is cut while it is mapped ends the process.

    Raises:
        ConfigError: no table and no path, a file is named twice, rows that the table does not have, an image or rows
            that cannot be; at the first use without `columns=`, a column of a type that is not supported.
        SourceNotFoundError: a pattern matches nothing, or a file is not there.
        SourceEmptyError: a pyarrow Table without rows.
    """

    kind = "Table"

    def __init__(
        self,
        table: pa.Table | str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        image: str | None = "image",
        *,
        label: str | None = "auto",
        rows: ArrayLike | None = None,
        name: str | None = None,
        format: Mapping[str, Format | str] | None = None,  # noqa: A002  what users call it
    ) -> None:
        of_kind("Table: image", image, str)
        of_kind("Table: label", label, str)
        self._image, self._label = image, label
        self._memory: _Memory | None = None
        self._groups: TableGroups | None = None
        if hasattr(table, "schema") or hasattr(table, "columns"):
            if not hasattr(table, "combine_chunks"):  # other tables, and what has yet to be read
                cure = "pyarrow.table(it), it.read() or it.to_table() makes one"
                what = f"found {type(table).__name__}; {cure}"
                raise ConfigError(f"Table: must be a pyarrow Table, or paths of files; {what}")
            if label not in (None, "auto"):
                msg = f"Table: label is of files; a pyarrow Table gives all its columns; found {label!r}; leave it out"
                raise ConfigError(msg)
            super().__init__(f"Table({name or 'table'})", (), LOCAL)
            self.named = self.known = True  # its columns are told without a look at data
            self._names = (name or "table",)
            self._memory = _Memory(table, image, rows, self._title)
        else:
            if isinstance(table, Mapping) or rows is not None or name is not None:
                what = "rows= or name= with files" if not isinstance(table, Mapping) else f"{table!r:.100}"
                msg = f"Table: must be a pyarrow Table, which rows= and name= are of, or paths of files; found {what}"
                raise ConfigError(msg)
            paths = paths_of("Table: files", table)
            files = tuple(path for one in paths for path in matches(one, self.kind, "*.parquet"))
            if not paths or named_twice(files):
                msg = f"Table: each file must be named once, and there must be at least one; found {paths!r:.200}"
                raise ConfigError(msg)
            super().__init__(f"Table({', '.join(paths[:3])}{', ...' if len(paths) > 3 else ''})", files, LOCAL)
        self._formats = formats_of(format, None, self._title)

    def __getstate__(self) -> dict[str, Any]:
        """Without what files said."""
        return super().__getstate__() | {"_groups": None}

    def __len__(self) -> int:
        return int(self.table().counts.sum()) if self._memory is None else len(self._memory.rows)

    def chosen(self, positions: Int64s) -> Table:
        """These rows of a pyarrow Table, in this order; negative positions count from the end, as in NumPy."""
        table, rows = self._in_memory().table, self._in_memory().rows[positions]
        return Table(table, self._image, rows=rows, name=self._names[0], format=self._formats)

    @property
    def preset(self) -> Mapping[str, Any]:
        """Of files `image`, and `label` where there is such a column; of a pyarrow Table all columns, each by its type.

        Raises:
            ConfigError: there is no column of images, labels are no integers, or a column is of a type that batches
                without `columns=` cannot hold.
        """
        known = self.leaves
        if self._memory is None:
            if self._image not in known:
                what = f"no column {self._image!r} among {', '.join(known)}"
                msg = f"{self._title}: without columns= a batch has images; found {what}; give image=, or columns="
                raise ConfigError(msg)
            return images_and_labels(self._title, self._image, self._labels(), self._label)
        if self._image is None:
            what = "found image=None; give image=, or ask for columns="
            msg = f"{self._title}: without columns= a batch has images; {what}"
            raise ConfigError(msg)
        schema = self._memory.table.schema
        check_types(schema, self._image, self._title)
        return {name: column_of(name, known[name].kind, image=name == self._image) for name in schema.names}

    @property
    def image(self) -> str | None:
        """The column of images, where there is one."""
        return self._image if self._image in self.leaves else None

    @property
    def leaves(self) -> Mapping[str, Leaf]:
        """Where each member lies in the table, and of which type it is."""
        return self.groups().known if self._memory is None else self._memory.known

    @property
    def others(self) -> Mapping[str, pa.DataType]:
        """What of a row is no member, by its name, and of which type it is."""
        return others_in(self.groups().schema if self._memory is None else self._memory.table.schema)

    def groups(self) -> TableGroups:
        """All groups of all files; looks at the files where that has not been done."""
        self.table()
        assert self._groups is not None, "made with the table"  # noqa: S101  for type checkers
        return self._groups

    def snapshot(self, pin: Mapping[str, Any] | None = None) -> Snapshot:
        """All rows.

        The fingerprint of files is made of their names, sizes and footers. That of a pyarrow Table is made of the
        columns' names, the numbers, the sizes of all images and texts, the contents of 64 of each, and the names of
        images that lie in files: equal in every process, however the table is chunked and wherever it lies.

        Raises:
            ConfigError: a pin is given, which only a source that changes has; files with other columns; integers of
                more than 64 bits.
            SourceChangedError: a file is not what it was at first. DataLostError: it is gone, or cut.
            SourceNotFoundError: images lie in files, and none of the 64 that were looked at is there.
            SourceError: it is no such file; SourceEmptyError: no row at all.
        """
        if self._memory is not None:
            check_no_pin(self._title, pin, "rows of a table")
            return self._memory.snapshot(self._names)
        table, groups = self._checked_table(), self.groups()
        check_no_pin(self._title, pin, f"{groups.kinds[0]} files")
        if not groups.count.any():
            msg = f"{self._title}: {groups.kinds[0]} files must hold rows; found none in {len(self._paths)} file(s)"
            raise SourceEmptyError(msg)
        record_bytes, most = groups.record_bytes(list(groups.known)), int(groups.count.max())
        places = zip(groups.file.tolist(), groups.nth.tolist(), strict=True)
        names = tuple(f"{self._names[file]}[{nth}]" for file, nth in places)
        return fixed_snapshot(
            *(self._title, names, groups.count, self._fingerprint(table)),
            extent=min(most, max(1, EXTENT_BYTES // record_bytes)) if groups.views else most,
            record_bytes=record_bytes,
            random_access=groups.views,
        )

    def members(self) -> tuple[Member, ...]:
        """The columns, and the parts of structs among them; of files their mean size as the files tell it."""
        if self._memory is not None:
            return self._memory.members()
        groups = self.groups()
        return tuple(Member(name, 1.0, groups.record_bytes([name])) for name in groups.known)

    def can_have(self, member: str) -> bool:
        """Whether the table has it; of a column of paths also the bytes of the files."""
        return member.removesuffix(FILE) in self.leaves

    def lacks(self, member: str) -> str:
        """All rows have all columns."""
        del member
        return "has a null there"

    def format_of(self, member: str) -> Format | None:
        """What was given for the column."""
        return self._formats.get(member)

    def image_of(self, member: str) -> str:
        """A column of paths becomes that of the files' bytes. ConfigError where no image can be made of it."""
        return image_of(self.leaves, member, self._title)

    def reader(self, members: Sequence[str], stop: threading.Event | None = None) -> Reader:
        """A reader for one thread; see `dali_feed.records.source.Source`."""
        self.check_members(members)
        if self._memory is not None:
            values = {member: self._memory.values(member) for member in members}
            return _MemoryReader(self._title, self._memory.rows, values, stop)
        return _GroupReader(self._title, self.groups(), members, stop)

    def file_stamps(self) -> bytes | None:
        """See `dali_feed.records.source.Source.file_stamps`."""
        return None if self._memory is not None else super().file_stamps()

    def where(self, partition: int, position: int) -> str:
        """`train.parquet#1017`, the row in the file; `table#17`, with the path where its image lies in a file."""
        if self._memory is None:
            groups = self.groups()
            return f"{self._names[int(groups.file[partition])]}#{int(groups.first[partition]) + position}"
        row, images = self._memory.rows[position : position + 1], self._memory.images()
        (path,) = images.paths_of(row) if isinstance(images, Files) else (None,)
        return f"{self._names[0]}#{row[0]}" + ("" if path is None else f" ({path})")

    def index(self, path: str) -> FileGroups:
        """See `table_file`."""
        return table_file(path)

    def _tabulated(self, indexes: Sequence[Any]) -> FileTable:
        files = list(indexes)
        for path, its in zip(self._paths, files, strict=True):
            check_columns(path, its.schema, self._paths[0], files[0].schema)
        filled = next((k for k, its in enumerate(files) if len(its)), None)
        if filled is not None and not any(its.sizes for its in files):
            files[filled] = replace(files[filled], sizes=sizes_by_batch(self._paths[filled], files[filled]))
        self._groups = TableGroups.of(self._paths, files)
        counts = np.array([len(its) for its in files], np.int64)
        digests = tuple(its.digest for its in files)
        return FileTable(self.kind, self._paths, self._groups.stamps, digests, counts, np.cumsum(counts) - counts)

    def _fingerprint(self, table: FileTable) -> str:
        digest = hashlib.sha256()
        for name, stamp, footer in zip(self._names, table.stamps, table.digests, strict=True):
            digest.update(f"{name}\0{stamp.size}\0{footer}\n".encode(errors="surrogateescape"))
        return digest.hexdigest()

    def _labels(self) -> str | None:
        """The column of labels. ConfigError where it has no integers."""
        from pyarrow import types

        leaf = None if self._label is None else self.leaves.get(LABEL if self._label == "auto" else self._label)
        if leaf is not None and types.is_integer(leaf.kind):
            return ".".join(leaf.path)
        if self._label in (None, "auto"):
            return None
        what = "no such column" if leaf is None else str(leaf.kind)
        msg = f"{self._title}: label must name a column of integers; found {what} at {self._label!r}; give label=None"
        raise ConfigError(msg)

    def _in_memory(self) -> _Memory:
        if self._memory is None:
            msg = f"{self._title}: rows are chosen of a pyarrow Table; found files"
            raise ConfigError(msg)
        return self._memory


class _GroupReader(RowReader):
    """Reads row groups of Parquet files and record batches of Arrow files, and gives their rows.

    `read` raises DataLostError where a group cannot be read, ConfigError for integers that do not fit in 64 bits.
    """

    def __init__(self, title: str, groups: TableGroups, members: Sequence[str], stop: threading.Event | None) -> None:
        super().__init__(title, groups.count, stop)
        self._table, self._members = groups, tuple(members)
        self._load = GroupsRead(Table.kind, groups, {name: groups.known[name.removesuffix(FILE)] for name in members})
        self._groups: OrderedDict[int, dict[str, Held]] = OrderedDict()
        self._sizes: dict[int, int] = {}  # bytes of each, 0 where it is views of its file

    def close(self) -> None:
        """Nothing stays open between reads. Safe to call twice."""
        super().close()
        self._groups.clear()

    def _fill(self, block: Block, partition: Int64s, position: Int64s) -> None:
        parts: dict[str, list[Values]] = {member: [] for member in self._members}
        cuts = np.flatnonzero(np.diff(partition)) + 1
        for some in np.split(np.arange(len(partition)), cuts) if len(partition) else []:
            first = int(some[0])
            group = self._group(int(partition[first]))
            for member, its in parts.items():
                its.append(rows_of(group[member], position[some], block, self._check_stop, first, copy=True))
        for member, its in parts.items():
            block.values[member] = join(its) if its else []

    def _group(self, group: int) -> dict[str, Held]:
        self._check_stop()
        if group not in self._groups:
            while len(self._groups) >= (MAPPED if self._table.views else KEPT):
                self._sizes.pop(self._groups.popitem(last=False)[0])
            columns, self._sizes[group] = self._load(group, None if self._pool is None else self._pool.most)
            self._groups[group] = {
                name: values_of(column, name.removesuffix(FILE), self._title, files=name.endswith(FILE))
                for name, column in columns.items()
            }
            self._keep(sum(self._sizes.values()))
        self._groups.move_to_end(group)
        return self._groups[group]


class _Memory:
    """A pyarrow Table, and the rows of it that are records, int64 (records,)."""

    def __init__(self, table: pa.Table, image: str | None, rows: ArrayLike | None, title: str) -> None:
        self.table, self._image, self._title = table, image, title
        self.known = members_in(table.schema)
        self._values: dict[str, Held] = {}
        names = table.column_names
        if (image is not None and names.count(image) != 1) or len(set(names)) < len(names):
            msg = (
                f"{title}: a table must have one column {image!r}, of images, and no two columns of the same "
                f"name; found {names}; give image=, or rename columns"
            )
            raise ConfigError(msg)
        if image is not None:
            check_image(table.schema.field(image).type, image, title)
        self.rows = np.arange(table.num_rows, dtype=np.int64) if rows is None else self._checked(rows)
        if not len(self.rows):
            msg = f"{title}: must have at least one row; found none"
            raise SourceEmptyError(msg)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_values": {}}

    def _checked(self, rows: ArrayLike) -> Int64s:
        count, array = self.table.num_rows, integers_of(f"{self._title}: rows", rows)
        wrong = array.dtype.kind not in "iu" or array.ndim != 1
        if array.size and (wrong or array.min() < 0 or array.max() >= count):
            what = f"{array.dtype} of shape {array.shape}" if wrong else f"{array.min()}..{array.max()}"
            msg = f"{self._title}: rows must be a flat sequence of integers in 0..{count - 1}; found {what}"
            raise ConfigError(msg)
        return array.astype(np.int64)

    def values(self, member: str) -> Held:
        """A member's values, taken out of the table once."""
        if member not in self._values:  # two threads may do it at once, and one of them in vain
            name = member.removesuffix(FILE)
            column = self.known[name].of(self.table)
            self._values[member] = values_of(column, name, self._title, files=name != member)
        return self._values[member]

    def images(self) -> Held | None:
        """The encoded images, where there is a column of them."""
        return None if self._image is None else self.values(image_of(self.known, self._image, self._title))

    def members(self) -> tuple[Member, ...]:
        """The table's columns, and the parts of structs among them."""
        rows = max(1, self.table.num_rows)
        columns = ((name, leaf.of(self.table)) for name, leaf in self.known.items())
        return tuple(Member(name, 1 - column.null_count / rows, column.nbytes // rows) for name, column in columns)

    def snapshot(self, names: tuple[str, ...]) -> Snapshot:
        """See `Table.snapshot`."""
        record_bytes, counts = self.mean_size(), np.array([len(self.rows)], np.int64)
        extent = max(1, EXTENT_BYTES // record_bytes)
        return fixed_snapshot(self._title, names, counts, self.fingerprint(), extent=extent, record_bytes=record_bytes)

    def fingerprint(self) -> str:
        """See `Table.snapshot`."""
        digest = hashlib.sha256()
        for part in () if (images := self.images()) is None else contents_of(images, self.rows):
            digest.update(part)
        for name, leaf in self.known.items():
            if leaf.path[0] != self._image:
                digest.update(f"\0{name}\0".encode())
                for part in contents_of(self.values(name), self.rows):
                    digest.update(part)
        return digest.hexdigest()

    def mean_size(self) -> int:
        """Of some images; of a table that has none, of some rows' texts, bytes and lists."""
        spread = self.rows[sampled(len(self.rows))]
        images = self.images()
        if images is None:
            every = [self.values(name) for name in self.known]
            some = [nbytes(its.own[spread] if isinstance(its, Files) else its[spread]) for its in every]
            return max(1, round(sum(some) / len(spread)))
        own = images.own[spread] if isinstance(images, Files) else cast("Pieces", images)[spread]
        if not own.missing.all():
            return max(1, round(float(own.size[~own.missing].mean())))
        paths = [path for path in images.paths_of(spread) if path is not None] if isinstance(images, Files) else []
        return FileList(paths).snapshot().record_bytes if paths else 1


class _MemoryReader(RowReader):
    """Gives views of the table's buffers, and reads the files that it names."""

    def __init__(self, title: str, rows: Int64s, values: Mapping[str, Held], stop: threading.Event | None) -> None:
        super().__init__(title, len(rows), stop)
        self._rows, self._values = rows, values

    def _fill(self, block: Block, _: Int64s, position: Int64s) -> None:
        rows = self._rows[position]
        for name, values in self._values.items():
            block.values[name] = rows_of(values, rows, block, self._check_stop)
