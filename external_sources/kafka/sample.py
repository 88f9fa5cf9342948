"""An estimate from a few records of a topic: how large records are, and how many offsets hold none.

The law: it is the same on every rank, so no clock ends it; and it is little, at most 32 places of 16
offsets, a megabyte or a record of each. Places are spread evenly over all partitions laid end to end, and each speaks
for its part of them: a topic whose first records are small ones says nothing of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from confluent_kafka import Message

from dali_feed.external_sources.kafka.reader import KafkaReader
from dali_feed.records.source import Extents, Int64s

__all__ = ["Sample", "Sizes", "sampled"]

PLACES = 32
RUN = 16
PLACE_BYTES = 1 << 20
MOST_BYTES = 64 << 20  # of all places, where single records are large
LEAST = 4  # places, whatever their size

Weigh = Callable[[Message], int]  # bytes that a record takes where it is read


@dataclass(frozen=True, slots=True)
class Sample:
    """Mean payload size in bytes, at least 1; share of offsets that hold no record, 0..1."""

    record_bytes: int
    absent: float


class Sizes:
    """Payload sizes of records in rows, -1 where there is none; no more are taken once they pass `most` bytes."""

    def __init__(self, rows: int, most: int | None = None, weigh: Weigh = len) -> None:
        self.found = [-1] * rows
        self.size = 0
        self._most, self._weigh = most, weigh

    def take(self, row: int, message: Message) -> None:
        """Note a record."""
        size = self._weigh(message)
        self.found[row] = size
        self.size += size
        if self._most is not None and self.size > self._most:
            raise _EnoughError(row + 1)


class _EnoughError(Exception):
    """There are enough rows."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows


def sampled(reader: KafkaReader, starts: Int64s, stops: Int64s, weigh: Weigh = len) -> Sample:
    """Look at a few records of the offsets starts..stops-1 of each partition, of which there must be some."""
    size = records = looked = 0.0
    read = 0
    for n, (partition, start, stop, part) in enumerate(_places(starts, stops)):
        if n >= LEAST and read > MOST_BYTES:
            break
        found = _place(reader, partition, start, stop, weigh)
        there = [each for each in found if each >= 0]
        size += sum(there) * part / len(found)
        records += len(there) * part / len(found)
        looked += part
        read += sum(there)
    if not records:
        size, records = _further(reader, starts, stops, weigh)
        return Sample(max(1, round(size / max(1, records))), 1.0)
    return Sample(max(1, round(size / records)), max(0.0, round(1 - records / looked, 6)))


def _places(starts: Int64s, stops: Int64s) -> Iterator[tuple[int, int, int, int]]:
    """(partition, start, stop, offsets that it speaks for) of each place: everything in order, where that is little."""
    if int((-(-(stops - starts) // RUN)).sum()) <= PLACES:
        for partition, (first, last) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
            for start in range(first, last, RUN):
                yield partition, start, min(start + RUN, last), min(start + RUN, last) - start
        return
    ends = np.cumsum(stops - starts)
    total = int(ends[-1])
    places = min(PLACES, total)
    for k in sorted(range(places), key=lambda k: int(f"{k:05b}"[::-1], 2)):  # every beginning of it is spread
        at, part = k * total // places, (k + 1) * total // places - k * total // places
        partition = int(np.searchsorted(ends, at, side="right"))
        start = int(stops[partition] - (ends[partition] - at))
        yield partition, start, min(start + min(RUN, part), int(stops[partition])), part


def _place(reader: KafkaReader, partition: int, start: int, stop: int, weigh: Weigh) -> list[int]:
    """Sizes of the records at offsets start..stop-1, -1 for a hole; fewer of them where they are large."""
    sizes = Sizes(stop - start, PLACE_BYTES, weigh)
    try:
        reader.fill(Extents.one(partition, start, stop), sizes)
    except _EnoughError as enough:
        return sizes.found[: enough.rows]
    return sizes.found


def _further(reader: KafkaReader, starts: Int64s, stops: Int64s, weigh: Weigh) -> tuple[float, float]:
    """Bytes and number of the first records, from the first partitions on; where all places were holes."""
    for partition in np.flatnonzero(stops > starts).tolist():
        at, span = int(starts[partition]), RUN
        while at < stops[partition]:
            found = _place(reader, partition, at, min(at + span, int(stops[partition])), weigh)
            there = [each for each in found if each >= 0]
            if there:
                return float(sum(there)), float(len(there))
            at, span = at + span, span * 8
    return 0.0, 0.0
