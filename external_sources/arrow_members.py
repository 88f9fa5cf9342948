"""Members of a table's rows: its columns."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dali_feed.errors import ClosedError, ConfigError
from dali_feed.external_sources.arrow_columns import Images, Numbers, Strings
from dali_feed.external_sources.one_file import check_read, load_file
from dali_feed.records.members import alternatives
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import Block, Extents, Int64s, Lease, Reader, Slabs, Snapshot, Source, unpack_ids

__all__ = ["ArrowMembers", "Held"]


@dataclass(frozen=True, slots=True)
class Held:
    """All rows of a table, which of them stand at positions 0, 1, ..., and its columns, those of images by name."""

    rows: Int64s
    images: Mapping[str, Images]
    beside: Mapping[str, Numbers | Strings]


class ArrowMembers:
    """Rows of a table with the members that were asked for. See `records.members.Members.giving`."""

    def __init__(self, source: Source, held: Held, image: str | None, members: tuple[str, ...]) -> None:
        known = (*held.images, *held.beside)
        for name in (*(() if image is None else (image,)), *members):
            if not set(alternatives(name)).intersection(known):
                msg = f"member {name!r}: {source!r} has the columns {', '.join(known)}; found none of that name"
                raise ConfigError(msg)
        self._source, self._held, self._image, self._members = source, held, image, members

    def __repr__(self) -> str:
        return repr(self._source)

    @property
    def fields(self) -> tuple[str, ...]:
        """The members as they were asked for."""
        return self._members

    def snapshot(self, pin: Mapping[str, Any] | None = None) -> Snapshot:
        """The table's."""
        return self._source.snapshot(pin)

    def reader(self, slabs: Slabs | None = None, stop: threading.Event | None = None) -> Reader:
        """A reader for one thread; see `records.Source`."""
        return _MemberReader(self, SlabPool() if slabs is None else slabs, stop or threading.Event())

    def where(self, partition: int, position: int) -> str:
        """As the table has it."""
        return self._source.where(partition, position)


class _MemberReader:
    """Gives views of the table's buffers, and reads the files that it names."""

    def __init__(self, of: ArrowMembers, slabs: Slabs, stop: threading.Event) -> None:
        self._of, self._slabs, self._stop, self._closed = of, slabs, stop, False

    def read(self, extents: Extents) -> Block:
        """The members of `extents`' rows; see `records.Reader`. Raises what ArrowRows' does."""
        of, held = self._of, self._of._held
        check_read(repr(of), extents, len(held.rows), closed=self._closed)
        ids = extents.ids()
        rows = held.rows[unpack_ids(ids)[1]]
        block = Block(ids, [memoryview(b"")] * len(rows), {}, self._slabs.lease())
        try:
            if of._image is not None:
                for k, view in enumerate(self._values(of._image, rows, block)):
                    if isinstance(view, memoryview):
                        block.payloads[k] = view
                    else:
                        block.faults.setdefault(k, "the image is null")
            for name in of._members:
                block.fields[name] = self._values(name, rows, block)
        except BaseException:
            block.lease.release()
            raise
        return block

    def close(self) -> None:
        """Nothing stays open between reads. Safe to call twice."""
        self._closed = True

    def _values(self, name: str, rows: Int64s, block: Block) -> Any:
        """A column's values: an array, or a list of views with None for nulls."""
        held = self._of._held
        member = next(part for part in alternatives(name) if part in held.images or part in held.beside)
        if member in held.images:
            found = held.images[member].at(rows)
            return [self._opened(each, block.lease, k, block.faults) for k, each in enumerate(found)]
        column = held.beside[member]
        if isinstance(column, Strings):
            return list(column.views(rows))
        values: Any = column.values[rows]
        null = None if column.null is None else column.null[rows]
        if null is None or not null.any():
            return values
        return [None if gone else value for value, gone in zip(values.tolist(), np.asarray(null), strict=True)]

    def _opened(
        self, found: memoryview | str | None, lease: Lease, k: int, faults: dict[int, str]
    ) -> memoryview | None:
        if self._stop.is_set():
            msg = f"{self._of!r}: the read was stopped"
            raise ClosedError(msg)
        if not isinstance(found, str):
            return found
        loaded = load_file(found, lease)
        if isinstance(loaded, str):
            faults[k] = loaded
            return None
        return loaded
