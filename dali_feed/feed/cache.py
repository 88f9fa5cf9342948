"""Readers that keep what they read, and give it again without the source.

The law: with a cache and without, a read gives the same rows: records that are faults are read every time, a payload
that was decoded has the pixels that the engine would find, and what is kept is of one snapshot of the source. What is
read of one that is shuffled by runs, because single records are dear, is kept and read again by runs.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed import sync
from dali_feed.columns.columns import Columns
from dali_feed.columns.request import RequestReader
from dali_feed.errors import ConfigError
from dali_feed.feed.disk_rows import DiskRows, Row, key_of
from dali_feed.feed.reading import ReadPool, ReadTask
from dali_feed.options import Cache, Decode, Tuning
from dali_feed.records.extents import unpack_id, unpack_ids
from dali_feed.records.gauges import CacheStats
from dali_feed.records.source import Block, Extents, Fault, Int64s, Lease, Reader, Snapshot, Source
from dali_feed.screen.header import UnusableError
from dali_feed.screen.screen import screen
from dali_feed.screen.screen import turned as with_ways
from dali_feed.transforms.program import Program, turns

# Rows: what a read gave, kept row by row, in memory and on a disk, and given again as a read would.
#
# The law: what is given is equal to what was read, whatever the training loop has done with that since: bytes are
# copied when they are kept, and lists are copied again when they are given. A record that is a fault, or that holds
# what cannot be copied so, is not kept.


_ROW = 200  # bytes that a row takes beside its values, about
_ITEM = 32  # and a number, or a place in a list


class CachedRows:
    """Rows by sample id: up to `limit` bytes in memory, and what has room on `disk`, which is closed with them.

    Nothing in memory is ever taken away. Any number of threads may use it.
    """

    def __init__(self, names: Sequence[str], limit: int, disk: DiskRows | None) -> None:
        self.names, self._limit, self.disk = tuple(names), limit, disk
        self._rows: dict[int, Row] = {}
        self._form: str | None = None  # of what is kept, as `_form_of` says it
        self._lock = sync.Lock()  # guards both
        self.taken = 0  # bytes
        self._adopt()

    def __len__(self) -> int:
        return len(self._rows)

    def look(self) -> None:
        """See what other processes have kept since."""
        if self.disk is not None:
            self.disk.look()
            self._adopt()

    def close(self) -> None:
        """Let go of the disk."""
        if self.disk is not None:
            self.disk.close()

    def find(self, ids: Sequence[int]) -> list[Row | None]:
        """What is kept of these records."""
        rows = list(map(self._rows.get, ids))
        if self.disk is not None and self._form is not None and None in rows:
            places = [k for k, row in enumerate(rows) if row is None]
            for k, row in zip(places, self.disk.find([ids[k] for k in places], self._form), strict=True):
                rows[k] = row if row is not None and len(row) in (0, len(self.names)) else None
        return rows

    def has_room(self, size: int) -> bool:
        """Whether so many bytes more may be kept."""
        return self.taken + size <= self._limit or (self.disk is not None and self.disk.has_room(size))

    def keep(self, sample: int, row: Row, size: int) -> None:
        """Keep a row whose bytes are its own."""
        with self._lock:
            if sample not in self._rows and self.taken + size <= self._limit:
                self._rows[sample] = row
                self.taken += size
        if self.disk is not None and self._form is not None:
            self.disk.keep(sample, self._form, row)

    def fits(self, block: Block) -> bool:
        """Whether the values of a block are of the kinds of what is kept, so that rows of both can stand in one."""
        values = {name: block.values[name] for name in self.names}
        if any(isinstance(each, np.ndarray) and each.dtype.kind in "OV" for each in values.values()):
            return False
        form = _form_of(values)
        with self._lock:
            self._form = form if self._form is None else self._form
            return self._form == form

    def values(self, rows: Sequence[Row | None], read: Block | None, at: NDArray[np.int64]) -> dict[str, Any]:
        """The values of all rows: of those that are kept, and of a block that has those at `at`."""
        out: dict[str, Any] = {}
        kept = [k for k, row in enumerate(rows) if row]
        for n, (name, form) in enumerate(json.loads(self._form or "[]")):
            values = [row[n] for row in rows if row]
            if form is None:
                whole: Any = [None] * len(rows)
                for k, value in zip(kept, values, strict=True):
                    whole[k] = copied(value)[0] if isinstance(value, list | dict | tuple) else value
                for k, value in zip(at.tolist(), () if read is None else read.values[name], strict=True):
                    whole[k] = value
            else:
                whole = np.zeros((len(rows), *form[1]), np.dtype(form[0]))
                if kept:
                    whole[kept] = values
                if read is not None:
                    whole[at] = read.values[name]
            out[name] = whole
        return out

    def _adopt(self) -> None:
        """What others have kept says what the fields are, before anything is read."""
        if self.disk is not None:
            with self._lock:
                self._form = self.disk.form if self._form is None else self._form


def _form_of(values: Mapping[str, Any]) -> str:
    """As text what the values of each member are: dtype and shape of a row of an array, or null for any others."""
    arrays = {name: each for name, each in values.items() if isinstance(each, np.ndarray)}
    forms = {name: [each.dtype.str, each.shape[1:]] for name, each in arrays.items()}
    return json.dumps([[name, forms.get(name)] for name in values])


def _values_of(block: Block, names: Sequence[str], row: int) -> tuple[tuple[Any, int], ...] | None:
    """Copies of the values of a block's row, each with the bytes it takes; None where they cannot be copied."""
    try:
        return tuple(copied(block.values[name][row]) for name in names)
    except TypeError:
        return None


