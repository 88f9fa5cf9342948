"""Rows of files of tables, which are read group by group: what Parquet files and Arrow files have in common."""

from __future__ import annotations

import functools
import hashlib
import os
import struct
import threading
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NoReturn

import numpy as np

from dali_feed.checks import paths_of
from dali_feed.columns.request import formats_of
from dali_feed.errors import ConfigError, DataLostError, SourceEmptyError, SourceError
from dali_feed.external_sources.arrow_values import (
    FILE,
    Held,
    Leaf,
    image_of,
    members_in,
    rows_of,
    values_of,
)
from dali_feed.external_sources.file_source import EXTENT_BYTES, FileSource, images_and_labels
from dali_feed.external_sources.ranges import FileTable, RowReader, Spans, check_file
from dali_feed.formats.format import Format
from dali_feed.packages import needed
from dali_feed.records.source import LABEL, Block, Int64s, Member, Reader, Snapshot
from dali_feed.records.values import Values, join
from dali_feed.storage.local import LOCAL
from dali_feed.storage.paths import matches
from dali_feed.storage.store import File, Stamp, read_at

__all__ = ["ArrowFiles", "ParquetRows", "messages"]


# What files of tables say of themselves: their columns, and the groups of rows that they are read by.


@dataclass(frozen=True, slots=True)
class FileGroups:
    """What a file says of itself.

    rows    of each of its groups
    digest  of the footer, or what it has instead
    sizes   bytes of each column of all its rows, by dotted path, as far as they are looked at
    views   whether rows are read where they lie, so that one costs no more than its own bytes
    """

    stamp: Stamp
    rows: tuple[int, ...]
    schema: Any
    digest: str
    sizes: Mapping[str, float]
    views: bool = False

    def __len__(self) -> int:
        return sum(self.rows)


@dataclass(frozen=True, slots=True)
class Groups:
    """All row groups, or record batches, of all files, file after file.

    file   which file a group is in, int64 (groups,); `nth` is its number there, `first` the file's row it begins at
    count  rows of each group
    known  the members of a row
    bytes  of each column, a leaf's dotted path: bytes of a row, a mean
    views  see `FileGroups`
    """

    paths: tuple[str, ...]
    stamps: tuple[Stamp, ...]
    file: Int64s
    nth: Int64s
    first: Int64s
    count: Int64s
    known: dict[str, Leaf]
    bytes: dict[str, float]
    views: bool

    @classmethod
    def of(cls, paths: tuple[str, ...], files: Sequence[FileGroups]) -> Groups:
        """Those of the first file, of the second, ..."""
        groups = np.array([len(its.rows) for its in files], np.int64)
        file = np.repeat(np.arange(len(files), dtype=np.int64), groups)
        begins = (np.cumsum(groups) - groups)[file]  # the first group of each group's file
        count = np.array([n for its in files for n in its.rows], np.int64)
        before = np.cumsum(count) - count
        nth, first = np.arange(len(count), dtype=np.int64) - begins, before - before[begins]
        looked = max(1, sum(len(its) for its in files if its.sizes))
        names = dict.fromkeys(name for its in files for name in its.sizes)
        sizes = {name: sum(its.sizes.get(name, 0) for its in files) / looked for name in names}
        known, views = members_in(files[0].schema), all(its.views for its in files)
        return cls(paths, tuple(its.stamp for its in files), file, nth, first, count, known, sizes, views)

    def columns(self, members: Sequence[str]) -> list[str]:
        """The columns that these members are read from."""
        return list(dict.fromkeys(".".join(self.known[name].path) for name in members))

    def record_bytes(self, members: Sequence[str]) -> int:
        """The mean size of these members of a row, as the files tell it."""
        parts = self.columns(members)
        inside = [size for name, size in self.bytes.items() if any(f"{name}.".startswith(f"{part}.") for part in parts)]
        return max(1, round(sum(inside)))


def damage() -> tuple[type[BaseException], ...]:
    """What pyarrow raises where a file is not what it should be."""
    import pyarrow as pa

    return (pa.ArrowException, OSError, ValueError, MemoryError)


