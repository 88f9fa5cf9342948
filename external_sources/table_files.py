"""Files of tables: what Parquet, Arrow and Feather files say of themselves, and their groups of rows, as they are read.

The law: a group is what is read, only the columns that were asked for, and what is damaged: it is checked, and a group
that cannot be read concerns all of its rows.
"""

from __future__ import annotations

import functools
import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import numpy as np

from dali_feed.errors import ConfigError, DataLostError, SourceError
from dali_feed.external_sources.arrow_values import Leaf, is_number, members_in
from dali_feed.external_sources.ranges import check_file
from dali_feed.packages import needed
from dali_feed.records.source import Int64s
from dali_feed.storage.store import LOCAL, File, Stamp, read_at

PIECE_ROWS = 1024  # of a row group whose size its footer does not say
Kind = Literal["Parquet", "Arrow"]
GROUP: dict[Kind, str] = {"Parquet": "row group", "Arrow": "record batch"}  # what messages call a group


@dataclass(frozen=True, slots=True)
class FileGroups:
    """What a file says of itself.

    kind    of file: Arrow's are IPC files, streams and Feather
    rows    of each of its groups
    digest  of the footer, or what it has instead
    sizes   bytes of each column of all its rows, by dotted path, as far as they are looked at
    views   whether rows are read where they lie, so that one costs no more than its own bytes
    """

    kind: Kind
    stamp: Stamp
    rows: tuple[int, ...]
    schema: Any
    digest: str
    sizes: Mapping[str, float]
    views: bool = False

    def __len__(self) -> int:
        return sum(self.rows)


@dataclass(frozen=True, slots=True)
class TableGroups:
    """All row groups, or record batches, of all files, file after file.

    file   which file a group is in, int64 (groups,); `nth` is its number there, `first` the file's row it begins at
    count  rows of each group
    schema of the rows, as pyarrow has it; `known`: their members
    bytes  of each column, a leaf's dotted path: bytes of a row, a mean
    views  see `FileGroups`
    """

    paths: tuple[str, ...]
    kinds: tuple[Kind, ...]
    stamps: tuple[Stamp, ...]
    file: Int64s
    nth: Int64s
    first: Int64s
    count: Int64s
    schema: Any
    known: dict[str, Leaf]
    bytes: dict[str, float]
    views: bool

    @classmethod
    def of(cls, paths: tuple[str, ...], files: Sequence[FileGroups]) -> TableGroups:
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
        schema, views = files[0].schema, all(its.views for its in files)
        kinds, stamps = tuple(its.kind for its in files), tuple(its.stamp for its in files)
        return cls(paths, kinds, stamps, file, nth, first, count, schema, members_in(schema), sizes, views)

    def record_bytes(self, members: Sequence[str]) -> int:
        """The mean size of these members of a row, as the files tell it."""
        parts = {".".join(self.known[name].path) for name in members}
        inside = [size for name, size in self.bytes.items() if any(f"{name}.".startswith(f"{part}.") for part in parts)]
        return max(1, round(sum(inside)))

    def named(self, group: int) -> str:
        """A group as messages name it: `a.parquet#14: row group 2, rows 14..20`."""
        n, first = int(self.file[group]), int(self.first[group])
        what = f"{GROUP[self.kinds[n]]} {self.nth[group]}, rows {first}..{first + int(self.count[group]) - 1}"
        return f"{self.paths[n]}#{first}: {what}"


def table_file(path: str) -> FileGroups:
    """What a file says of itself. DataLostError where it is damaged, SourceError where it is no file of a table."""
    with closing(LOCAL.open(path)) as file:
        stamp = file.stamp()
        if read_at(file, 4, 0) == _END:
            return _parquet(path, file, stamp)
        return _arrow(path, file, stamp)


