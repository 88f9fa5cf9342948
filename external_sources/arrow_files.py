"""Rows of Arrow files: IPC files, streams and Feather, read record batch by record batch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from dali_feed.errors import DataLostError
from dali_feed.external_sources.arrow_messages import BATCH, DICTIONARY, SCHEMA, Message, messages
from dali_feed.external_sources.group_reader import ReadGroup
from dali_feed.external_sources.group_rows import GroupRows
from dali_feed.external_sources.group_table import GroupTable, check_columns, damage, members_given
from dali_feed.packages import needed
from dali_feed.storage.local import LOCAL
from dali_feed.storage.store import File, read_at

__all__ = ["ArrowFiles"]

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

    _told, _kind, _files = "ArrowFiles", "Arrow", "*.arrow"

    def _tabulated(self, paths: tuple[str, ...]) -> GroupTable:
        return _tabulated(paths)

    def _read(self) -> ReadGroup:
        return _Batches(self._load())


class _Batches:
    """Reads record batches of mapped files, for one reader."""

    def __init__(self, table: GroupTable) -> None:
        self._table = table
        self._open: dict[int, tuple[Any, list[Message], list[int]]] = {}

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


def _batch(buffer: Any, found: Sequence[Message], k: int, columns: list[str] | None) -> Any:
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


def _walked(path: str, size: int) -> tuple[list[Message], str]:
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


def _look(file: File, one: Message, digest: Any) -> None:
    """Add some of the body: headers alone are alike of numbers that are not."""
    start = one.start + 8 + len(one.header)
    for at in np.linspace(start, max(start, one.stop - _LOOK), _LOOKS).astype(np.int64).tolist():
        digest.update(read_at(file, min(_LOOK, one.stop - at), at))


def _tabulated(paths: tuple[str, ...]) -> GroupTable:
    """Look at the messages of all files.

    Raises:
        ConfigError: the files' columns differ.
        SourceDeniedError, SourceNotFoundError: a file cannot be opened.
        DataLostError: it is cut off or damaged. SourceError: it is no Arrow file.
    """
    with needed():
        import pyarrow as pa
    rows, stamps, digests = [], [], []
    sizes: dict[str, float] = {}
    schema, views = None, True
    for path in paths:
        opened = LOCAL.open(path)
        try:
            stamp = opened.stamp()
        finally:
            opened.close()
        found, digest = _walked(path, stamp.size)
        batches = [k for k, one in enumerate(found) if one.kind == BATCH]
        try:
            own = pa.ipc.read_schema(pa.py_buffer(_framed(found[0].header))).remove_metadata()
            own = pa.schema([part.remove_metadata() for part in own])
            known = members_given(own)
            filled = next((k for k in batches if found[k].rows), None)
            if filled is not None and not sizes:
                sample = _batch(_mapped(path), found, filled, None)
                sizes = {
                    name: leaf.of(sample).nbytes / len(sample) for name, leaf in known.items() if not leaf.is_struct
                }
        except damage() as error:
            msg = (
                f"{path}: an Arrow file's schema and batches must be readable; found: {error}; fetch or write it again"
            )
            raise DataLostError(msg) from error
        if schema is not None:
            check_columns(path, own, paths[0], schema)
        schema = own
        views = views and all(one.kind in (SCHEMA, BATCH) and not one.packed for one in found)
        rows.append([found[k].rows for k in batches])
        stamps.append(stamp)
        digests.append(digest)
    known = members_given(schema)
    return GroupTable.of(
        "ArrowFiles", "record batch", paths, stamps, rows, known=known, bytes=sizes, digests=digests, views=views
    )
