"""What an epoch of a topic holds: its pin, an estimate from a sample, and which offsets hold a record.

The laws: a sample is the same on every rank, so no clock ends it; and it is little, at most 32 places of 16
offsets, a megabyte or a record of each. Places are spread evenly over all partitions laid end to end, and each speaks
for its part of them: a topic whose first records are small ones says nothing of the others. A scan finds what a reader
would be given: brokers have no list of offsets, and no fetch without the records themselves, so its price is the bytes
of the topic over the network once, at the pace of an epoch's reads.

The map of the offsets that hold a record is in the pin itself, and so in a state, and not in a file beside it: a run
may be resumed on another machine, and compaction may since have taken records, so that nobody could learn it again.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from confluent_kafka import Message

from dali_feed.errors import DataLostError, SourceChangedError, StateError
from dali_feed.external_sources.kafka.claims import Claims, weight_of
from dali_feed.external_sources.kafka.client import headers_of
from dali_feed.external_sources.kafka.errors import LOG, check_same
from dali_feed.external_sources.kafka.reader import KafkaReader
from dali_feed.records.extents import Present, packed, unpacked
from dali_feed.records.source import Extents, Int64s, Snapshot


@dataclass(frozen=True, slots=True)
class Pin:
    """What a snapshot is made of; ends and starts are int64 (partitions,)."""

    topic: str
    topic_id: str
    starts: Int64s
    ends: Int64s
    extent: int
    record_bytes: int
    present: Present | None
    absent: float

    def snapshot(self, servers: str) -> Snapshot:
        """The snapshot. Its fingerprint is of the offsets that it deals, and of which topic's they are."""
        topic, pin = self.topic, self.to_json()
        parts: list[Any] = [topic, self.topic_id, pin["starts"], pin["ends"]]
        if self.present is not None:
            parts.append(self.present.digest())
        return Snapshot(
            source=f"kafka topic {topic} at {servers}",
            names=tuple(f"{topic}[{p}]" for p in range(len(self.starts))),
            starts=self.starts,
            stops=self.ends,
            extent=self.extent,
            record_bytes=self.record_bytes,
            random_access=False,
            interleaved=True,
            fingerprint=hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest(),
            pin=pin,
            present=self.present,
            absent=self.absent,
        )

    def to_json(self) -> dict[str, Any]:
        """The pin as plain JSON."""
        pin = {
            "topic": self.topic,
            "id": self.topic_id,
            "starts": self.starts.tolist(),
            "ends": self.ends.tolist(),
            "extent": self.extent,
            "record_bytes": self.record_bytes,
            "absent": self.absent,
        }
        return pin if self.present is None else pin | {"present": packed(self.present, self.starts)}

    def check(self, where: Callable[[int, int], str], lows: Int64s, highs: Int64s, topic_id: str) -> None:
        """Check that every record of it is still there; partitions that came later do not matter."""
        topic, n = self.topic, len(self.starts)
        check_same(topic, self.topic_id, topic_id)
        if len(lows) < n:
            raise SourceChangedError(
                f"{topic}: the snapshot has {n} partitions and the topic now {len(lows)}: it was deleted and made again"
            )
        dealt = self.ends > self.starts
        lost = np.flatnonzero(dealt & (lows[:n] > self.starts))
        if len(lost):
            which = "; ".join(
                f"{where(p, int(self.starts[p]))}: offsets {self.starts[p]}.."
                f"{min(lows[p], self.ends[p]) - 1} are gone (the broker holds {lows[p]}..{highs[p] - 1})"
                for p in lost[:5].tolist()
            )
            raise DataLostError(
                f"{which}{f'; and {len(lost) - 5} more partitions' if len(lost) > 5 else ''}: the snapshot has "
                "them, but retention or deletion removed them; take a new snapshot, and give the topic a longer "
                "retention"
            )
        cut = np.flatnonzero(dealt & (highs[:n] < self.ends))
        if len(cut):
            p = int(cut[0])
            raise SourceChangedError(
                f"{topic}[{p}]: the snapshot ends at offset {self.ends[p]} and the partition now at "
                f"{highs[p]}{f', and {len(cut) - 1} more are shorter' if len(cut) > 1 else ''}: the topic was "
                "truncated or made again; take a new snapshot"
            )


def pin_of(topic: str, pin: Mapping[str, Any]) -> Pin:
    """A pin read back from JSON. Raises StateError where it is not a pin of this topic."""
    try:
        starts = np.array([int(v) for v in pin["starts"]], np.int64)
        ends = np.array([int(v) for v in pin["ends"]], np.int64)
        of, topic_id = str(pin["topic"]), str(pin.get("id", ""))
        extent, record_bytes = int(pin["extent"]), int(pin["record_bytes"])
        absent = float(pin.get("absent", 0.0))
        fits = len(starts) == len(ends) and not (ends < starts).any()
        fits = fits and 1 <= extent <= LARGEST and 1 <= record_bytes <= LARGEST and 0 <= absent <= 1
        present = unpacked(pin["present"], starts, ends) if fits and "present" in pin else None
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        msg = f"{topic}: a pin must be what a snapshot of a Kafka topic gave; {type(error).__name__}: {error}"
        raise StateError(msg) from error
    if not fits:
        raise StateError(
            f"{topic}: a pin must be what a snapshot of a Kafka topic gave; its starts, ends and sizes do not fit "
            "together"
        )
    if of != topic:
        raise StateError(f"{topic}: the pin must be of the same topic; it is of {of}")
    return Pin(topic, topic_id, starts, ends, extent, record_bytes, present, absent)