class GroupsRead:
    """Reads some columns of groups for one reader; Arrow files stay mapped.

    columns  by a name of the caller's where each lies, and of which type its values are
    """

    def __init__(self, kind: str, groups: TableGroups, columns: Mapping[str, Leaf]) -> None:
        self._kind, self._groups, self._columns = kind, groups, columns
        self._names = list(dict.fromkeys(".".join(leaf.path) for leaf in columns.values()))
        self._mapped: dict[int, tuple[Any, list[ArrowMessage], list[int]]] = {}

    def __call__(self, group: int, most: int | None) -> tuple[dict[str, Any], int]:
        """The columns of a group, pyarrow's ChunkedArray each, and the bytes that they take beside their file.

        Raises DataLostError where it cannot be read, SourceChangedError where its file is another one, and ConfigError
        where it takes more than `most` bytes, before all of them have been made.
        """
        groups, n = self._groups, int(self._groups.file[group])
        path, stamp = groups.paths[n], groups.stamps[n]
        parts: dict[str, list[Any]] = {name: [] for name in self._columns}
        rows = size = 0
        check_file(LOCAL, path, stamp, self._kind)
        try:
            for some in self._pieces(n, int(groups.nth[group])):
                rows += len(some)
                for name, leaf in self._columns.items():
                    column = leaf.of(some)
                    parts[name] += column.chunks
                    size += 0 if groups.views else column.nbytes
                if most is not None and size > most:
                    break
            else:
                if rows != groups.count[group]:
                    raise ValueError(f"{rows} rows")
        except ConfigError:  # not of damage, but a ValueError too
            raise
        except damage() as error:
            check_file(LOCAL, path, stamp, self._kind)
            msg = f"{groups.named(group)}, must be readable; found: {error}; fetch or write the file again"
            raise DataLostError(msg) from error
        check_file(LOCAL, path, stamp, self._kind)
        if most is not None and size > most:
            what = f"{groups.named(group)}, takes {size} bytes or more for these columns"
            msg = f"Tuning(memory={most}): must hold a group of rows; {what}. Give more, or write smaller groups"
            raise ConfigError(msg)
        return {name: chunked(its, self._columns[name].kind) for name, its in parts.items()}, size

    def _pieces(self, n: int, nth: int) -> Iterator[Any]:
        """A group of a file as pyarrow Tables, one after the other, checked. Raises what `damage` says."""
        import pyarrow as pa

        path, stamp, names = self._groups.paths[n], self._groups.stamps[n], self._names
        if self._groups.kinds[n] == "Parquet":
            import pyarrow.parquet as pq

            # A dictionary, or what a value shares with the one before, may hide texts and bytes of any size.
            sized = all(is_number(self._groups.known[name].kind) for name in names)
            with pq.ParquetFile(path, metadata=_parsed(path, stamp), page_checksum_verification=True) as file:
                if sized:
                    yield file.read_row_group(nth, columns=names, use_threads=False)
                    return
                for batch in file.iter_batches(PIECE_ROWS, row_groups=[nth], columns=names, use_threads=False):
                    yield pa.Table.from_batches([batch])
            return
        if n not in self._mapped:
            every, _ = _walked(path, stamp.size)
            self._mapped[n] = _map_of(path), every, [k for k, one in enumerate(every) if one.kind == BATCH]
        buffer, every, batches = self._mapped[n]
        yield _batch(buffer, every, batches[nth], names)


def chunked(chunks: list[Any], kind: Any) -> Any:
    """Chunks as one column."""
    import pyarrow as pa

    return pa.chunked_array(chunks, kind)


def damage() -> tuple[type[BaseException], ...]:
    """What pyarrow raises where a file is not what it should be."""
    import pyarrow as pa

    return (pa.ArrowException, OSError, ValueError, MemoryError)


def check_columns(path: str, its: Any, first: str, schema: Any) -> None:
    """Raise ConfigError where the file at `path` has other columns than the one at `first`."""
    if not its.equals(schema):
        odd = next((str(a) for a, b in zip(its, schema, strict=False) if not a.equals(b)), f"{len(its)} columns")
        msg = f"{path}: all files must have the columns of {first}; found {odd}; make a source of each kind"
        raise ConfigError(msg)


# Parquet files, by their footers. A page is checked where its writer gave it a checksum.


_END = b"PAR1"
PARSED = 256  # footers that a process keeps parsed: a shuffle goes through many files at once
_NARROW = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}


def _parquet(path: str, file: File, stamp: Stamp) -> FileGroups:
    with needed():
        import pyarrow.parquet as pq
    end = read_at(file, 8, max(0, stamp.size - 8))
    size = int.from_bytes(end[:4], "little")
    if end[4:] != _END or size > stamp.size - 12:
        what = f"that it was cut off at byte {stamp.size}"
        msg = f"{path}: a Parquet file ends with a footer and {_END!r}; found {what}; fetch it again"
        raise DataLostError(msg)
    footer = read_at(file, size, stamp.size - 8 - size)
    try:
        meta = pq.read_metadata(path)
        schema = meta.schema.to_arrow_schema().remove_metadata()
        groups = [meta.row_group(group) for group in range(meta.num_row_groups)]
        sizes: dict[str, float] = {}
        for group in groups:  # names are decoded here, and may be damaged too
            for name, bytes_here in _sizes(group).items():
                sizes[name] = sizes.get(name, 0) + bytes_here
    except damage() as error:
        msg = f"{path}: the footer of a Parquet file must be readable; found: {error}; fetch or write it again"
        raise DataLostError(msg) from error
    rows = tuple(group.num_rows for group in groups)
    return FileGroups("Parquet", stamp, rows, schema, hashlib.sha256(footer).hexdigest(), sizes)


def _sizes(group: Any) -> dict[str, int]:
    """Bytes of each column of a row group, decoded; numbers that are all alike take next to none in the file."""
    columns = [group.column(n) for n in range(group.num_columns)]
    return {
        column.path_in_schema: max(
            _NARROW.get(column.physical_type, 0) * column.num_values, column.total_uncompressed_size
        )
        for column in columns
    }


