"""Reads row groups of Parquet files and record batches of Arrow files, and gives their rows.

The law: a group is what is read, only the columns that were asked for, and what is damaged: it is checked, and a
group that cannot be read concerns all of its rows, so it is raised and no row of it is given. What rows a block gives
is copied into its slabs, so that a decoded group lives no longer than its reader's cache of two.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.errors import ClosedError, DataLostError
from dali_feed.external_sources.arrow_columns import Images, Numbers, images_of, values_of
from dali_feed.external_sources.arrow_members import Values
from dali_feed.external_sources.group_table import GroupTable, damage, plain
from dali_feed.external_sources.one_file import load_file
from dali_feed.external_sources.shard_reader import check_shard
from dali_feed.records.source import Block, Extents, Int64s, Lease, Slabs, unpack_ids
from dali_feed.storage.local import LOCAL

__all__ = ["Chosen", "GroupReader", "ReadGroup"]

KEPT = 2  # decoded groups of a reader: two lanes may meet in one
MAPPED = 1024  # those that are no more than views of their file

ReadGroup = Callable[[int, list[str]], Any]  # these columns of a group, as a pyarrow Table


@dataclass(frozen=True, slots=True)
class Chosen:
    """What is read of each row: the member that is the image, and the fields, name -> member.

    strict  whether the fields are a batch's own, int64, of which a null is a fault
    """

    image: str | None
    fields: dict[str, str]
    strict: bool = False


class GroupReader:
    """One thread's reader; see `dali_feed.records.source.Reader`."""

    def __init__(
        self,
        told: str,
        table: GroupTable,
        read: ReadGroup,
        chosen: Chosen,
        slabs: Slabs,
        stop: threading.Event | None,
    ) -> None:
        self._load = read
        self._told, self._table, self._chosen, self._slabs = told, table, chosen, slabs
        members = [*([] if chosen.image is None else [chosen.image]), *chosen.fields.values()]
        self._columns = table.columns(members)
        self._groups: OrderedDict[int, dict[tuple[str, bool], Values]] = OrderedDict()
        self._stop, self._closed = stop or threading.Event(), False

    def read(self, extents: Extents) -> Block:
        """All rows of `extents` in order.

        Raises:
            ConfigError: an extent that leaves the source; integers that do not fit in 64 bits with sign.
            DataLostError: a group cannot be read, or its file is gone.
            SourceChangedError: a file is not what it was.
            ClosedError: the reader is closed or the stop event is set.
        """
        extents.check_inside(self._table.count, self._told)
        ids = extents.ids()
        block = Block(ids, [memoryview(b"")] * len(ids), {}, self._slabs.lease())
        try:
            partition, position = unpack_ids(ids)
            found: dict[str, list[Any]] = {name: [] for name in self._chosen.fields}
            cuts = np.flatnonzero(np.diff(partition)) + 1
            for part in np.split(np.arange(len(ids)), cuts) if len(ids) else []:
                self._give(block, part, int(partition[part[0]]), position[part], found)
            for name, parts in found.items():
                block.fields[name] = _joined(parts)
        except BaseException:
            block.lease.release()
            raise
        return block

    def close(self) -> None:
        """Nothing stays open between reads. Safe to call twice."""
        self._closed = True
        self._groups.clear()

    def _give(self, block: Block, at: Int64s, group: int, rows: Int64s, found: dict[str, list[Any]]) -> None:
        """Rows of one group, which stand in the block from at[0] on."""
        values, first = self._group(group), int(at[0])
        if self._chosen.image is not None:
            for k, view in enumerate(self._given(values[self._chosen.image, True], rows, block, first)):
                if view is not None:
                    block.payloads[first + k] = view
                else:
                    block.faults.setdefault(first + k, "the image is null")
        for name, member in self._chosen.fields.items():
            given = self._given(values[member, False], rows, block, first)
            if self._chosen.strict and isinstance(given, list):
                for k, value in enumerate(given):
                    if value is None:
                        block.faults.setdefault(first + k, f"column {member!r} is null")
                given = np.array([value or 0 for value in given], np.int64)
            found[name].append(given)

    def _given(self, values: Values, rows: Int64s, block: Block, first: int) -> Any:
        """The values of these rows: an array, or a list with None for nulls."""
        if isinstance(values, Numbers):
            some = values.values[rows]
            null = None if values.null is None else values.null[rows]
            if null is None or not null.any():
                return some
            return [None if gone else value for value, gone in zip(some.tolist(), null.tolist(), strict=True)]
        if not isinstance(values, Images):
            return _copied(list(values.of(rows)), block.lease)
        out = _copied(values.at(rows), block.lease)
        for k, path in enumerate(out):
            if isinstance(path, str):
                loaded = load_file(path, block.lease)
                out[k] = None if isinstance(loaded, str) else loaded
                if isinstance(loaded, str):
                    block.faults[first + k] = loaded
        return out

    def _group(self, group: int) -> dict[tuple[str, bool], Values]:
        if self._closed or self._stop.is_set():
            msg = f"{self._told}: this reader is closed, or its read was stopped; make another one"
            raise ClosedError(msg)
        if group not in self._groups:
            self._groups[group] = self._read(group)
            if len(self._groups) > (MAPPED if self._table.views else KEPT):
                self._groups.popitem(last=False)
        self._groups.move_to_end(group)
        return self._groups[group]

    def _read(self, group: int) -> dict[tuple[str, bool], Values]:
        import pyarrow as pa

        table, n = self._table, int(self._table.file[group])
        path, stamp = table.paths[n], table.stamps[n]
        check_shard(LOCAL, path, stamp, table.told)
        try:
            found = self._load(group, self._columns)
            if len(found) != table.count[group]:
                self._lost(path, group, f"{len(found)} rows")
            for k, name in enumerate(found.column_names):
                column = found.column(k)
                if not plain(column.type).equals(column.type):
                    chunks = [chunk.dictionary_decode() for chunk in column.chunks]
                    found = found.set_column(k, name, pa.chunked_array(chunks, plain(column.type)))
        except damage() as error:
            check_shard(LOCAL, path, stamp, table.told)
            self._lost(path, group, str(error), error)
        check_shard(LOCAL, path, stamp, table.told)
        return self._values(found)

    def _values(self, found: Any) -> dict[tuple[str, bool], Values]:
        out: dict[tuple[str, bool], Values] = {}
        if self._chosen.image is not None:
            out[self._chosen.image, True] = images_of(self._table.known[self._chosen.image].of(found))
        for member in self._chosen.fields.values():
            leaf = self._table.known[member]
            column = leaf.of(found)
            out[member, False] = images_of(column) if leaf.is_struct else values_of(column, member, self._told)
        return out

    def _lost(self, path: str, group: int, what: str, error: BaseException | None = None) -> None:
        first, count = int(self._table.first[group]), int(self._table.count[group])
        named = f"{path}#{first}: {self._table.group} {int(self._table.nth[group])}, rows {first}..{first + count - 1}"
        msg = f"{named}, must be readable; found: {what}; fetch or write the file again"
        raise DataLostError(msg) from error


