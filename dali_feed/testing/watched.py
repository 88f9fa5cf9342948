"""A source that notes what is read of it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dali_feed.records.source import Block, Extents, Int64s, Lease, Member, Original, Reader, Snapshot, Source

__all__ = ["WatchedSource"]


class WatchedSource(Source):
    """A source, with a note of every position that its readers had to read."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.inner, self.unit, self.known = source.inner, source.unit, source.known
        self.named, self.any_names, self.first_of = source.named, source.any_names, source.first_of
        self.reads: Counter[int] = Counter()
        self._lock = threading.Lock()

    @property
    def preset(self) -> Mapping[str, Any]:
        """The source's."""
        return self._source.preset

    def members(self) -> tuple[Member, ...]:
        """The source's."""
        return self._source.members()

    def can_have(self, member: str) -> bool:
        """As the source has it."""
        return self._source.can_have(member)

    def has_path(self, member: str, path: str) -> bool:
        """As the source has it."""
        return self._source.has_path(member, path)

    def image_of(self, member: str) -> str:
        """As the source has it."""
        return self._source.image_of(member)

    def lacks(self, member: str) -> str:
        """As the source has it."""
        return self._source.lacks(member)

    def format_of(self, member: str) -> Any:
        """As the source has it."""
        return self._source.format_of(member)

    def snapshot(self, pin: Mapping[str, Any] | None = None) -> Snapshot:
        """The source's."""
        return self._source.snapshot(pin)

    def where(self, partition: int, position: int) -> str:
        """As the source has it."""
        return self._source.where(partition, position)

    def original(self, partition: int, position: int) -> Original | None:
        """As the source has it."""
        return self._source.original(partition, position)

    @property
    def originals(self) -> bool:
        """As the source has it."""
        return self._source.originals

    def file_stamps(self) -> bytes | None:
        """The source's."""
        return self._source.file_stamps()

    def commit(self, positions: Int64s) -> None:
        """The source's."""
        self._source.commit(positions)

    @property
    def commits(self) -> bool:
        """As the source has it."""
        return self._source.commits

    def reader(self, members: Sequence[str], stop: threading.Event | None = None) -> Reader:
        """A reader of the source's that notes what it has to read."""
        return _WatchedReader(self, self._source.reader(members, stop))

    def named_reader(
        self, names: Sequence[str], optional: Collection[str], stop: threading.Event | None = None
    ) -> Reader:
        """A reader of the source's that notes what it has to read."""
        return _WatchedReader(self, self._source.named_reader(names, optional, stop))

    def note(self, extents: Extents) -> None:
        """Note these positions."""
        with self._lock:
            self.reads.update(extents.ids().tolist())


class _WatchedReader(Reader):
    def __init__(self, source: WatchedSource, reader: Reader) -> None:
        self._source, self._reader = source, reader

    def read(self, extents: Extents, lease: Lease) -> Block:
        self._source.note(extents)
        return self._reader.read(extents, lease)

    def close(self) -> None:
        self._reader.close()