def check_columns(path: str, found: Any, first: str, schema: Any) -> None:
    """Raise ConfigError where the file at `path` has other columns than the one at `first`."""
    if not found.equals(schema):
        odd = next((str(a) for a, b in zip(found, schema, strict=False) if not a.equals(b)), f"{len(found)} columns")
        msg = f"{path}: all files must have the columns of {first}; found {odd}; make a source of each kind"
        raise ConfigError(msg)


# Reads row groups of Parquet files and record batches of Arrow files, and gives their rows.
#
# The law: a group is what is read, only the columns that were asked for, and what is damaged: it is checked, and a
# group that cannot be read concerns all of its rows, so it is raised and no row of it is given. What rows a block gives
# is copied into its slabs, so that a decoded group lives no longer than its reader's cache of two.


KEPT = 2  # decoded groups of a reader: two lanes may meet in one
MAPPED = 1024  # those that are no more than views of their file

ReadGroup = Callable[[int, list[str]], Any]  # these columns of a group, as a pyarrow Table


class GroupReader(RowReader):
    """One thread's reader; see `dali_feed.records.source.Reader`.

    `read` raises DataLostError where a group cannot be read, ConfigError for integers that do not fit in 64 bits.
    """

    def __init__(
        self, source: GroupRows, groups: Groups, read: ReadGroup, members: Sequence[str], stop: threading.Event | None
    ) -> None:
        super().__init__(repr(source), groups.count, stop)
        self._source, self._table, self._load, self._members = source, groups, read, tuple(members)
        self._columns = groups.columns([member.removesuffix(FILE) for member in members])
        self._groups: OrderedDict[int, dict[str, Held]] = OrderedDict()

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
            self._groups[group] = self._read(group)
            if len(self._groups) > (MAPPED if self._table.views else KEPT):
                self._groups.popitem(last=False)
        self._groups.move_to_end(group)
        return self._groups[group]

    def _read(self, group: int) -> dict[str, Held]:
        table, n = self._table, int(self._table.file[group])
        path, stamp = table.paths[n], table.stamps[n]
        check_file(LOCAL, path, stamp, self._source.kind)
        try:
            found = self._load(group, self._columns)
            if len(found) != table.count[group]:
                self._lost(path, group, f"{len(found)} rows")
            columns = {name: table.known[name.removesuffix(FILE)].of(found) for name in self._members}
        except damage() as error:
            check_file(LOCAL, path, stamp, self._source.kind)
            self._lost(path, group, str(error), error)
        check_file(LOCAL, path, stamp, self._source.kind)
        return {
            name: values_of(column, name.removesuffix(FILE), self._title, files=name.endswith(FILE))
            for name, column in columns.items()
        }

    def _lost(self, path: str, group: int, what: str, error: BaseException | None = None) -> NoReturn:
        first, count = int(self._table.first[group]), int(self._table.count[group])
        nth, rows = int(self._table.nth[group]), f"rows {first}..{first + count - 1}"
        named = f"{path}#{first}: {self._source.group} {nth}, {rows}"
        msg = f"{named}, must be readable; found: {what}; fetch or write the file again"
        raise DataLostError(msg) from error


