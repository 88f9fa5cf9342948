"""A source that notes what is read of it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

from dali_feed.errors import ConfigError
from dali_feed.records.source import Block, Extents, Member, Members, Reader, Slabs, Snapshot, Source

__all__ = ["WatchedSource"]


class WatchedSource:
    """A source, with a note of every position that its readers had to read."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.asked: Counter[int] = Counter()
        self._lock = threading.Lock()

    @property
    def fields(self) -> tuple[str, ...]:
        """As the source has them."""
        return self._source.fields

    def snapshot(self, pin: Mapping[str, Any] | None = None) -> Snapshot:
        """The source's."""
        return self._source.snapshot(pin)

    def where(self, partition: int, position: int) -> str:
        """As the source has it."""
        return self._source.where(partition, position)

    def reader(self, slabs: Slabs | None = None, stop: threading.Event | None = None) -> Reader:
        """A reader of the source's that notes what it is asked for."""
        return _WatchedReader(self, self._source.reader(slabs, stop))

    def members(self) -> tuple[Member, ...]:
        """The source's."""
        found: tuple[Member, ...] = self._named().members()
        return found

    def giving(self, image: str | None, members: tuple[str, ...]) -> Source:
        """The same with other members; its reads are noted here."""
        given = WatchedSource(self._named().giving(image, members))
        given.asked, given._lock = self.asked, self._lock
        return given

    def _named(self) -> Members:
        if not isinstance(self._source, Members):
            rule = "a source must list the members of its records"
            msg = f"columns: {rule}; {type(self._source).__name__} does not; leave columns out"
            raise ConfigError(msg)
        return self._source

    def note(self, extents: Extents) -> None:
        """Note these positions."""
        with self._lock:
            self.asked.update(extents.ids().tolist())


class _WatchedReader:
    def __init__(self, source: WatchedSource, reader: Reader) -> None:
        self._source, self._reader = source, reader

    def read(self, extents: Extents) -> Block:
        self._source.note(extents)
        return self._reader.read(extents)

    def close(self) -> None:
        self._reader.close()
