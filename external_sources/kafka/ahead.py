"""The records of a source in one line, made ahead by threads.

The laws: a record's number depends on the snapshot alone, so that a run which goes on at a number goes on with the
record that it would have come to; whoever reads, and how many of them, shows nowhere. Memory is bounded, whatever a
user's function makes of a record.

One thread takes. Threads of a pool read pieces of the source and make records; what they give comes by futures, which
are taken in order.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import numpy as np

from dali_feed.external_sources.kafka.writes import Item, Row, SourceRows, Writing, Written
from dali_feed.records.extents import Extents, Int64s, unpack_ids
from dali_feed.records.source import Snapshot

PIECE_BYTES = 8 << 20
MOST = 8192  # records of a piece
CHUNK_BYTES = 1 << 20  # that map= makes at once, but for one record of any size

RowsOf = Callable[[threading.Event], SourceRows]  # a thread's way to the source's rows


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

    def after(self, number: int) -> Iterator[tuple[int, Extents]]:
        """(first number, positions) of each piece, from a record's number on."""
        piece = int(np.searchsorted(self.before, number, side="right")) - 1
        for k in range(piece, len(self.pieces)):
            first = max(number, int(self.before[k]))
            start = int(self.pieces.start[k]) + first - int(self.before[k])
            numbers = Extents.one(int(self.pieces.partition[k]), start, int(self.pieces.stop[k]))
            yield first, self.snapshot.located(numbers)

    def first(self, count: int) -> Extents:
        """The first records, as many as lie in the first piece and at most `count`."""
        start, stop = int(self.pieces.start[0]), int(self.pieces.stop[0])
        numbers = Extents.one(int(self.pieces.partition[0]), start, min(stop, start + count))
        return self.snapshot.located(numbers)

    def at(self, number: int) -> tuple[int, int]:
        """(partition, position) of a record."""
        _, extents = next(self.after(number))
        partition, position = unpack_ids(extents[:1].ids()[:1])
        return int(partition[0]), int(position[0])


class RecordsAhead:
    """Makes the records of a line, from a number on, some pieces ahead, in threads. `take` is one thread's.

    Without map= a piece's records are made as it is read. With it they are made in chunks: one ends when it has made
    CHUNK_BYTES, and what is left of it is begun again. So memory is bounded by the pieces, which are of the source, and
    by a chunk and a record of each thread, whatever map= makes.
    """

    def __init__(self, writing: Writing, rows: RowsOf, readers: int, line: Numbered, number: int) -> None:
        self._make, self._maps, self._open = writing.make, writing.map is not None, rows
        self._most = readers + 1  # pieces, and chunks, that are under way
        self._todo = line.after(number) if number < len(line) else iter(())
        self._stop = threading.Event()
        self._opened: dict[int, SourceRows] = {}  # of each thread its own
        self._pool = ThreadPoolExecutor(readers, "dali-feed-produce")
        self._chunks: deque[Future[tuple[list[Item], list[Any]]]] = deque()  # records, and rows that are left
        self._pieces: deque[Future[Iterator[Any]]] = deque()  # rows that chunks are cut from
        self._rows: Iterator[Any] = iter(())  # of the piece that is being cut
        self._largest = 0  # bytes of a record that was made

    def take(self, timeout: float) -> list[Item] | None:
        """The next records; none of them where they do not come in time, and None at the end.

        Raises what a reader raises.
        """
        if not self._maps:
            self._submit(self._chunks, lambda extents: (list(map(self._make, self._own_rows().read(extents))), []))
        else:
            self._submit(self._pieces, lambda extents: self._own_rows().read(extents))
            self._cut()
        waiting: list[Future[Any]] = [*self._chunks, *self._pieces]
        if not waiting:
            return None
        if not wait(waiting[:1], timeout).done or not self._chunks:
            return []
        items, rest = self._chunks.popleft().result()
        if rest:
            self._chunks.appendleft(self._pool.submit(self._chunk, rest))
        if self._maps:
            self._largest = max(1, self._largest, *map(_size, items))
        return items

    def close(self) -> None:
        """End the threads; readers see the stop event."""
        self._stop.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for rows in self._opened.values():
            rows.close()

    def _submit(self, to: deque[Future[Any]], what: Callable[[Extents], Any]) -> None:
        """Have pieces read ahead."""
        while len(to) < self._most and (piece := next(self._todo, None)) is not None:
            to.append(self._pool.submit(what, piece[1]))

    def _cut(self) -> None:
        """Have chunks made ahead; only one, of one record, as long as nobody knows what map= makes of one."""
        while len(self._chunks) < (self._most if self._largest else 1):
            rows, size = [], 0
            for row in self._rows:
                rows.append(row)
                size += _size(row)
                if size >= CHUNK_BYTES or (len(rows) + 1) * self._largest > CHUNK_BYTES or not self._largest:
                    break
            if rows:
                self._chunks.append(self._pool.submit(self._chunk, rows))
            elif self._pieces and self._pieces[0].done():
                self._rows = self._pieces.popleft().result()
            else:
                return

    def _chunk(self, rows: list[Any]) -> tuple[list[Item], list[Any]]:
        """A chunk's records, and the rows that it has not come to."""
        items: list[Item] = []
        size = 0
        for row in rows:
            items.append(self._make(row))
            size += _size(items[-1])
            if size >= CHUNK_BYTES or self._stop.is_set():
                break
        return items, rows[len(items) :]

    def _own_rows(self) -> SourceRows:
        """This thread's."""
        me = threading.get_ident()
        if me not in self._opened:
            self._opened[me] = self._open(self._stop)
        return self._opened[me]


def _size(row: object) -> int:
    return len(row.value or b"") if isinstance(row, Row | Written) else 0
