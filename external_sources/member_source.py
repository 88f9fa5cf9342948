"""What sources of asked-for members share: the shell around another source, and a reader of records by their row.

A source's own `giving` makes one of these. Order, snapshot and coordinates stay those of the source.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from typing import Any

from dali_feed.errors import ClosedError, ConfigError
from dali_feed.external_sources.one_file import check_read, load_file
from dali_feed.records.members import alternatives
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import Block, Extents, Int64s, Reader, Slabs, Snapshot, Source, unpack_ids

__all__ = ["MemberReader", "MemberSource", "foremost"]


class MemberSource:
    """Records of `source` with the members that were asked for. See `records.members.Members.giving`."""

    def __init__(self, source: Source, image: str | None, members: tuple[str, ...]) -> None:
        self._source, self._image, self._members = source, image, members

    def __repr__(self) -> str:
        return repr(self._source)

    @property
    def fields(self) -> tuple[str, ...]:
        """The members as they were asked for."""
        return self._members

    def snapshot(self, pin: Mapping[str, Any] | None = None) -> Snapshot:
        """The source's."""
        return self._source.snapshot(pin)

    def reader(self, slabs: Slabs | None = None, stop: threading.Event | None = None) -> Reader:
        """A reader for one thread; see `records.Source`."""
        return self._opened(SlabPool() if slabs is None else slabs, stop or threading.Event())

    def where(self, partition: int, position: int) -> str:
        """As the source has it."""
        return self._source.where(partition, position)

    def _opened(self, slabs: Slabs, stop: threading.Event) -> Reader:
        raise NotImplementedError


class MemberReader:
    """Reads members of a source of one partition, row by row."""

    def __init__(self, told: str, count: int, slabs: Slabs, stop: threading.Event) -> None:
        self._told, self._count, self._slabs, self._stop = told, count, slabs, stop
        self._closed = False

    def read(self, extents: Extents) -> Block:
        """The members of `extents`' rows; see `records.Reader`. Raises what the source's own reader does."""
        check_read(self._told, extents, self._count, closed=self._closed)
        ids = extents.ids()
        block = Block(ids, [memoryview(b"")] * len(ids), {}, self._slabs.lease())
        try:
            self._fill(block, unpack_ids(ids)[1])
        except BaseException:
            block.lease.release()
            raise
        return block

    def close(self) -> None:
        """Nothing stays open between reads. Safe to call twice."""
        self._closed = True

    def _fill(self, block: Block, rows: Int64s) -> None:
        """Put the members of these rows into the block."""
        raise NotImplementedError

    def _loaded(self, path: str, block: Block, k: int) -> memoryview | None:
        """The bytes of a file; None, and a fault of row k, where there are none."""
        if self._stop.is_set():
            msg = f"{self._told}: the read was stopped"
            raise ClosedError(msg)
        found = load_file(path, block.lease)
        if isinstance(found, str):
            block.faults[k] = found
            return None
        return found


def foremost(name: str, known: Collection[str], told: str) -> str:
    """The foremost of the members that a name lists which is known; ConfigError, which `told` explains, for none."""
    found = next((part for part in alternatives(name) if part in known), None)
    if found is None:
        member, colon, path = name.partition(":")
        opens = (
            f'. To read a path inside {member!r}, give the source format={{{member!r}: "json"}}'
            if colon and path
            else ""
        )
        msg = f"member {name!r}: {told} {', '.join(known)}; found none of {'that name' if ';' not in name else 'them'}"
        raise ConfigError(msg + opens)
    return found