@functools.lru_cache(maxsize=PARSED)
def _parsed(path: str, stamp: Stamp) -> Any:
    """The footer of the file that has that stamp, parsed once, as it says where all of the groups lie."""
    import pyarrow.parquet as pq

    del stamp  # whoever reads compares it with the file's, before and after
    return pq.read_metadata(path)


# Arrow files by their messages: where each lies and how many rows it holds, from their headers alone.
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
    """All of them in order, the schema first. SourceError for no Arrow file, DataLostError for a damaged one."""
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
        begins = f"a Parquet file begins with {_END!r}, an Arrow file with {_MAGIC!r}, a stream with {_MARK!r}"
        msg = f"{path}: {begins}; found {head!r} in {size} bytes; check the path"
        raise SourceError(msg)
    tail = read_at(file, 10, max(0, size - 10))
    footer = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or footer > size - 18:
        _lost(path, f"no footer at byte {size}")
    return 8, size - 10 - footer


def _lost(path: str, what: str, error: BaseException | None = None) -> NoReturn:
    msg = f"{path}: the messages of an Arrow file must be whole, up to their end; found {what}; fetch or write it again"
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


# Record batches.


_LOOKS, _LOOK = 8, 64  # of a batch's body, for the fingerprint: how many pieces, and their bytes


def _map_of(path: str) -> Any:
    import pyarrow as pa

    with pa.memory_map(path) as file:
        return file.read_buffer()


def _batch(buffer: Any, every: Sequence[ArrowMessage], k: int, columns: list[str] | None) -> Any:
    """Columns of the batch that message k is, None for all; checked, so that no offset leads out of it."""
    import pyarrow as pa

    own = every[k]
    schema = pa.ipc.read_schema(pa.py_buffer(_framed(every[0].header)))
    names = enumerate(schema.names)
    kept = [n for n, name in names if columns is None or any(_is_in(one, name) for one in columns)]
    dictionaries = [one for one in every[:k] if one.kind == DICTIONARY]  # a stream may replace one later
    if own.packed or dictionaries:
        parts = [every[0], *dictionaries, own]
        stream = b"".join(memoryview(buffer)[one.start : one.stop] for one in parts)
        options = pa.ipc.IpcReadOptions(included_fields=kept, use_threads=False)
        with pa.ipc.open_stream(pa.py_buffer(stream), options=options) as reader:
            batch = reader.read_next_batch()
    else:
        message = pa.ipc.read_message(buffer.slice(own.start, own.stop - own.start))
        batch = pa.ipc.read_record_batch(message, schema).select(kept)
    batch.validate(full=True)
    return pa.Table.from_batches([batch])


def _is_in(column: str, name: str) -> bool:
    return column == name or column.startswith(f"{name}.")


def _framed(header: bytes) -> bytes:
    return b"\xff\xff\xff\xff" + len(header).to_bytes(4, "little") + header


def _walked(path: str, size: int) -> tuple[list[ArrowMessage], str]:
    """The file's messages, and a digest of their headers and of pieces of their bodies."""
    with closing(LOCAL.open(path)) as file:
        return _walk(path, file, size)


def _walk(path: str, file: File, size: int) -> tuple[list[ArrowMessage], str]:
    every, digest = [], hashlib.sha256()
    for one in messages(path, file, size):
        every.append(one)
        digest.update(one.header)
        start = one.start + 8 + len(one.header)  # headers alone are alike of numbers that are not
        for at in np.linspace(start, max(start, one.stop - _LOOK), _LOOKS).astype(np.int64).tolist():
            digest.update(read_at(file, min(_LOOK, one.stop - at), at))
    return every, digest.hexdigest()


def _arrow(path: str, file: File, stamp: Stamp) -> FileGroups:
    with needed():
        import pyarrow as pa
    every, digest = _walk(path, file, stamp.size)
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(_framed(every[0].header))).remove_metadata()
        schema = pa.schema([part.remove_metadata() for part in schema])
    except damage() as error:
        raise _unreadable(path, error) from error
    rows = tuple(one.rows for one in every if one.kind == BATCH)
    views = all(one.kind in (SCHEMA, BATCH) and not one.packed for one in every)
    return FileGroups("Arrow", stamp, rows, schema, digest, {}, views)


def sizes_by_batch(path: str, its: FileGroups) -> dict[str, float]:
    """Bytes of each column of all rows of an Arrow file, by its first batch with any; DataLostError where damaged."""
    every, _ = _walked(path, its.stamp.size)
    first = next(k for k, one in enumerate(every) if one.kind == BATCH and one.rows)
    leaves = {name: leaf for name, leaf in members_in(its.schema).items() if not leaf.is_struct}
    leaves = {name: leaf for name, leaf in leaves.items() if its.schema.names.count(leaf.path[0]) == 1}
    try:
        sample = _batch(_map_of(path), every, first, None)
        return {name: leaf.of(sample).nbytes / len(sample) * len(its) for name, leaf in leaves.items()}
    except damage() as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: BaseException) -> DataLostError:
    return DataLostError(
        f"{path}: an Arrow file's schema and batches must be readable; found: {error}; fetch or write it again"
    )
