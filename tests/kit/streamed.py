"""What a stream's reader gives, gathered until there is enough of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kit.broker.handle import OpenedStream, labels, payloads

from dali_feed.external_sources import KafkaStream
from dali_feed.records.extents import unpack_ids

SECONDS = 60.0  # until which a test's records must have come: no speed


@dataclass
class Gathered:
    """Records by partition, as (offset, payload, label), and where the reader stands."""

    records: dict[int, list[tuple[int, bytes, int]]] = field(default_factory=dict)
    position: dict[int, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(map(len, self.records.values()))

    @property
    def labels(self) -> list[int]:
        """Of all records, in no order."""
        return sorted(label for each in self.records.values() for _, _, label in each)


def gather(
    reader: OpenedStream, enough: Callable[[Gathered], bool], into: Gathered | None = None, records: int = 100
) -> Gathered:
    """What the reader gives until that is `enough`."""
    found = Gathered() if into is None else into
    deadline = time.monotonic() + SECONDS
    while not enough(found):
        assert time.monotonic() < deadline, f"not enough came: {found}"
        got = reader.poll(records, float("inf"), 0.05)
        numbers = labels(got.block) if len(got.block.values) > 1 else [0] * len(got.block.ids)
        partitions, offsets = unpack_ids(got.block.ids)
        rows = zip(partitions.tolist(), offsets.tolist(), payloads(got.block), numbers, strict=True)
        for partition, offset, payload, number in rows:
            assert payload is not None
            found.records.setdefault(partition, []).append((offset, payload, number))
        found.position |= got.position
        got.block.lease.release()
    return found


def streamed(source: KafkaStream, count: int, at: Mapping[str, Any]) -> Gathered:
    """The first `count` records of a new reader that goes on from a mark."""
    reader = OpenedStream(source, at)
    try:
        return gather(reader, lambda found: len(found) >= count)
    finally:
        reader.close()