def copied(value: Any) -> tuple[Any, int]:
    """A value that shares no memory with it, bytes as a view of their own; and about how many bytes it takes.

    Raises:
        TypeError: it is, or holds, something else than bytes, text, numbers, arrays of numbers, lists, tuples, dicts.
    """
    kind = type(value)
    if kind is bytearray or (kind is memoryview and value.format == "B" and value.ndim == 1):
        return memoryview(bytearray(value)), len(value)
    if value is None or kind in (bool, int, float, complex) or isinstance(value, np.generic):
        return value, _ITEM
    if kind in (str, bytes):
        return value, len(value)
    if kind is np.ndarray and value.dtype.kind in "biufcSU":
        return value.copy(), value.nbytes
    if kind is list or kind is tuple:
        parts = [copied(each) for each in value]
        return kind(each for each, _ in parts), _ITEM + sum(size for _, size in parts)
    if kind is dict:
        pairs = {copied(key)[0]: copied(each) for key, each in value.items()}
        return {key: each for key, (each, _) in pairs.items()}, _ITEM + sum(_ITEM + size for _, size in pairs.values())
    msg = f"cannot be kept: {kind.__name__}"
    raise TypeError(msg)


# Payloads decoded whole, as uncompressed files of the same pixels: what a cache of pixels keeps.
#
# The law: the pixels are the host engine's, turned as its program turns them; so an engine that is given the file makes
# of it what it makes of the payload. Only what the feed can use is decoded: a record that is bad stays as it was read.


_UPRIGHT = (0, 0, 0)


class WholePixels:
    """Decodes with as many threads as the engine has; they are started by the first call.

    members  those whose images become pixels: of which only columns of images are made

    Raises ConfigError where what the host engine decodes is not what the feed's engine would.
    """

    def __init__(self, program: Program, columns: Columns, decode: Decode, tuning: Tuning) -> None:
        subject, engine = "Cache(pixels=True)", program.engine
        if not columns.images:
            msg = f"{subject}: keeps decoded images, but no column is an Image. Leave pixels out"
            raise ConfigError(msg)
        if engine != "host":
            msg = (
                f"{subject}: keeps what the host engine decodes; found the {engine} engine, whose decoder gives other"
                ' pixels. Give Decode(engine="host"), or leave pixels out'
            )
            raise ConfigError(msg)
        others = {columns.reads[name] for name in columns.others}
        self.members = {columns.reads[name] for name in columns.images} - others
        self._fits = {
            member: [fits for name, fits in columns.fits.items() if columns.reads[name] == member]
            for member in self.members
        }
        self._exif = bool(decode.exif)
        self._decode, self._tuning = decode, tuning
        self._local = threading.local()
        self._lock = sync.Lock()  # guards that threads are started once
        self._pool: ThreadPoolExecutor | None = None

    @property
    def deciding(self) -> tuple[object, ...]:
        """All that decides what the pixels of a payload are, and whether it has any."""
        from dali_feed.engines.host.decode import VERSION

        bounds = self._decode.max_pixels, self._decode.max_work
        return ("pixels", VERSION, self._exif, *bounds, *sorted(self.members))

    def __call__(
        self, member: str, payloads: list[memoryview], has_room: Callable[[int], bool], stop: sync.Event | None
    ) -> list[memoryview | None]:
        """The file of each payload's pixels; None for what is no image, or has no room. For any thread."""
        screened = screen(payloads, self._decode.max_pixels, self._decode.max_work)
        if self._exif:
            screened = with_ways(screened, payloads)
        bad = dict(screened.reasons)
        for fits in self._fits[member]:
            bad |= fits(screened.sizes)
        ways = turns(screened.sizes)
        tasks: list[tuple[int, memoryview, int, int, Any]] = []
        room = 0
        for row, (height, width) in enumerate(screened.sizes[:, :2].tolist()):
            size = height * width * 3 + 32
            if row in bad or not has_room(room + size):
                continue
            room += size
            way = _UPRIGHT if ways is None else ways[row, :3].tolist()
            tasks.append((row, screened.plain.get(row, payloads[row]), height, width, way))
        out: list[memoryview | None] = [None] * len(payloads)
        if tasks:
            every = self._threads().map(lambda task: self._one(task, stop), tasks)
            for (row, *_), file in zip(tasks, every, strict=True):
                out[row] = file
        return out

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _threads(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._tuning.cpu_threads, "dali_feed-pixels")
            return self._pool

    def _one(self, task: tuple[int, memoryview, int, int, Any], stop: sync.Event | None) -> memoryview | None:
        from dali_feed.engines.host.decode import decoded, new_decoder, turned

        if stop is not None and stop.is_set():
            return None
        _, payload, height, width, way = task
        if not hasattr(self._local, "decoder"):
            self._local.decoder = new_decoder()
        try:
            pixels = turned(decoded(self._local.decoder, payload, None), way)
        except UnusableError:
            return None  # the engine says so, too
        if pixels.shape != (height, width, 3):
            return None
        head = b"P6 %d %d 255\n" % (width, height)
        file = bytearray(len(head) + pixels.nbytes)
        file[: len(head)] = head
        np.frombuffer(file, np.uint8, pixels.nbytes, len(head)).reshape(pixels.shape)[:] = pixels
        return memoryview(file)


