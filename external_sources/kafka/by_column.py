"""The records of a partition into rows by C, some hundred nanoseconds each beside the copy.

It can be had where the loops in C are compiled (`dali_feed.native`), confluent_kafka has its librdkafka beside it as
its wheels do, and what is wanted of each record are parts that can be copied. The client is confluent_kafka's as ever:
settings, log, statistics and errors of the connection go its ways. What a partition gives is taken from that
partition's own queue; the line that tells of another topic (`cluster.py`) stands in the client's queue before any
record of that topic stands in the partition's. So the client's queue is emptied after records were taken, and what they
are is judged after that.

The law of memory: no read fails, and no slab is held, for memory that was only expected: what the lease gave ahead and
C has not come to goes back before more is asked of the lease, and at the end of the read.
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
    MemoryInC,
    Queue,
    RowsInC,
    RunInC,
    address,
    functions,
)

_MOST_AHEAD = 8  # slabs: records may have become small, and to ask C once per so many costs nothing


@cache
def librdkafka() -> str | None:
    """The library that confluent_kafka's wheel has beside it; None where it was built in another way."""
    package = Path(confluent_kafka.__file__).parent
    found = sorted((package.parent / f"{package.name}.libs").glob("librdkafka*.so*"))
    return str(found[0]) if len(found) == 1 else None


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

    told  addresses of the very arrays of the cells
    """

    def __init__(self, cells: Cells, row_bytes: int = 0) -> None:
        """`row_bytes`, which C put into a row of the read before, say how much memory `begin` takes for all rows."""
        parts, numbers = cells.parts, cells.cells
        self._cells, self._row_bytes, self._begun = cells, row_bytes, False
        names = [name.encode() for name in (*parts.headers, *parts.claim)]
        self._names = (ctypes.c_char_p * len(names))(*names)
        self.told = RowsInC(rows=cells.rows, value=parts.value, key=parts.key, headers=len(parts.headers))
        self.told.claims, self.told.names = len(parts.claim), ctypes.cast(self._names, ctypes.c_void_p)
        self.told.of, self.told.at, self.told.size = (address(numbers) + k * numbers.strides[0] for k in range(3))
        self.told.times = address(cells.times) if parts.timestamp else None
        self.told.taken = address(cells.taken)
        self._ahead: dict[int, memoryview] = {}  # by number, those that the lease gave ahead
        self._next: list[MemoryInC] = []  # as C was told of them: it has gone through the first ones

    def begin(self, shift: int) -> None:
        """C is asked now, for rows that are offset + shift."""
        self.told.shift = shift
        if self._begun:
            return
        self._begun = True
        lease, row_bytes = self._cells.lease, self._row_bytes
        if 0 < row_bytes <= lease.slab_bytes // 2:  # a record that no longer fits leaves half of a slab at most
            whole, rest = divmod(self._cells.rows, lease.slab_bytes // row_bytes)
            size = min(whole * lease.slab_bytes + rest * row_bytes, _MOST_AHEAD * lease.slab_bytes)
            line = [self._numbered(view) for view in lease.ahead(size)]
            self._ahead = {each.number: self._cells.memories[each.number] for each in line}
            self._line_up(line)

    def grow(self, need: int) -> None:
        """Another memory, for all rows that are left: as large as those before, the next of `need` bytes.

        It is a slab at most: what does not fit into the rest of one goes into the next, so that a lease is as well
        filled as by message. A large record leaves the rest of its slab to those behind it.
        """
        told, spare, slab = self.told, self._spare(), self._cells.lease.slab_bytes
        fits = next((k for k, each in enumerate(spare) if each.room >= need), None)
        if fits is None:
            self._give_back()  # or they count against what one lease may take
            there = int(np.count_nonzero(self._cells.taken))
            expected = max(need, self._filled() // there if there else 0) * (self._cells.rows - there)
            now = self._numbered(self._cells.lease.room(max(need, min(slab, expected))))
            spare = self._spare()
        else:
            now, spare = spare[fits], [*spare[fits + 1 :], *spare[:fits]]
        if need > slab // 2 and told.filled < told.room:
            spare.insert(0, self._numbered(self._cells.memories[told.number][told.filled : told.room]))
        self._line_up(spare)
        told.memory, told.room, told.number, told.filled = now.at, now.room, now.number, 0

    def settle(self) -> int:
        """All records have come: what was taken in vain goes back. Bytes of a row, for the read behind this one."""
        unused = {each.number for each in self._spare()}
        filled = sum(len(view) for number, view in self._ahead.items() if number not in unused)
        if self.told.number in self._ahead:
            filled -= self.told.room - self.told.filled
        self._give_back(filled)
        return self._filled() // max(1, self._cells.rows)

    def _filled(self) -> int:
        return int(self._cells.cells[2].sum())

    def _numbered(self, piece: memoryview) -> MemoryInC:
        memories = self._cells.memories
        memories.append(piece)
        return MemoryInC(address(piece), len(piece), len(memories) - 1)

    def _spare(self) -> list[MemoryInC]:
        """Those that C has not come to."""
        return self._next[len(self._next) - self.told.spare :]

    def _line_up(self, line: list[MemoryInC]) -> None:
        self._next = line
        self.told.next, self.told.spare = (MemoryInC * len(line))(*line), len(line)

    def _give_back(self, filled: int = 0) -> None:
        """To the lease what it gave ahead and C has not come to; `filled` bytes are in the others."""
        unused = {each.number for each in self._spare()} & self._ahead.keys()
        self._cells.lease.back([self._ahead.pop(number) for number in unused], filled)
        self._line_up([each for each in self._spare() if each.number not in unused])


@dataclass(slots=True)
class OffsetRun:
    """The offsets want..stop-1 of a partition are still to come; a record's row is its offset + shift.

    take      puts a record into its row; what is kept of it is copied
    filled    what C fills of these rows; None where they are read by message
    received  bytes of the records that came
    end_seen  where the partition has ended too early, since the last record
    refused   the last offset that the broker said it does not have
    """

    partition: int
    want: int
    stop: int
    shift: int
    take: Callable[[int, Message], None]
    filled: FilledByC | None = None
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
        said = self._queue.said()
        if not said.code:  # skipped, it might have been records
            raise SourceError(
                f"{self._topic}[{run.partition}]@{run.want}: a partition's queue must hold records and errors; "
                "librdkafka gave something else: set DALI_FEED_NATIVE=0 to read without the loops in C"
            )
        self._queue.skip()
        return Event(KafkaError(said.code, said.text, said.fatal), said.partition, said.offset)

    def _take(self, run: OffsetRun) -> int:
        """Records into their rows for a slice of time; why C came back last."""
        queue, filled, told = self._queue, run.filled, self._run
        if not queue or filled is None:
            return EMPTY
        told.want, told.stop, told.bytes = run.want, run.stop, 0
        filled.begin(run.shift)
        until = time.monotonic() + SLICE_SECONDS
        while True:
            why = queue.take(told, filled.told, max(0, int((until - time.monotonic()) * 1000)))
            if why != ROOM:
                break
            filled.grow(told.need)
            if time.monotonic() >= until:  # large records, each with memory of its own, never let C look at the clock
                why = LOOK
                break
        if told.want > run.want or why == EVENT:
            self._leave()
        run.want = told.want
        run.received += told.bytes
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