class GroupRows(FileSource):
    """Rows of files, file after file; a group of rows is a partition. See `ParquetRows` and `ArrowFiles`.

    A subclass has `index`, which looks at a file, and `opened`, what reads groups for one reader.
    """

    group: ClassVar[str]  # what such a part is called in messages
    _kind: ClassVar[str]  # of its files
    _files: ClassVar[str]  # how those of a folder are named together

    def __init__(
        self,
        files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        image: str | None = "image",
        label: str | None = "auto",
        *,
        format: Mapping[str, Format | str] | None = None,  # noqa: A002  what users call it
    ) -> None:
        named = paths_of(f"{self.kind}: files", files)
        paths = tuple(path for one in named for path in matches(one, self.kind, self._files))
        if not named or len(set(paths)) < len(paths):
            msg = f"{self.kind}: each file must be named once, and there must be at least one; found {named!r:.200}"
            raise ConfigError(msg)
        super().__init__(f"{self.kind}({', '.join(named[:3])}{', ...' if len(named) > 3 else ''})", paths, LOCAL)
        self._image, self._label = image, label
        self._formats = formats_of(format, None, self._title)
        self._groups: Groups | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without what the files said."""
        return super().__getstate__() | {"_groups": None}

    @abstractmethod
    def opened(self, groups: Groups) -> ReadGroup:
        """What reads groups, for one reader."""

    def __len__(self) -> int:
        return int(self.table().counts.sum())

    @property
    def preset(self) -> Mapping[str, Any]:
        """`image`, and `label` where there is such a column.

        Raises:
            ConfigError: there is no such column of images, or the labels are no integers.
        """
        known = self.groups().known
        if self._image not in known:
            found = f"no column {self._image!r} among {', '.join(known)}"
            msg = f"{self._title}: without columns= a batch has images; found {found}; give image=, or columns="
            raise ConfigError(msg)
        return images_and_labels(self._title, self._image, self._labels())

    def groups(self) -> Groups:
        """All groups of all files; looks at the files where that has not been done."""
        self.table()
        assert self._groups is not None, "made with the table"  # noqa: S101  for type checkers
        return self._groups

    def snapshot(self, pin: Mapping[str, Any] | None = None) -> Snapshot:
        """All rows. The fingerprint is made of the files' names, sizes and footers.

        Raises:
            ConfigError: a pin is given, which only a source that changes has; files with other columns.
            SourceChangedError: a file is not what it was at first. DataLostError: it is gone, or cut.
            SourceError: it is no such file; SourceEmptyError: no row at all.
        """
        if pin is not None:
            msg = f"{self._title}: {self._kind} files are fixed and take no pin; found {dict(pin)!r}"
            raise ConfigError(msg)
        table, groups = self._checked_table(), self.groups()
        if not groups.count.any():
            msg = f"{self._title}: {self._kind} files must hold rows; found none in {len(self._paths)} file(s)"
            raise SourceEmptyError(msg)
        record_bytes, most = groups.record_bytes(list(groups.known)), int(groups.count.max())
        places = zip(groups.file.tolist(), groups.nth.tolist(), strict=True)
        return Snapshot(
            source=self._title,
            names=tuple(f"{self._names[file]}[{nth}]" for file, nth in places),
            starts=np.zeros(len(groups.count), np.int64),
            stops=groups.count.copy(),
            extent=min(most, max(1, EXTENT_BYTES // record_bytes)) if groups.views else most,
            record_bytes=record_bytes,
            random_access=groups.views,
            interleaved=False,
            fingerprint=self._fingerprint(table),
        )

    def members(self) -> tuple[Member, ...]:
        """The columns, and the parts of structs among them; their mean size as the files tell it."""
        groups = self.groups()
        return tuple(Member(name, 1.0, groups.record_bytes([name])) for name in groups.known)

    def can_have(self, member: str) -> bool:
        """Whether the files have it; of a column of paths also the bytes of the files."""
        return member.removesuffix(FILE) in self.groups().known

    def format_of(self, member: str) -> Format | None:
        """What was given for the column."""
        return self._formats.get(member)

    def image_of(self, member: str) -> str:
        """A column of paths becomes that of the files' bytes. ConfigError where no image can be made of it."""
        return image_of(self.groups().known, member, self._title)

    def reader(self, members: Sequence[str], stop: threading.Event | None = None) -> Reader:
        """A reader for one thread; see `dali_feed.records.source.Source`."""
        self.check_members(members)
        groups = self.groups()
        return GroupReader(self, groups, self.opened(groups), members, stop)

    def where(self, partition: int, position: int) -> str:
        """`train.parquet#1017`, the row in the file."""
        groups = self.groups()
        return f"{self._names[int(groups.file[partition])]}#{int(groups.first[partition]) + position}"

    def spans_of(self, indexes: Sequence[Any], members: tuple[str, ...]) -> Spans:
        """Groups are read, and no spans."""
        raise NotImplementedError

    def sizes_of(self, indexes: Sequence[Any]) -> tuple[int, int]:
        """Of groups a snapshot says more."""
        del indexes
        return 1, 1

    def _tabulated(self, indexes: Sequence[Any]) -> FileTable:
        for path, its in zip(self._paths, indexes, strict=True):
            check_columns(path, its.schema, self._paths[0], indexes[0].schema)
        self._groups = Groups.of(self._paths, indexes)
        counts = np.array([len(its) for its in indexes], np.int64)
        digests = tuple(its.digest for its in indexes)
        return FileTable(self.kind, self._paths, self._groups.stamps, digests, counts, np.cumsum(counts) - counts)

    def _fingerprint(self, table: FileTable) -> str:
        digest = hashlib.sha256()
        for name, stamp, footer in zip(self._names, table.stamps, table.digests, strict=True):
            digest.update(f"{name}\0{stamp.size}\0{footer}\n".encode(errors="surrogateescape"))
        return digest.hexdigest()

    def _labels(self) -> str | None:
        """The column of labels. ConfigError where it has no integers."""
        from pyarrow import types

        leaf = None if self._label is None else self.groups().known.get(LABEL if self._label == "auto" else self._label)
        if leaf is not None and types.is_integer(leaf.kind):
            return ".".join(leaf.path)
        if self._label in (None, "auto"):
            return None
        found = "no such column" if leaf is None else str(leaf.kind)
        msg = f"{self._title}: label must name a column of integers; found {found} at {self._label!r}; give label=None"
        raise ConfigError(msg)