class RecordCache:
    """What the readers of one feed share. Before the first pass begins it keeps nothing.

    It stands between what is asked of the source and the columns: rows are kept of members, by the names that columns
    have for them.

    kept     where, and how many bytes
    decoded  makes images into pixels; None: they are kept as they are
    """

    def __init__(self, source: Source, columns: Columns, kept: Cache, decoded: WholePixels | None = None) -> None:
        self._source, self._columns, self._kept, self.decoded = source, columns, kept, decoded
        self._rows: CachedRows | None = None
        self._pool: ReadPool | None = None
        self._fingerprint = ""
        self._by_runs = False
        self._lock = sync.Lock()  # guards the counts
        self._hits = self._misses = 0

    def begin(self, snapshot: Snapshot, pool: ReadPool) -> None:
        """A pass over that snapshot begins, read by that pool: what was kept of another one is dropped.

        ConfigError where rows are to be kept on a disk and it cannot be told whose they are, or it cannot be written.
        """
        self._pool = pool
        if self._rows is None or self._fingerprint != snapshot.fingerprint:
            self._drop()
            disk, columns = None, self._columns
            if self._kept.disk is not None:
                done = () if self.decoded is None else self.decoded.deciding
                members = columns.members, tuple(sorted(columns.optional))
                disk = DiskRows(
                    self._kept.disk, self._kept.disk_bytes, key_of(self._source, members, snapshot.fingerprint, done)
                )
            self._rows = CachedRows(columns.members, self._kept.limit, disk)
            self._fingerprint = snapshot.fingerprint
        else:
            self._rows.look()
        self._by_runs = not snapshot.random_access

    def _drop(self) -> None:
        rows, self._rows = self._rows, None
        if rows is not None:
            rows.close()

    def reader(self, stop: sync.Event) -> Reader:
        """A reader of the source, with the cache before it."""
        return _CachedReader(self, self._columns.reader(self._source, stop), stop)

    def payload(self, sample: int, view: memoryview | None) -> bytes:
        """The bytes of a record's first image as its source has them, read again where pixels are kept in their place.

        A reader's thread does that; ClosedError where the pass is ended meanwhile.
        """
        rows, decoded = self._rows, self.decoded
        if rows is None or decoded is None or self._pool is None or not rows.find([sample])[0]:
            return bytes(view or b"")
        partition, position = unpack_id(sample)
        task = ReadTask(
            Extents.one(partition, position, position + 1),
            lambda: 0,
            lambda stop: self._columns.reader(self._source, stop, self._columns),
        )
        self._pool.request(task)
        block = task.take()
        try:
            payload = bytes(block.values[str(self._columns.image)].payloads[0] or b"")
        finally:
            block.lease.release()
        return payload

    def stats(self) -> CacheStats:
        """As it is now."""
        rows = self._rows
        records, taken = (0, 0) if rows is None else (len(rows), rows.taken)
        memory = CacheStats(self._hits, self._misses, records, taken, self._kept.limit)
        disk = None if rows is None else rows.disk
        if disk is None:
            return memory
        sizes = {"disk_records": disk.records, "disk_held": disk.size, "disk_limit": self._kept.disk_bytes}
        return replace(memory, **sizes, damaged=disk.damaged)

    def close(self) -> None:
        """Keep nothing any more."""
        self._drop()
        if self.decoded is not None:
            self.decoded.close()

    def counted(self, hits: int, misses: int) -> None:
        """So many records more were given from memory, and read."""
        with self._lock:
            self._hits, self._misses = self._hits + hits, self._misses + misses

    def at(self) -> tuple[CachedRows | None, bool]:
        """Where rows are kept, and whether whole runs are read: of the pass that a read begins in."""
        return self._rows, self._by_runs


