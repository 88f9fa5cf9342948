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

from dali_feed.bad_records import place_of
from dali_feed.checks import name_of
from dali_feed.errors import ConfigError, DaliFeedError, FormatError, MissingPackageError
from dali_feed.external_sources.kafka.claims import Claim
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.external_sources.kafka.writes import Row, SourceRows, Writing, Written
from dali_feed.records.extents import Extents, Int64s, unpack_ids
from dali_feed.records.source import Snapshot, Source

__all__ = ["Item", "Numbered", "ProduceJob", "RecordsAhead"]

PIECE_BYTES = 8 << 20
MOST = 8192  # records of a piece
CHUNK_BYTES = 1 << 20  # that map= makes at once, but for one record of any size

Item = Written | str | None  # a record, why there is none, or that there is none to be had


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


@dataclass(frozen=True)
class ProduceJob:
    """What a run is to do; `Producer` and `Producer.run` document the values.

    rows           gives a thread its way to the source's rows
    transactional  "auto": by an id of the run's own
    """

    to: Connection
    source: Source
    rows: Callable[[threading.Event], SourceRows]
    writing: Writing
    map: Callable[[bytes], bytes] | None
    claim: Claim | None
    readers: int
    every: float
    by_key: bool
    compression: str
    queue_bytes: int
    transactional: str | None

    def make(self, row: Row | Written | str | None) -> Item:
        """The record that is sent for a row, without a value that is stored elsewhere; or why there is none."""
        if not isinstance(row, tuple):
            return row
        stage: Any = self.map
        try:
            if self.map is not None and row.value is not None:  # of a tombstone there is nothing to map
                row = row._replace(value=_bytes(self.map(row.value)))
            stage = self.writing.record
            record = stage(row) if isinstance(row, Row) else row
        except (ConfigError, MissingPackageError, MemoryError):
            raise
        except (DaliFeedError, FormatError) as error:
            return str(error)
        except Exception as error:  # noqa: BLE001  whatever a user's function raises is about this record
            place, name = place_of(error, stage), "map" if stage is self.map else "format"
            return f"{name}: {type(error).__name__}: {error}{f', at {place}' if place else ''}"
        if self.claim is None or not (claim := self.claim.stored(record.value)):
            return record
        size = len(record.value or b"")
        return record._replace(value=b"", headers=[*record.headers, *claim], elsewhere=size)

    def options(self) -> dict[str, Any]:
        """What a run must go on with. Of a function its name and code are known."""
        told = None if self.map is None else getattr(self.map, "told", None) or name_of(self.map)
        by = "key" if self.by_key else "turn"
        options = {**self.writing.to_json(), "map": told, "by": by, "transactional": self.transactional}
        return options | ({} if self.claim is None else {"claim": self.claim.to_json()})


class RecordsAhead:
    """Makes the records of a line, from a number on, some pieces ahead, in threads. `take` is one thread's.

    Without map= a piece's records are made as it is read. With it they are made in chunks: one ends when it has made
    CHUNK_BYTES, and what is left of it is begun again. So memory is bounded by the pieces, which are of the source, and
    by a chunk and a record of each thread, whatever map= makes.

    Args:
        job: what is done.
        line: all records, of which `number` is the first that is wanted.
    """

    def __init__(self, job: ProduceJob, line: Numbered, number: int) -> None:
        self._job, self._most = job, job.readers + 1  # pieces, and chunks, that are under way
        self._todo = line.after(number) if number < len(line) else iter(())
        self._stop = threading.Event()
        self._own = threading.local()  # rows: each thread has its own
        self._lock = threading.Lock()  # guards `_opened`
        self._opened: list[SourceRows] = []
        self._pool = ThreadPoolExecutor(job.readers, "dali-feed-produce")
        self._chunks: deque[Future[tuple[list[Item], list[Any]]]] = deque()  # records, and rows that are left
        self._pieces: deque[Future[Iterator[Any]]] = deque()  # rows that chunks are cut from
        self._rows: Iterator[Any] = iter(())  # of the piece that is being cut
        self._largest = 0  # bytes of a record that was made

    def take(self, timeout: float) -> list[Item] | None:
        """The next records; none of them where they do not come in time, and None at the end.

        Raises what a reader raises.
        """
        if self._job.map is None:
            self._submit(self._chunks, lambda extents: (list(map(self._job.make, self._own_rows().read(extents))), []))
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
            self._chunks.appendleft(self._pool.submit(self._make, rest))
        if self._job.map is not None:
            self._largest = max(1, self._largest, *map(_size, items))
        return items

    def close(self) -> None:
        """End the threads; readers see the stop event."""
        self._stop.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for rows in self._opened:
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
                self._chunks.append(self._pool.submit(self._make, rows))
            elif self._pieces and self._pieces[0].done():
                self._rows = self._pieces.popleft().result()
            else:
                return

    def _make(self, rows: list[Any]) -> tuple[list[Item], list[Any]]:
        """A chunk's records, and the rows that it has not come to."""
        items: list[Item] = []
        size = 0
        for row in rows:
            items.append(self._job.make(row))
            size += _size(items[-1])
            if size >= CHUNK_BYTES or self._stop.is_set():
                break
        return items, rows[len(items) :]

    def _own_rows(self) -> SourceRows:
        """This thread's."""
        mine: SourceRows | None = getattr(self._own, "rows", None)
        if mine is None:
            mine = self._own.rows = self._job.rows(self._stop)
            with self._lock:
                self._opened.append(mine)
        return mine


def _size(row: object) -> int:
    return len(row.value or b"") if isinstance(row, Row | Written) else 0


def _bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        msg = f"a value must be bytes; found {type(value).__name__}"
        raise TypeError(msg)
    return value
