"""The records of a partition into rows by C, some hundred nanoseconds each beside the copy.

It can be had where the loops in C are compiled (`dali_feed.native`), confluent_kafka has its librdkafka beside it as
its wheels do, and what is wanted of each record are parts that can be copied. The client is confluent_kafka's as ever:
settings, log, statistics and errors of the connection go its ways. What a partition gives is taken from that
partition's own queue; the line that tells of another topic (`cluster.py`) stands in the client's queue before any
record of that topic stands in the partition's. So the client's queue is emptied after records were taken, and what they
are is judged after that.

The law of memory: no read fails for memory that was only expected. A memory is of one slab at most, but for a record
that is larger.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import confluent_kafka
import numpy as np
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from dali_feed.errors import SourceError
from dali_feed.external_sources.kafka.client import SLICE_SECONDS
from dali_feed.external_sources.kafka.rows import Cells, KafkaParts
from dali_feed.native.kafka import (
    EMPTY,
    EVENT,
    LOOK,
    MOST_HEADERS,
    ROOM,
    Functions,
    Queue,
    RowsInC,
    RunInC,
    address,
    functions,
)


@cache
def librdkafka() -> str | None:
    """The library that confluent_kafka's wheel has beside it; None where it was built in another way."""
    package = Path(confluent_kafka.__file__).parent
    paths = sorted((package.parent / f"{package.name}.libs").glob("librdkafka*.so*"))
    return str(paths[0]) if len(paths) == 1 else None


def by_column(parts: KafkaParts) -> bool:
    """Whether records can be taken so."""
    names = "".join(parts.headers)
    if parts.every_header or parts.whole or len(parts.headers) + len(parts.claim) > MOST_HEADERS or "\0" in names:
        return False
    try:
        names.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which no header has
        return False
    path = librdkafka()
    return path is not None and functions(path) is not None


class FilledByC:
    """The rows of a read, as C is told of them, and the memory that it fills. Used by one thread.

    rows  addresses of the very arrays of the cells
    """

    def __init__(self, cells: Cells) -> None:
        parts, numbers = cells.parts, cells.cells
        self._cells = cells
        self._rest = 0, 0, 0  # the memory that is filled on behind a large record: bytes that are free, number, filled
        names = [name.encode() for name in (*parts.headers, *parts.claim)]
        self._names = (ctypes.c_char_p * len(names))(*names)
        self.rows = RowsInC(rows=cells.rows, value=parts.value, key=parts.key, headers=len(parts.headers))
        self.rows.claims, self.rows.names = len(parts.claim), ctypes.cast(self._names, ctypes.c_void_p)
        self.rows.of, self.rows.at, self.rows.size = (address(numbers) + k * numbers.strides[0] for k in range(3))
        self.rows.times = address(cells.times) if parts.timestamp else None
        self.rows.taken = address(cells.taken)

    def grow(self, need: int, each: int) -> None:
        """Another memory, for the next record of `need` bytes and all rows that are left, of a slab at most.

        They have `each` so many bytes, as far as is known. A large record has a memory of its own: that before it is
        filled on behind it.
        """
        rows, lease, memories = self.rows, self._cells.lease, self._cells.memories
        expected = max(need, each) * (self._cells.rows - int(np.count_nonzero(self._cells.taken)))
        if need <= self._rest[0]:
            (_, number, filled), self._rest = self._rest, (0, 0, 0)
        else:
            if need > lease.slab_bytes // 2:
                self._rest = max(self._rest, (rows.room - rows.filled, rows.number, rows.filled))
                expected = need
            memories.append(lease.room(max(need, min(lease.slab_bytes, expected))))
            number, filled = len(memories) - 1, 0
        rows.memory, rows.room = address(memories[number]), len(memories[number])
        rows.number, rows.filled = number, filled


@dataclass(slots=True)
class OffsetRun:
    """The offsets want..stop-1 of a partition are still to come; a record's row is its offset + shift.

    take      puts a record into its row; what is kept of it is copied
    filled    what C fills of these rows; None where they are read by message
    spoilt    puts why it cannot be read into a record's row; None: that is an error
    received  bytes of the records that came
    end_seen  where the partition has ended too early, since the last record
    refused   the last offset that the broker said it does not have, or that could not be unpacked
    """

    partition: int
    want: int
    stop: int
    shift: int
    take: Callable[[int, Message], None]
    filled: FilledByC | None = None
    spoilt: Callable[[int, str], None] | None = None
    received: int = 0
    end_seen: int | None = None
    refused: int = -1