# What Parquet files say of themselves: their columns and row groups, from their footers alone.


_END = b"PAR1"
PARSED = 256  # footers that a process keeps parsed: a shuffle goes through many files at once
_NARROW = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}


def parquet_groups(path: str) -> FileGroups:
    """What the footer of a file says.

    Raises:
        SourceDeniedError, SourceNotFoundError: the file cannot be opened.
        DataLostError: it is cut off. SourceError: it is no Parquet file.
    """
    with needed():
        import pyarrow.parquet as pq
    stamp, footer = _footer(path)
    try:
        meta = pq.read_metadata(path)
        schema = meta.schema.to_arrow_schema().remove_metadata()
        groups = [meta.row_group(group) for group in range(meta.num_row_groups)]
        sizes: dict[str, float] = {}
        for group in groups:  # names are decoded here, and may be damaged too
            for name, size in _sizes(group).items():
                sizes[name] = sizes.get(name, 0) + size
    except damage() as error:
        msg = f"{path}: the footer of a Parquet file must be readable; found: {error}; fetch or write it again"
        raise DataLostError(msg) from error
    rows = tuple(group.num_rows for group in groups)
    return FileGroups(stamp, rows, schema, hashlib.sha256(footer).hexdigest(), sizes)


def read_group(table: Groups, group: int, columns: list[str]) -> Any:
    """These columns of a row group, its pages checked where they carry a checksum. Raises what `damage` says."""
    import pyarrow.parquet as pq

    n = int(table.file[group])
    meta = _parsed(table.paths[n], table.stamps[n])
    with pq.ParquetFile(table.paths[n], metadata=meta, page_checksum_verification=True) as file:
        return file.read_row_group(int(table.nth[group]), columns=columns, use_threads=False)


@functools.lru_cache(maxsize=PARSED)
def _parsed(path: str, stamp: Stamp) -> Any:
    """The footer of the file that has that stamp, parsed once, as it says where all of the groups lie."""
    import pyarrow.parquet as pq

    del stamp  # whoever reads compares it with the file's, before and after
    return pq.read_metadata(path)


def _sizes(group: Any) -> dict[str, int]:
    """Bytes of each column of a row group, decoded; numbers that are all alike take next to none in the file."""
    columns = [group.column(n) for n in range(group.num_columns)]
    return {
        column.path_in_schema: max(
            _NARROW.get(column.physical_type, 0) * column.num_values, column.total_uncompressed_size
        )
        for column in columns
    }


def _footer(path: str) -> tuple[Stamp, bytes]:
    file = LOCAL.open(path)
    try:
        stamp = file.stamp()
        head, end = read_at(file, 4, 0), read_at(file, 8, max(0, stamp.size - 8))
        if head != _END:
            msg = f"{path}: a Parquet file begins with {_END!r}; found {head!r} in {stamp.size} bytes; check the path"
            raise SourceError(msg)
        size = int.from_bytes(end[:4], "little")
        if end[4:] != _END or size > stamp.size - 12:
            found = f"that it was cut off at byte {stamp.size}"
            msg = f"{path}: a Parquet file ends with a footer and {_END!r}; found {found}; fetch it again"
            raise DataLostError(msg)
        return stamp, read_at(file, size, stamp.size - 8 - size)
    finally:
        file.close()