class _CachedReader(RequestReader):
    """Gives what is kept, reads the rest, and keeps that."""

    def __init__(self, cache: RecordCache, reader: Reader, stop: sync.Event) -> None:
        super().__init__(reader)
        self._cache, self._stop = cache, stop

    def read(self, extents: Extents, lease: Lease) -> Block:
        """As the source's reader does; see `records.Reader`."""
        kept, by_runs = self._cache.at()
        if kept is None:
            return super().read(extents, lease)
        ids = extents.ids()
        rows = kept.find(ids.tolist())
        new = missing = np.array([row is None for row in rows], bool)
        if by_runs and len(ids):
            run = np.repeat(np.arange(len(extents)), extents.lengths)
            missing = np.isin(run, run[new])
            rows = [None if gone else row for row, gone in zip(rows, missing.tolist(), strict=True)]
        at = np.flatnonzero(missing)
        self._cache.counted(len(ids) - len(at), len(at))
        if len(at) == len(ids):
            block = super().read(extents, lease)
            self._keep(kept, block, new)
            return block
        read = super().read(_runs(ids[at]), lease) if len(at) else None
        if read is not None and not self._keep(kept, read, new[at]):  # values of another kind: all from the source
            return super().read(_runs(ids), lease)
        absent = np.array([row == () for row in rows], bool)
        faults = dict[int, Fault]()
        if read is not None:
            faults = {int(at[row]): why for row, why in read.faults.items()}
            if read.absent is not None:
                absent[at] = read.absent
        return Block(ids, kept.values(rows, read, at), lease, faults, absent if absent.any() else None)

    def _keep(self, kept: CachedRows, block: Block, new: NDArray[np.bool_]) -> bool:
        """Keep what can be kept of a block's new rows; images that become pixels are the block's from here on.

        False where its values are of another kind than those that are kept.
        """
        if not kept.fits(block):
            return False
        usable = block.usable()
        rows: dict[int, tuple[tuple[Any, int], ...]] = {row: () for row in block.absent_rows() if new[row]}
        for row in np.flatnonzero(new & usable).tolist():
            if kept.has_room(1) and (values := _values_of(block, kept.names, row)) is not None:
                rows[row] = values
        if self._cache.decoded is not None:
            self._decode(self._cache.decoded, kept, block, rows)
        for row, values in rows.items():
            size = _ROW + sum(size for _, size in values)
            if kept.has_room(size):
                kept.keep(int(block.ids[row]), tuple(value for value, _ in values), size)
        return True

    def _decode(
        self, decoded: WholePixels, kept: CachedRows, block: Block, rows: dict[int, tuple[tuple[Any, int], ...]]
    ) -> None:
        """Put pixels in the place of images, in the rows that are kept and in the block; a row without is not kept."""
        for place, name in enumerate(kept.names):
            if name not in decoded.members:
                continue
            images = {row: values[place][0] for row, values in rows.items() if values}
            images = {row: view for row, view in images.items() if isinstance(view, memoryview)}
            whole = list(block.values[name])
            for row, file in zip(images, decoded(name, [*images.values()], kept.has_room, self._stop), strict=True):
                if file is None:
                    del rows[row]
                    continue
                whole[row] = file
                rows[row] = (*rows[row][:place], (file, len(file)), *rows[row][place + 1 :])
            block.values[name] = whole


def _runs(ids: Int64s) -> Extents:
    """These records as runs of neighbours, in their order."""
    partition, position = unpack_ids(ids)
    begins = np.flatnonzero(np.diff(ids, prepend=ids[:1] - 2) != 1)
    ends = np.append(begins[1:], len(ids)) - 1
    return Extents(partition[begins], position[begins], position[ends] + 1)
