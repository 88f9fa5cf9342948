"""Readers that keep what they read, and give it again without the source.

The law: with a cache and without, a read gives the same rows: records that are faults are read every time, a payload
that was decoded has the pixels that the engine would find, and what is kept is of one snapshot of the source. What is
read of one that is shuffled by runs, because single records are dear, is kept and read again by runs.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.columns.source import Columnar
from dali_feed.feed.disk_shelf import DiskShelf
from dali_feed.feed.row_files import RowFiles
from dali_feed.feed.row_key import key_of
from dali_feed.feed.shelf import Row, Shelf
from dali_feed.feed.whole_pixels import WholePixels
from dali_feed.options import Cache
from dali_feed.records.extents import unpack_id, unpack_ids
from dali_feed.records.gauges import CacheStats
from dali_feed.records.passing import PassingOn
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import Block, Extents, Int64s, Reader, Slabs, Snapshot, Source

__all__ = ["RecordCache"]


class RecordCache:
    """What the readers of one feed share. Before the first pass begins it keeps nothing.

    kept     where, and how many bytes
    decoded  makes payloads into pixels; None: they are kept as they are
    """

    def __init__(self, source: Source, kept: Cache, decoded: WholePixels | None = None) -> None:
        self._source, self._kept, self.decoded = source, kept, decoded
        self._shelf: Shelf | None = None
        self._fingerprint = ""
        self._by_runs = False
        self._lock = threading.Lock()
        self._hits = self._misses = 0

    def begin(self, snapshot: Snapshot) -> None:
        """A pass over that snapshot begins: what was kept of another one is dropped.

        ConfigError where rows are to be kept on a disk and it cannot be told whose they are, or it cannot be written.
        """
        if self._shelf is None or self._fingerprint != snapshot.fingerprint:
            self._drop()
            self._shelf, self._fingerprint = self._new_shelf(snapshot.fingerprint), snapshot.fingerprint
        self._shelf.look()
        self._by_runs = not snapshot.random_access

    def _new_shelf(self, fingerprint: str) -> Shelf:
        if self._kept.disk is None:
            return Shelf(self._kept.limit)
        made = () if self.decoded is None else self.decoded.told
        key = key_of(self._source, fingerprint, made)
        return DiskShelf(self._kept.limit, RowFiles(self._kept.disk, self._kept.disk_bytes, key))

    def _drop(self) -> None:
        shelf, self._shelf = self._shelf, None
        if shelf is not None:
            shelf.close()

    def reader(self, slabs: Slabs, stop: threading.Event) -> Reader:
        """A reader of the source, with the cache before it, and its columns, if any, behind."""
        if isinstance(self._source, Columnar):
            return self._source.reader(slabs, stop, lambda reader: _CachedReader(self, reader, slabs, stop))
        return _CachedReader(self, self._source.reader(slabs, stop), slabs, stop)

    def payload(self, sample: int, held: memoryview | None) -> bytes:
        """A record's payload as its source has it, read again where pixels are kept in its place."""
        shelf = self._shelf
        row = None if shelf is None or self.decoded is None else shelf.rows([sample])[0]
        if row is None or row.payload is None:
            return bytes(held or b"")
        partition, position = unpack_id(sample)
        reader = self._source.reader(SlabPool())
        try:
            block = reader.read(Extents.one(partition, position, position + 1))
            found = bytes(block.payloads[0] or b"")
            block.lease.release()
        finally:
            reader.close()
        return found

    def stats(self) -> CacheStats:
        """As it is now."""
        shelf = self._shelf
        records, held = (0, 0) if shelf is None else (len(shelf), shelf.held)
        memory = CacheStats(self._hits, self._misses, records, held, self._kept.limit)
        if not isinstance(shelf, DiskShelf):
            return memory
        files = shelf.files
        return replace(
            memory,
            disk_records=len(files),
            disk_held=files.size,
            disk_limit=self._kept.disk_bytes,
            damaged=files.damaged,
        )

    def close(self) -> None:
        """Keep nothing any more."""
        self._drop()
        if self.decoded is not None:
            self.decoded.close()

    def counted(self, hits: int, misses: int) -> None:
        """So many records more were given from memory, and read."""
        with self._lock:
            self._hits, self._misses = self._hits + hits, self._misses + misses

    def at(self) -> tuple[Shelf | None, bool]:
        """Where rows are kept, and whether whole runs are read: of the pass that a read begins in."""
        return self._shelf, self._by_runs