LARGEST = 1 << 31  # extent in offsets, and record in bytes, of a pin that makes sense
PLACES = 32
RUN = 16
PLACE_BYTES = 1 << 20
MOST_BYTES = 64 << 20  # of all places, where single records are large
LEAST = 4  # places, whatever their size

Weigh = Callable[[Message], int]  # bytes that a record takes where it is read


@dataclass(frozen=True, slots=True)
class TopicSample:
    """Mean payload size in bytes, at least 1; share of offsets that hold no record, 0..1."""

    record_bytes: int
    absent: float


class _EnoughError(Exception):
    """Enough bytes have been read."""


def weigher(claims: Claims | None) -> Weigh:
    """A function of a record: the bytes of its payload, or of its key and headers where these are more.

    What is asked of the records later plays no part: a snapshot is of the topic alone.
    """
    payload = len if claims is None else weight_of

    def weigh(message: Message) -> int:
        headers = headers_of(message)
        return max(payload(message), len(message.key() or b"") + sum(len(text or b"") for _, text in headers))

    return weigh


def sizes(reader: KafkaReader, extents: Extents, weigh: Weigh = len, most: int | None = None) -> tuple[list[int], int]:
    """Sizes of the records of an extent, -1 where there is none, 0 where it cannot be read; and bytes that were read.

    Where more than `most` bytes were read, of what is weighed or of values, there are fewer rows.
    """
    rows, read = [-1] * extents.positions, 0

    def take(row: int, message: Message) -> None:
        nonlocal read
        rows[row] = size = weigh(message)
        read += max(size, len(message))  # a record is fetched as a whole
        if most is not None and read > most:
            del rows[row + 1 :]
            raise _EnoughError

    def spoilt(row: int, _: str) -> None:
        rows[row] = 0

    with suppress(_EnoughError):
        reader.fill(extents, take, spoilt=spoilt)
    return rows, read


def sampled(reader: KafkaReader, starts: Int64s, stops: Int64s, weigh: Weigh = len) -> TopicSample:
    """Look at a few records of the offsets starts..stops-1 of each partition, of which there must be some."""
    size = records = looked = 0.0
    read = 0
    for n, (partition, start, stop, part) in enumerate(_places(starts, stops)):
        if n >= LEAST and read > MOST_BYTES:
            break
        rows, its = sizes(reader, Extents.one(partition, start, stop), weigh, PLACE_BYTES)
        there = [each for each in rows if each >= 0]
        size += sum(there) * part / len(rows)
        records += len(there) * part / len(rows)
        looked += part
        read += its
    if not records:
        size, records = _further(reader, starts, stops, weigh)
        return TopicSample(max(1, round(size / max(1, records))), 1.0)
    return TopicSample(max(1, round(size / records)), max(0.0, round(1 - records / looked, 6)))


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


def _further(reader: KafkaReader, starts: Int64s, stops: Int64s, weigh: Weigh) -> tuple[float, float]:
    """Bytes and number of the first records, from the first partitions on; where all places were holes."""
    for partition in np.flatnonzero(stops > starts).tolist():
        at, span = int(starts[partition]), RUN
        while at < stops[partition]:
            run = Extents.one(partition, at, min(at + span, int(stops[partition])))
            there = [each for each in sizes(reader, run, weigh, PLACE_BYTES)[0] if each >= 0]
            if there:
                return float(sum(there)), float(len(there))
            at, span = at + span, span * 8
    return 0.0, 0.0


READERS = 2  # consumers, in a thread each
STEP = 1 << 16  # offsets that a reader takes in one go
TELL_SECONDS = 30.0


def scanned(
    reader: Callable[[threading.Event], KafkaReader], topic: str, starts: Int64s, stops: Int64s, weigh: Weigh = len
) -> tuple[Present, int]:
    """The offsets in starts..stops-1 of each partition that hold a record, and the bytes of all of them.

    Raises what `KafkaReader.read` does.
    """
    flags = [np.zeros(length, bool) for length in (stops - starts).tolist()]
    todo = iter(sorted(np.flatnonzero(stops > starts).tolist(), key=lambda p: -len(flags[p])))  # gives each once
    looked, total, stop = [0] * READERS, int((stops - starts).sum()), threading.Event()

    def work(own: int) -> int:
        """One thread's partitions; the bytes of their records."""
        mine, size = reader(stop), 0
        try:
            for partition in todo:
                first = int(starts[partition])
                for a in range(0, len(flags[partition]), STEP):
                    b = min(a + STEP, len(flags[partition]))
                    there = np.asarray(sizes(mine, Extents.one(partition, first + a, first + b), weigh)[0])
                    flags[partition][a:b] = there >= 0
                    looked[own] += b - a
                    size += int(there[there >= 0].sum())
        finally:
            mine.close()
        return size

    size = 0
    with ThreadPoolExecutor(READERS, "dali_feed-scan") as pool:
        left = {pool.submit(work, own) for own in range(READERS)}
        try:
            while left:
                done, left = wait(left, TELL_SECONDS, FIRST_COMPLETED)
                size += sum(each.result() for each in done)
                if not done:
                    LOG.warning("%s: %.0f %% of its offsets have been looked at", topic, 100 * sum(looked) / total)
        finally:
            stop.set()
    return Present.of_flags(starts.tolist(), flags), size
