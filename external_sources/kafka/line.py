"""A snapshot's records in one line: each has a number, and they are read ahead in the order of their numbers.

The law of this file: a record's number depends on the snapshot alone, so that a run which goes on at a number goes on
with the record that it would have come to. Whoever reads, and how many of them, shows nowhere.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import numpy as np

from dali_feed.records.extents import Extents, Int64s, unpack_ids
from dali_feed.records.source import Block, Reader, Snapshot, Source

__all__ = ["Ahead", "Line"]

PIECE_BYTES = 8 << 20
MOST = 8192  # records of a piece


@dataclass(frozen=True, slots=True)
class Line:
    """The line, as pieces that are read in one go each.

    pieces  runs of the snapshot's numbers, in order
    before  records in front of each piece, and at the end all of them, int64 (pieces + 1,)
    """

    snapshot: Snapshot
    pieces: Extents
    before: Int64s

    @classmethod
    def of(cls, snapshot: Snapshot) -> Line:
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

    def after(self, number: int) -> Iterator[tuple[int, Extents]]:
        """(first number, positions) of each piece, from a record's number on."""
        piece = int(np.searchsorted(self.before, number, side="right")) - 1
        for k in range(piece, len(self.pieces)):
            first = max(number, int(self.before[k]))
            start = int(self.pieces.start[k]) + first - int(self.before[k])
            numbers = Extents.one(int(self.pieces.partition[k]), start, int(self.pieces.stop[k]))
            yield first, self.snapshot.located(numbers)

    def at(self, number: int) -> tuple[int, int]:
        """(partition, position) of a record."""
        _, extents = next(self.after(number))
        partition, position = unpack_ids(extents[:1].ids()[:1])
        return int(partition[0]), int(position[0])


Make = Callable[[list[Block]], list[Any]]


class Ahead:
    """Reads a line from a number on, some pieces ahead, in threads; `make` runs there too.

    make  a piece's blocks, one of each source, made into a list with an item per record; the blocks are given back then
    """

    def __init__(self, sources: list[Source], line: Line, number: int, make: Make, readers: int) -> None:
        self._sources, self._make = sources, make
        self._todo = line.after(number) if number < len(line) else iter(())
        self._stop = threading.Event()
        self._own = threading.local()
        self._lock = threading.Lock()
        self._opened: list[Reader] = []
        self._pool = ThreadPoolExecutor(readers, "dali-feed-produce")
        self._under_way: deque[Future[list[Any]]] = deque()
        self._most = readers + 1

    def take(self, timeout: float) -> list[Any] | None:
        """The items of the next piece; none of them where it does not come in time, and None at the end.

        Raises what a reader raises.
        """
        while len(self._under_way) < self._most and (found := next(self._todo, None)) is not None:
            self._under_way.append(self._pool.submit(self._read, found[1]))
        if not self._under_way:
            return None
        if not wait([self._under_way[0]], timeout).done:
            return []
        return self._under_way.popleft().result()

    def close(self) -> None:
        """End the threads; readers see the stop event."""
        self._stop.set()
        for future in self._under_way:
            future.cancel()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for reader in self._opened:
            reader.close()

    def _readers(self) -> list[Reader]:
        """This thread's."""
        mine: list[Reader] | None = getattr(self._own, "readers", None)
        if mine is None:
            mine = self._own.readers = [source.reader(None, self._stop) for source in self._sources]
            with self._lock:
                self._opened += mine
        return mine

    def _read(self, extents: Extents) -> list[Any]:
        blocks: list[Block] = []
        try:
            for reader in self._readers():
                block = reader.read(extents)
                blocks.append(block)  # at once: the next read may fail
            return self._make(blocks)
        finally:
            for block in blocks:
                block.payloads.clear()
                block.lease.release()
