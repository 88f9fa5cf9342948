"""The records of a source in one line, made ahead by threads.

The laws: a record's number depends on the snapshot alone, so that a run which goes on at a number goes on with the
record that it would have come to; whoever reads, and how many of them, shows nowhere. Memory is bounded, whatever a
user's function makes of a record.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np

from dali_feed.external_sources.kafka.writes import Item, Writing, Written
from dali_feed.records.extents import Extents, Int64s
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import Reader, Snapshot, unpack_id

PIECE_BYTES = 8 << 20
MOST = 8192  # records of a piece
CHUNK_BYTES = 2 << 20  # that map= makes at once, but for one record of any size
ALL = 1 << 40  # more records than a piece has
SLICE_SECONDS = 0.1  # until nothing is given


@dataclass(frozen=True, slots=True)
class Numbered:
    """The line, as pieces that are read in one go each.

    pieces  runs of the snapshot's numbers, in order
    before  records in front of each piece, and at the end all of them, int64 (pieces + 1,)
    """

    snapshot: Snapshot
    pieces: Extents
    before: Int64s

    @classmethod
    def of(cls, snapshot: Snapshot) -> Numbered:
        """One partition after the other; of a topic the partitions in turn, an extent of each."""
        if snapshot.interleaved:
            size = snapshot.extent
        else:
            size = min(MOST, max(1, PIECE_BYTES // snapshot.record_bytes))
        runs: list[Int64s] = []
        for partition, (start, stop) in enumerate(zip(*(each.tolist() for each in snapshot.numbers), strict=True)):
            first = np.arange(start, stop, size, dtype=np.int64)
            turn = np.arange(len(first)) if snapshot.interleaved else np.full(len(first), partition)
            runs.append(np.stack([turn, np.full(len(first), partition), first, np.minimum(first + size, stop)]))
        whole = np.concatenate(runs, axis=1)
        turn, partition_of, start_of, stop_of = whole[:, np.lexsort((whole[2], whole[1], whole[0]))]
        before = np.concatenate([[0], np.cumsum(stop_of - start_of)]).astype(np.int64)
        return cls(snapshot, Extents(partition_of, start_of, stop_of), before)

    def __len__(self) -> int:
        return int(self.before[-1])

    def run(self, number: int, most: int = ALL) -> Extents:
        """The records from a number on that are read in one go, `most` of them at most."""
        piece = int(np.searchsorted(self.before, number, side="right")) - 1
        start = int(self.pieces.start[piece]) + number - int(self.before[piece])
        stop = min(start + most, int(self.pieces.stop[piece]))
        return self.snapshot.located(Extents.one(int(self.pieces.partition[piece]), start, stop))

    def at(self, number: int) -> tuple[int, int]:
        """(partition, position) of a record."""
        return unpack_id(int(self.run(number, 1).ids()[0]))


def made_ahead(writing: Writing, readers: int, line: Numbered, number: int) -> Generator[list[Item]]:
    """The records of a line from a number on, in order, that threads make ahead; none where they take their time.

    Without map= a thread makes a piece. With it what has CHUNK_BYTES: less where a record grew to more than expected,
    and the rest is begun again. So memory is bounded by a chunk and a record of each thread, whatever map= makes.

    Raises what a reader raises. To be closed: that ends the threads, whose readers see the stop event.
    """
    mapped, stop, slabs = writing.map is not None, threading.Event(), SlabPool()
    opened: dict[int, Reader] = {}  # of each thread its own
    waiting: deque[tuple[int, int, Future[list[Item]]]] = deque()  # the first number, how many, and those records
    largest = 0  # bytes that a record was made to

    def make(extents: Extents) -> list[Item]:
        lease, own = slabs.lease(), threading.get_ident()
        try:
            if own not in opened:
                opened[own] = writing.reader(stop)
            items: list[Item] = []
            size = 0
            for item in writing.items(opened[own].read(extents, lease)):
                items.append(item)
                size += _size(item)
                if stop.is_set() or (mapped and size >= CHUNK_BYTES):
                    break
            return items
        finally:
            lease.release()

    def begin(first: int, most: int) -> tuple[int, int, Future[list[Item]]]:
        extents = line.run(first, most)
        return first, int(extents.lengths.sum()), pool.submit(make, extents)

    pool = ThreadPoolExecutor(readers, "dali-feed-produce")
    try:
        while True:
            most = max(1, CHUNK_BYTES // max(largest, line.snapshot.record_bytes)) if largest else 1
            while number < len(line) and len(waiting) < (readers + 1 if largest or not mapped else 1):
                waiting.append(begin(number, most if mapped else ALL))
                number += waiting[-1][1]
            if not waiting:
                return
            first, count, coming = waiting[0]
            if not wait([coming], SLICE_SECONDS).done:
                yield []
                continue
            items = coming.result()
            waiting.popleft()
            if len(items) < count:
                waiting.appendleft(begin(first + len(items), count - len(items)))
            largest = max(1, largest, *map(_size, items))
            yield items
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
        for reader in opened.values():
            reader.close()


def _size(item: Item) -> int:
    return len(item.value or b"") if isinstance(item, Written) else 0
