"""Some records of a source, as a source that packing reads."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dali_feed.packing.keys import Keys
from dali_feed.records.members import Member
from dali_feed.records.present import Present
from dali_feed.records.source import Reader, Slabs, Snapshot, Source

__all__ = ["Chosen"]


class Chosen:
    """The records of `of` at the positions of `present`: its own members, coordinates and keys."""

    def __init__(self, of: Any, present: Present) -> None:
        self.of, self.present = of, present

    def __repr__(self) -> str:
        return f"{self.of!r}, {len(self.present)} records of it"

    @property
    def fields(self) -> tuple[str, ...]:
        """The source's."""
        found: tuple[str, ...] = self.of.fields
        return found

    def snapshot(self, pin: Mapping[str, Any] | None = None) -> Snapshot:
        """The source's, of these positions alone."""
        found: Snapshot = self.of.snapshot(None)
        told = hashlib.sha256(f"{found.fingerprint}\0{self.present.digest()}".encode()).hexdigest()
        return replace(found, present=self.present, fingerprint=told, pin=None)

    def members(self) -> tuple[Member, ...]:
        """The source's."""
        found: tuple[Member, ...] = self.of.members()
        return found

    def giving(self, image: str | None, members: tuple[str, ...]) -> Source:
        """The same records with other members; see `records.members`."""
        return Chosen(self.of.giving(image, members), self.present)

    def reader(self, slabs: Slabs | None = None, stop: threading.Event | None = None) -> Reader:
        """The source's."""
        found: Reader = self.of.reader(slabs, stop)
        return found

    def where(self, partition: int, position: int) -> str:
        """As the source has it."""
        found: str = self.of.where(partition, position)
        return found

    @staticmethod
    def keys(source: Any, keys: Keys) -> Keys:
        """Keys that depend on where a record stands in the whole source, and not among those that were chosen."""
        snapshot = source.snapshot()
        starts = snapshot.starts.tolist()
        before = [0]
        for start, stop in zip(starts, snapshot.stops.tolist(), strict=True):
            before.append(before[-1] + stop - start)

        def of(partition: int, position: int, _: int) -> str:
            return keys.of(partition, position, before[partition] + position - starts[partition])

        return replace(keys, of=of)
