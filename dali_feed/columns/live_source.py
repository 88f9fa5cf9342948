"""A stream whose fields are columns: another one's members, each made by its kind as it is polled."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from dali_feed.columns.kind import Kind
from dali_feed.columns.source import Columnar, columns_of
from dali_feed.errors import ConfigError
from dali_feed.records.live import Drain, LiveBlock, LiveReader, Pace, Positions
from dali_feed.records.passing import PassingOn
from dali_feed.records.source import Block, Slabs

__all__ = ["LiveColumnar"]


class LiveColumnar(Columnar):
    """As `Columnar`, of a stream: what a kind leaves to the first record is told by the first that is polled."""

    _source: Any  # of LiveSource

    @property
    def pace(self) -> Pace:
        """The source's."""
        found: Pace = self._source.pace
        return found

    def live(
        self,
        at: Mapping[str, Any] | None,
        *,
        rank: int = 0,
        world_size: int = 1,
        slabs: Slabs | None = None,
        stop: threading.Event | None = None,
        drain: Drain | None = None,
    ) -> LiveReader:
        """A reader of the source's, and the kinds behind it."""
        reader = self._source.live(at, rank=rank, world_size=world_size, slabs=slabs, stop=stop, drain=drain)
        return _LiveReader(reader, self)

    def mark(self, position: Positions, *, rank: int = 0, world_size: int = 1) -> dict[str, Any]:
        """The source's."""
        found: dict[str, Any] = self._source.mark(position, rank=rank, world_size=world_size)
        return found

    def merged(self, marks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The source's."""
        found: dict[str, Any] = self._source.merged(marks)
        return found

    def kinds(self) -> dict[str, Kind]:
        """The kinds, with what the first records told. ConfigError before any has come."""
        if self._settled is None:
            if any(kind.open for kind in self._kinds.values()):
                rule = "the dtype or shape of a column is taken from the first record of the stream, and none has come"
                msg = f"columns: {rule}; give dtype= and shape= to the column"
                raise ConfigError(msg)
            self._settled = self._kinds
        return self._settled

    def made(self, block: Block) -> Block:
        """A block of the source's with its members made into columns."""
        if self._settled is None and len(block.ids):
            with self._settling:
                if self._settled is None:
                    self._settled = self._settled_by(block)
        return columns_of(block, self.kinds) if len(block.ids) else block


class _LiveReader(PassingOn):
    """Polls members, and makes of them what their columns keep."""

    def __init__(self, reader: LiveReader, source: LiveColumnar) -> None:
        super().__init__(reader)
        self._source = source

    def poll(self, records: int, size: float, seconds: float) -> LiveBlock:
        """Of the source's block, its members made into columns; see `records.live.LiveReader`."""
        found = self._reader.poll(records, size, seconds)
        return LiveBlock(self._source.made(found.block), found.position)

    def commit(self, position: Positions) -> None:
        """The source's."""
        self._reader.commit(position)