def _copied(values: list[Any], lease: Lease) -> list[Any]:
    """The same; bytes and arrays lie in the lease, as many together as a slab holds."""
    first = values[0] if values else None
    if isinstance(first, np.ndarray) and first.nbytes and all(_alike(value, first) for value in values):
        return _copied_alike(values, first, lease)
    room, most = memoryview(b""), lease.slab_bytes // 2
    sizes = [value.nbytes if isinstance(value, memoryview | np.ndarray) else 0 for value in values]
    left = sum(sizes)
    for k, (value, size) in enumerate(zip(values, sizes, strict=True)):
        if not size:
            continue
        if size + 8 > len(room):
            room = lease.room(max(size, min(most, left + 8 * (len(values) - k))))
        part, room, left = room[:size], room[-(-size // 8) * 8 :], left - size
        part[:] = memoryview(value).cast("B")
        values[k] = part if isinstance(value, memoryview) else np.frombuffer(part, value.dtype)
    return values


def _alike(value: Any, first: NDArray[Any]) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == first.dtype and value.shape == first.shape


def _copied_alike(values: list[Any], first: NDArray[Any], lease: Lease) -> list[Any]:
    """`_copied` of rows of one dtype and length, many in one go."""
    each, out = max(1, lease.slab_bytes // 2 // first.nbytes), list[Any]()
    for at in range(0, len(values), each):
        some = values[at : at + each]
        flat = np.frombuffer(lease.room(len(some) * first.nbytes), first.dtype)
        np.concatenate(some, out=flat)
        out.extend(flat.reshape(len(some), -1))
    return out


def _joined(parts: list[Any]) -> Any:
    """One array where all parts are arrays of one dtype, else one list."""
    if len(parts) == 1:
        return parts[0]
    if parts and all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts)
    return [value for part in parts for value in (part.tolist() if isinstance(part, np.ndarray) else part)]
