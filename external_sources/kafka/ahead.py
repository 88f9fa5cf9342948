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
from typing import TypeVar

import numpy as np

from dali_feed.external_sources.kafka.writes import Item, Writing, Written
from dali_feed.records.extents import Extents, Int64s
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import Block, Reader, Snapshot, unpack_id

PIECE_BYTES = 8 << 20
MOST = 8192  # records of a piece
CHUNK_BYTES = 2 << 20  # that map= makes at once, but for one record of any size
ALL = 1 << 40  # more records, or bytes, than a piece has
SLICE_SECONDS = 0.1  # until nothing is given

T = TypeVar("T")


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

    A thread reads a piece and makes its records. With map= it makes what has CHUNK_BYTES; when it is the piece's turn,
    all threads make what is left of it, in such chunks. So memory is bounded by the pieces, which are of the source,
    and by two chunks and two records for each thread, whatever map= makes.

    Raises what a reader raises. To be closed: that ends the threads, whose readers see the stop event.
    """
    makers = _Makers(writing, readers)
    pieces: deque[Future[tuple[list[Item], Block | None]]] = deque()
    try:
        while True:
            while number < len(line) and len(pieces) <= readers:
                extents = line.run(number)
                pieces.append(makers.pool.submit(makers.read, extents))
                number += extents.positions
            if not pieces:
                return
            items, block = yield from _result(pieces[0])
            yield items
            if block is not None:
                yield from makers.rest(block, items)
            pieces.popleft()
    finally:
        makers.close()


class _Makers:
    """Threads that read pieces and make records, each with a reader of its own."""

    def __init__(self, writing: Writing, readers: int) -> None:
        self._writing, self._readers = writing, readers
        self._limit = ALL if writing.map is None else CHUNK_BYTES  # bytes that are made at once
        self._stop, self._slabs = threading.Event(), SlabPool()
        self._opened: dict[int, Reader] = {}  # by thread
        self.pool = ThreadPoolExecutor(readers, "dali-feed-produce")

    def read(self, extents: Extents) -> tuple[list[Item], Block | None]:
        """The first records of a piece, all of them where map= allows; else the block that has the others too."""
        lease, own = self._slabs.lease(), threading.get_ident()
        if own not in self._opened:
            self._opened[own] = self._writing.reader(self._stop)
        block = self._opened[own].read(extents, lease)
        items = self._make(block, range(len(block.ids)))
        if len(items) < len(block.ids):
            return items, block
        lease.release()
        return items, None

    def rest(self, block: Block, items: list[Item]) -> Generator[list[Item]]:
        """The records behind the first of a block, in chunks; how many one has goes by those before it."""
        rows = range(len(items), len(block.ids))
        chunks: deque[tuple[range, Future[list[Item]]]] = deque()
        while rows or chunks:
            most = max(1, CHUNK_BYTES * len(items) // max(1, sum(map(_size, items))))
            while rows and len(chunks) <= self._readers:
                chunks.append(self._begun(block, rows[:most]))
                rows = rows[most:]
            chunk, coming = chunks.popleft()
            items = yield from _result(coming)
            if len(items) < len(chunk):
                chunks.appendleft(self._begun(block, chunk[len(items) :]))
            yield items
        block.lease.release()

    def close(self) -> None:
        """End the threads."""
        self._stop.set()
        self.pool.shutdown(wait=True, cancel_futures=True)
        for reader in self._opened.values():
            reader.close()

    def _begun(self, block: Block, rows: range) -> tuple[range, Future[list[Item]]]:
        return rows, self.pool.submit(self._make, block, rows)

    def _make(self, block: Block, rows: range) -> list[Item]:
        items: list[Item] = []
        size = 0
        for item in self._writing.items(block, rows):
            items.append(item)
            size += _size(item)
            if self._stop.is_set() or size >= self._limit:
                break
        return items


def _result(coming: Future[T]) -> Generator[list[Item], None, T]:
    """What comes; no records as long as it does not."""
    while not wait([coming], SLICE_SECONDS).done:
        yield []
    return coming.result()


def _size(item: Item) -> int:
    return len(item.value or b"") if isinstance(item, Written) else 0
