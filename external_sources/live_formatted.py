"""A stream's records with what formats find in their members: as `formatted.Formatted` is for a bounded source."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from dali_feed.external_sources.formatted import FormattedReader
from dali_feed.records.live import Drain, LiveBlock, LiveReader, LiveSource, Positions
from dali_feed.records.source import Slabs

__all__ = ["LiveFormatted"]


class LiveFormatted:
    """The stream `base`, whose members `asked` are opened by `openers`; what it says beside that is the stream's."""

    def __init__(self, base: LiveSource, image: Any, asked: tuple[Any, ...], openers: Mapping[str, Any]) -> None:
        self._source, self.image, self.asked, self.openers = base, image, asked, openers

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # also in a copy that has nothing yet
            raise AttributeError(name)
        return getattr(self._source, name)  # pace, mark, where, replay ...

    def __repr__(self) -> str:
        return repr(self._source)

    @property
    def fields(self) -> tuple[str, ...]:
        """The members as they were asked for."""
        return tuple(each.name for each in self.asked)

    def live(
        self,
        at: Mapping[str, Any] | None = None,
        *,
        rank: int = 0,
        world_size: int = 1,
        slabs: Slabs | None = None,
        stop: threading.Event | None = None,
        drain: Drain | None = None,
    ) -> LiveReader:
        """The stream's, and the formats behind it."""
        found = self._source.live(at, rank=rank, world_size=world_size, slabs=slabs, stop=stop, drain=drain)
        return _Reader(self, found)


class _Reader(FormattedReader):
    """Polls members, and opens those that were asked for."""

    def poll(self, records: int, size: float, seconds: float) -> LiveBlock:
        """Of the stream's block, with what the formats found; see `records.live.LiveReader`."""
        found: LiveBlock = self._reader.poll(records, size, seconds)
        try:
            return LiveBlock(self.opened(found.block), found.position)
        except BaseException:
            found.block.lease.release()
            raise

    def commit(self, position: Positions) -> None:
        """The stream's."""
        self._reader.commit(position)