# Rows of Parquet files: a row group is an extent, read by one reader, and only the columns that were asked for.


class ParquetRows(GroupRows):
    """Rows of Parquet files, file after file. A row group is a partition.

    files   a pattern or path, or several, as `ShardSet` takes them
    image   the column of encoded images of batches without `columns=`: binary, paths as string, or a struct of `bytes`
            and `path` as Hugging Face's datasets keep them. None: there is none
    label   the column of integers beside them; None for none, "auto": `label` where there is such a column
    format  what columns of bytes or texts hold, for `columns=`: column -> format; see docs/formats.md

    Shuffling is by row groups, in windows of several: `Shuffle(window=...)` says how many. Its members are its columns,
    and the parts of structs, `image.bytes`.

    Raises:
        ConfigError: a file is named twice. SourceNotFoundError: a pattern matches nothing, or a file is not there.
    """

    kind, group, _kind, _files = "ParquetRows", "row group", "Parquet", "*.parquet"

    def index(self, path: str) -> FileGroups:
        """See `parquet_groups`."""
        return parquet_groups(path)

    def opened(self, groups: Groups) -> ReadGroup:
        """See `read_group`."""
        return partial(read_group, groups)


# The messages of an Arrow file or stream: where each lies and how many rows it holds, from their headers alone.
#
# As the Arrow columnar format's page "Serialization and interprocess communication" has it: a stream is messages, each
# a marker, the length of its header, the header as a flatbuffer, and its body; a file is a stream between a magic and a
# footer. Both are read by their messages, so a footer is needed only to tell where the messages must end.


SCHEMA, DICTIONARY, BATCH = 1, 2, 3
_MAGIC, _OLD, _MARK = b"ARROW1", b"FEA1", b"\xff\xff\xff\xff"
_HEADER = 2**28  # bytes; no header is near it


@dataclass(frozen=True, slots=True)
class ArrowMessage:
    """One: its kind, where it begins and ends in the file, its header, and of a batch its rows.

    packed  whether its body is compressed
    """

    kind: int
    start: int
    stop: int
    header: bytes
    rows: int = 0
    packed: bool = False


def messages(path: str, file: File, size: int) -> Iterator[ArrowMessage]:
    """All of them in order, the schema first.

    Raises:
        SourceError: it is no Arrow file. DataLostError: it is cut off, or a header is damaged.
    """
    at, end = _span(path, file, size)
    first = True
    while at < end:
        head = read_at(file, 8, at)
        length = int.from_bytes(head[4:8], "little")
        if len(head) == 8 and head[:4] == _MARK and not length and not first:
            if at + 8 != end:
                _lost(path, f"the mark of the end at byte {at}, and the end at {end}")
            return
        if len(head) < 8 or head[:4] != _MARK or not 0 < length < _HEADER or at + 8 + length > end:
            _lost(path, f"no message at byte {at} of {end}")
        header = read_at(file, length, at + 8)
        try:
            kind, rows, body, packed = _read(header)
        except (struct.error, IndexError) as error:
            _lost(path, f"a damaged header at byte {at}", error)
        stop = at + 8 + length + body
        if body < 0 or rows < 0 or stop > end or (kind == SCHEMA) != first or kind not in (SCHEMA, DICTIONARY, BATCH):
            _lost(path, f"at byte {at} a message that is damaged, or does not end within the file's {size} bytes")
        yield ArrowMessage(kind, at, stop, header, rows, packed)
        at, first = stop, False
    _lost(path, f"no mark of the end in {size} bytes")


def _span(path: str, file: File, size: int) -> tuple[int, int]:
    """Where the messages begin, and where they end."""
    head = read_at(file, 8, 0)
    if head[:4] == _MARK:
        return 0, size
    if head[:4] == _OLD:
        msg = f"{path}: Feather must be of version 2; found version 1; write it again with pyarrow.feather"
        raise SourceError(msg)
    if head[:6] != _MAGIC:
        msg = f"{path}: an Arrow file begins with {_MAGIC!r}, a stream with {_MARK!r}; found {head!r}; check the path"
        raise SourceError(msg)
    tail = read_at(file, 10, max(0, size - 10))
    footer = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or footer > size - 18:
        _lost(path, f"no footer at byte {size}")
    return 8, size - 10 - footer