class _CachedReader(PassingOn):
    """Gives what is kept, reads the rest, and keeps that."""

    def __init__(self, cache: RecordCache, reader: Reader, slabs: Slabs, stop: threading.Event) -> None:
        super().__init__(reader)
        self._cache, self._slabs, self._stop = cache, slabs, stop

    def read(self, extents: Extents) -> Block:
        """As the source's reader does; see `records.Reader`."""
        shelf, by_runs = self._cache.at()
        if shelf is None:
            return self._read(extents)
        ids = extents.ids()
        rows = shelf.rows(ids.tolist())
        missing = np.array([row is None for row in rows], bool)
        if by_runs and len(missing):
            run = np.repeat(np.arange(len(extents)), extents.lengths)
            missing = np.isin(run, run[missing])
            rows = [None if gone else row for row, gone in zip(rows, missing.tolist(), strict=True)]
        at = np.flatnonzero(missing)
        self._cache.counted(len(ids) - len(at), len(at))
        if len(at) == len(ids):
            block = self._read(extents)
            self._keep(shelf, block)
            return block
        return self._whole(shelf, ids, rows, at)

    def _read(self, extents: Extents) -> Block:
        block: Block = self._reader.read(extents)
        return block

    def _whole(self, shelf: Shelf, ids: Int64s, rows: list[Row | None], at: NDArray[np.int64]) -> Block:
        """Kept rows, and those at `at`, which are read, as one block."""
        read = self._read(_runs(ids[at])) if len(at) else None
        lease = self._slabs.lease() if read is None else read.lease
        try:
            if read is not None and not self._keep(shelf, read):
                return self._all_anew(ids, read)
            payloads = [None if row is None else row.payload for row in rows]
            for k, payload in zip(at.tolist(), () if read is None else read.payloads, strict=True):
                payloads[k] = payload
            faults = {} if read is None else {int(at[row]): why for row, why in read.faults.items()}
            return Block(ids, payloads, shelf.fields(rows, read, at), lease, faults)
        except BaseException:
            lease.release()
            raise

    def _all_anew(self, ids: Int64s, read: Block) -> Block:
        """Everything from the source: the fields that it gives now are of another kind than those kept."""
        read.lease.release()
        return self._read(_runs(ids))

    def _keep(self, shelf: Shelf, block: Block) -> bool:
        """Keep what can be kept of a block; where payloads become pixels, those are the block's from here on."""
        if not shelf.fits(block):
            return False
        new: list[tuple[int, list[Any], int]] = []
        for row in range(len(block.ids)):
            if row not in block.faults and shelf.has_room(1):
                found = shelf.values_of(block, row)
                if found is not None:
                    new.append((row, *found))
        payloads = [block.payloads[row] for row, _, _ in new]
        decoded = self._cache.decoded
        made = payloads if decoded is None else self._pixels(decoded, shelf, payloads)
        if decoded is not None:
            for (row, _, _), pixels in zip(new, made, strict=True):
                block.payloads[row] = block.payloads[row] if pixels is None else pixels
        for (row, values, size), payload in zip(new, made, strict=True):
            if payload is None and block.payloads[row] is not None:
                continue  # no image, or no room for its pixels
            whole = size + (0 if payload is None else len(payload))
            if not shelf.has_room(whole):
                continue
            own = payload if payload is None or decoded is not None else memoryview(bytearray(payload))
            shelf.keep(int(block.ids[row]), own, values, whole)
        return True

    def _pixels(self, decoded: WholePixels, shelf: Shelf, payloads: list[memoryview | None]) -> list[memoryview | None]:
        there = [k for k, payload in enumerate(payloads) if payload is not None]
        views = [payload for payload in payloads if payload is not None]
        out: list[memoryview | None] = [None] * len(payloads)
        for k, pixels in zip(there, decoded(views, shelf.has_room, self._stop), strict=True):
            out[k] = pixels
        return out


def _runs(ids: Int64s) -> Extents:
    """These records as runs of neighbours, in their order."""
    partition, position = unpack_ids(ids)
    begins = np.flatnonzero(np.diff(ids, prepend=ids[:1] - 2) != 1)
    ends = np.append(begins[1:], len(ids)) - 1
    return Extents(partition[begins], position[begins], position[ends] + 1)
