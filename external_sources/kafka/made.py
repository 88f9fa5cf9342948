"""Kafka records made of a source's blocks; it runs in the threads that read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dali_feed.errors import ConfigError, DaliFeedError, FormatError, MissingPackageError
from dali_feed.external_sources.kafka.claim import Claim
from dali_feed.external_sources.kafka.writes import TOMBSTONE, WHERE, Writes, Written
from dali_feed.quarantine.reasons import place_of
from dali_feed.records.source import Block, unpack_id

__all__ = ["Item", "Maker"]

Item = Written | str | None  # a record, why there is none, or that there is none to be had


class Maker:
    """Makes an item of each row of blocks: of the payload and its fields where they are wanted, then of the members."""

    def __init__(
        self,
        writes: Writes,
        map: Callable[[bytes], bytes] | None,  # noqa: A002  what users call it
        claim: Claim | None,
        where: Callable[[int, int], str],
    ) -> None:
        self._writes, self._map, self._claim = writes, map, claim
        self._where = where if WHERE in writes.members else None
        self._has_members = bool(set(writes.members) - {WHERE})

    def __call__(self, blocks: list[Block]) -> list[Item]:
        """An item per row."""
        made = (self._row(blocks, row) for row in range(len(blocks[0].payloads)))
        claim = self._claim
        if claim is None:
            return list(made)
        return [claim.checked(item) if isinstance(item, Written) else item for item in made]

    def _row(self, blocks: list[Block], row: int) -> Item:
        for block in blocks:
            if row in block.faults:
                return block.faults[row]
        payload = blocks[0].payloads[row]
        if payload is None:
            return None
        stage: Any = self._map
        try:
            fields = _values(blocks[0], row) if self._writes.payload else {}
            gone = fields.get(TOMBSTONE, False)
            value = bytes(payload)
            if self._map is not None and not gone:
                value = self._map(value)
            stage = self._writes.record
            members = _values(blocks[-1], row) if self._has_members else {}
            if self._where is not None:
                members[WHERE] = self._where(*unpack_id(int(blocks[0].ids[row])))
            made = self._writes.record(value, fields, members)
            if not isinstance(made.value, bytes) and not (gone and made.value is None):
                msg = f"a value must be bytes; found {type(made.value).__name__}"
                raise TypeError(msg)
        except (ConfigError, MissingPackageError, MemoryError):
            raise
        except (DaliFeedError, FormatError) as error:
            return str(error)
        except Exception as error:  # noqa: BLE001  whatever a user's function raises is about this record
            place = place_of(error, stage)
            name = "map" if stage is self._map else "writes"
            return f"{name}: {type(error).__name__}: {error}{f', at {place}' if place else ''}"
        return made


def _values(block: Block, row: int) -> dict[str, Any]:
    found = {}
    for name, column in block.fields.items():
        value = column[row]
        found[name] = value.item() if isinstance(value, np.generic) else value
    return found