def _lost(path: str, found: str, error: BaseException | None = None) -> NoReturn:
    msg = (
        f"{path}: the messages of an Arrow file must be whole, up to their end; found {found}; fetch or write it again"
    )
    raise DataLostError(msg) from error


def _read(header: bytes) -> tuple[int, int, int, bool]:
    """Kind, rows, bytes of the body, whether that is compressed; of the flatbuffer `ArrowMessage`."""
    top = struct.unpack_from("<I", header, 0)[0]
    at = [_slot(header, top, n) for n in range(4)]
    kind = 0 if at[1] is None else header[at[1]]
    body = 0 if at[3] is None else struct.unpack_from("<q", header, at[3])[0]
    if kind != BATCH or at[2] is None:
        return kind, 0, body, False
    batch = at[2] + struct.unpack_from("<I", header, at[2])[0]
    length, nodes = _slot(header, batch, 0), _slot(header, batch, 1)
    rows = 0 if length is None else struct.unpack_from("<q", header, length)[0]
    if nodes is not None:
        first = nodes + struct.unpack_from("<I", header, nodes)[0]
        if struct.unpack_from("<I", header, first)[0] and struct.unpack_from("<q", header, first + 4)[0] != rows:
            rows = -1  # the first column has another length: nobody should make room for what a flipped bit says
    return kind, rows, body, _slot(header, batch, 3) is not None


def _slot(buffer: bytes, table: int, n: int) -> int | None:
    """Where field `n` of a flatbuffer's table lies, None where it has its default."""
    names = table - struct.unpack_from("<i", buffer, table)[0]
    if names < 0 or 6 + 2 * n > struct.unpack_from("<H", buffer, names)[0]:
        return None
    offset = struct.unpack_from("<H", buffer, names + 4 + 2 * n)[0]
    return table + offset if offset else None


# Rows of Arrow files: IPC files, streams and Feather, read record batch by record batch.


_LOOKS, _LOOK = 8, 64  # of a batch's body, for the fingerprint: how many pieces, and their bytes


class ArrowFiles(GroupRows):
    """Rows of Arrow IPC files, streams and Feather files, file after file. A record batch is a partition.

    files   a pattern or path, or several, as `ShardSet` takes them
    image   the column of encoded images of batches without `columns=`: binary, paths as string, or a struct of `bytes`
            and `path` as Hugging Face's datasets keep them. None: there is none
    label   the column of integers beside them; None for none, "auto": `label` where there is such a column
    format  what columns of bytes or texts hold, for `columns=`: column -> format; see docs/formats.md

    Files are mapped into memory. Where no batch is compressed and no column is a dictionary, a row costs its own bytes,
    and rows are shuffled over all files; else a batch is read whole, as `ParquetRows` reads a row group. Its members
    are its columns, and the parts of structs, `image.bytes`. A file that is cut while it is mapped ends the process.

    Raises:
        ConfigError: a file is named twice. SourceNotFoundError: a pattern matches nothing, or a file is not there.
    """

    kind, group, _kind, _files = "ArrowFiles", "record batch", "Arrow", "*.arrow"

    def index(self, path: str) -> FileGroups:
        """See `arrow_groups`."""
        return arrow_groups(path)

    def opened(self, groups: Groups) -> ReadGroup:
        """What keeps the files mapped."""
        return _Batches(groups)

    def _tabulated(self, indexes: Sequence[Any]) -> FileTable:
        files = list(indexes)
        filled = next((k for k, its in enumerate(files) if len(its)), None)
        if filled is not None:
            files[filled] = replace(files[filled], sizes=_looked_at(self._paths[filled], files[filled]))
        return super()._tabulated(files)


class _Batches:
    """Reads record batches of mapped files, for one reader."""

    def __init__(self, table: Groups) -> None:
        self._table = table
        self._open: dict[int, tuple[Any, list[ArrowMessage], list[int]]] = {}

    def __call__(self, group: int, columns: list[str]) -> Any:
        """These columns of a batch, checked: views of the file where it is not compressed. Raises as `damage` says."""
        n = int(self._table.file[group])
        if n not in self._open:
            path, stamp = self._table.paths[n], self._table.stamps[n]
            found, _ = _walked(path, stamp.size)
            self._open[n] = (_mapped(path), found, [k for k, one in enumerate(found) if one.kind == BATCH])
        buffer, found, batches = self._open[n]
        return _batch(buffer, found, batches[int(self._table.nth[group])], columns)