class Event(NamedTuple):
    """What is no record: an error, or the end of a partition, and where."""

    error: KafkaError
    partition: int | None
    offset: int | None


class ByColumn:
    """Records that C takes of the partition's own queue; see `ByMessage`. Its runs have `filled`."""

    def __init__(self, consumer: Consumer, own: Functions, handle: int, topic: str) -> None:
        self._consumer, self._topic = consumer, topic
        self._own, self._handle = own, handle
        self._queue: Queue | None = None
        self._left: Queue | None = None  # of the partition before this one
        self._partition = -1
        self._run = RunInC()
        self._events: list[Message] = []  # of the client's own queue

    def assign(self, partition: int, offset: int) -> None:
        """See `ByMessage`."""
        self.drop()
        if partition != self._partition or self._queue is None:
            self._leave()
            # Before it is assigned, or its first records would go to the client's queue.
            new = Queue(self._own, self._handle, self._topic, partition, keeps=self._consumer)
            self._left, self._queue, self._partition = self._queue, new, partition
        self._consumer.assign([TopicPartition(self._topic, partition, offset)])

    def fetch(self, run: OffsetRun, most: int) -> Event | None:
        """See `ByMessage`. What is taken of a topic in doubt is there already when that is known."""
        del most
        why = self._take(run)
        self._hear(0 if self._queue else SLICE_SECONDS)  # librdkafka has none of some partitions
        if self._events:
            first = self._events.pop(0)
            if (error := first.error()) is not None:
                return Event(error, first.partition(), first.offset())
            self.assign(run.partition, run.want)  # a record, which has no business there: all from there on once more
            return None
        if why != EVENT or self._queue is None:
            return None
        head = self._queue.head()
        if not head.code:  # skipped, it might have been records
            raise SourceError(
                f"{self._topic}[{run.partition}]@{run.want}: a partition's queue must hold records and errors; "
                "librdkafka gave something else: set DALI_FEED_NATIVE=0 to read without the loops in C"
            )
        self._queue.skip()
        return Event(KafkaError(head.code, head.text, head.fatal), head.partition, head.offset)

    def _take(self, run: OffsetRun) -> int:
        """Records into their rows for a slice of time; why C came back last."""
        queue, filled, in_c = self._queue, run.filled, self._run
        if not queue or filled is None:
            return EMPTY
        in_c.want, in_c.stop, in_c.bytes, filled.rows.shift = run.want, run.stop, 0, run.shift
        until = time.monotonic() + SLICE_SECONDS
        while True:
            why = queue.take(in_c, filled.rows, max(0, int((until - time.monotonic()) * 1000)))
            if why != ROOM:
                break
            each = in_c.bytes // max(1, in_c.want - run.want)  # of an offset, holes too
            filled.grow(in_c.need, each)
            if time.monotonic() >= until:  # large records, each with memory of its own, never let C look at the clock
                why = LOOK
                break
        if in_c.want > run.want or why == EVENT:
            self._leave()
        run.want = in_c.want
        run.received += in_c.bytes
        return why

    def _hear(self, seconds: float) -> None:
        """Take what the client itself has: logs and statistics go to their functions meanwhile."""
        while (message := self._consumer.poll(seconds)) is not None:
            self._events.append(message)

    def drop(self) -> None:
        """See `ByMessage`."""
        self._events.clear()
        if self._queue is not None:
            self._queue.skip()

    def close(self) -> None:
        """See `ByMessage`."""
        self._leave()
        queue, self._queue = self._queue, None
        if queue is not None:
            queue.close()

    def _leave(self) -> None:
        """Close the queue of the partition before: nothing more comes into it once there are records of this one.

        Closed sooner it would keep a fetch, some megabytes of each partition, for as long as the client lives.
        """
        queue, self._left = self._left, None
        if queue is not None:
            queue.close()