def _mapped(path: str) -> Any:
    import pyarrow as pa

    with pa.memory_map(path) as file:
        return file.read_buffer()


def _batch(buffer: Any, found: Sequence[ArrowMessage], k: int, columns: list[str] | None) -> Any:
    """Columns of the batch that message k is, None for all; checked, so that no offset leads out of it."""
    import pyarrow as pa

    own = found[k]
    schema = pa.ipc.read_schema(pa.py_buffer(_framed(found[0].header)))
    names = [name for name in schema.names if columns is None or any(_is_in(one, name) for one in columns)]
    dictionaries = [one for one in found[:k] if one.kind == DICTIONARY]  # a stream may replace one later
    if own.packed or dictionaries:
        parts = [found[0], *dictionaries, own]
        stream = b"".join(memoryview(buffer)[one.start : one.stop] for one in parts)
        options = pa.ipc.IpcReadOptions(included_fields=[schema.names.index(name) for name in names], use_threads=False)
        with pa.ipc.open_stream(pa.py_buffer(stream), options=options) as reader:
            batch = reader.read_next_batch()
    else:
        message = pa.ipc.read_message(buffer.slice(own.start, own.stop - own.start))
        batch = pa.ipc.read_record_batch(message, schema).select(names)
    batch.validate(full=True)
    return pa.Table.from_batches([batch])


def _is_in(column: str, name: str) -> bool:
    return column == name or column.startswith(f"{name}.")


def _framed(header: bytes) -> bytes:
    return b"\xff\xff\xff\xff" + len(header).to_bytes(4, "little") + header


def _walked(path: str, size: int) -> tuple[list[ArrowMessage], str]:
    """The file's messages, and a digest of their headers and of pieces of their bodies."""
    file = LOCAL.open(path)
    try:
        found, digest = [], hashlib.sha256()
        for one in messages(path, file, size):
            found.append(one)
            digest.update(one.header)
            _look(file, one, digest)
        return found, digest.hexdigest()
    finally:
        file.close()


def _look(file: File, one: ArrowMessage, digest: Any) -> None:
    """Add some of the body: headers alone are alike of numbers that are not."""
    start = one.start + 8 + len(one.header)
    for at in np.linspace(start, max(start, one.stop - _LOOK), _LOOKS).astype(np.int64).tolist():
        digest.update(read_at(file, min(_LOOK, one.stop - at), at))


def arrow_groups(path: str) -> FileGroups:
    """What the messages of a file say.

    Raises:
        SourceDeniedError, SourceNotFoundError: the file cannot be opened.
        DataLostError: it is cut off or damaged. SourceError: it is no Arrow file.
    """
    with needed():
        import pyarrow as pa
    opened = LOCAL.open(path)
    try:
        stamp = opened.stamp()
    finally:
        opened.close()
    found, digest = _walked(path, stamp.size)
    batches = [k for k, one in enumerate(found) if one.kind == BATCH]
    rows = tuple(found[k].rows for k in batches)
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(_framed(found[0].header))).remove_metadata()
        schema = pa.schema([part.remove_metadata() for part in schema])
    except damage() as error:
        raise _unreadable(path, error) from error
    views = all(one.kind in (SCHEMA, BATCH) and not one.packed for one in found)
    return FileGroups(stamp, rows, schema, digest, {}, views)


def _looked_at(path: str, its: FileGroups) -> dict[str, float]:
    """Bytes of each column of all rows of a file, by its first batch with any. DataLostError where that is damaged."""
    found, _ = _walked(path, its.stamp.size)
    batches = [k for k, one in enumerate(found) if one.kind == BATCH and one.rows]
    leaves = {name: leaf for name, leaf in members_in(its.schema).items() if not leaf.is_struct}
    try:
        sample = _batch(_mapped(path), found, batches[0], None)
        return {name: leaf.of(sample).nbytes / len(sample) * len(its) for name, leaf in leaves.items()}
    except damage() as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: BaseException) -> DataLostError:
    return DataLostError(
        f"{path}: an Arrow file's schema and batches must be readable; found: {error}; fetch or write it again"
    )
