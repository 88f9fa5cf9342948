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

from dali_feed.columns.columns import Columnar
from dali_feed.errors import ConfigError
from dali_feed.feed.disk_rows import DiskRows, Row, key_of
from dali_feed.options import Cache, Decode, Tuning
from dali_feed.records.extents import unpack_id, unpack_ids
from dali_feed.records.gauges import CacheStats
from dali_feed.records.live import PassingOn
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import Block, Extents, Int64s, Reader, Slabs, Snapshot, Source
from dali_feed.screen.header import UnusableError
from dali_feed.screen.screen import screen
from dali_feed.screen.screen import turned as with_ways
from dali_feed.transforms.program import Program, turns, unfit

__all__ = ["RecordCache", "WholePixels", "copied"]


# Rows: what a read gave, kept row by row, in memory and on a disk, and given again as a read would.
#
# The law: what is given is equal to what was read, whatever the training loop has done with that since: bytes are
# copied when they are kept, and lists are copied again when they are given. A record that is a fault, or that holds
# what cannot be copied so, is not kept.


_ROW = 200  # bytes that a row takes beside its values, about
_ITEM = 32  # and a number, or a place in a list
_Form = tuple[np.dtype[Any], tuple[int, ...]] | None  # of a field that is an array: of a row; None: any values


class CachedRows:
    """Rows by sample id: up to `limit` bytes in memory, and what has room on `disk`, which is closed with them.

    Nothing in memory is ever taken away. Any number of threads may use it.
    """

    def __init__(self, limit: int, disk: DiskRows | None) -> None:
        self._limit, self.disk = limit, disk
        self._rows: dict[int, Row] = {}
        self._forms: dict[str, _Form] | None = None
        self._form = ""  # the same as text
        self._lock = threading.Lock()  # guards all of these
        self.held = 0  # bytes
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
        if self.disk is not None and self._forms is not None and None in rows:
            places = [k for k, row in enumerate(rows) if row is None]
            for k, row in zip(places, self.disk.find([ids[k] for k in places], self._form), strict=True):
                rows[k] = row if row is not None and len(row) == 1 + len(self._forms) else None
        return rows

    def has_room(self, size: int) -> bool:
        """Whether so many bytes more may be kept."""
        return self.held + size <= self._limit or (self.disk is not None and self.disk.has_room(size))

    def keep(self, sample: int, row: Row, size: int) -> None:
        """Keep a row whose bytes are its own."""
        with self._lock:
            if sample not in self._rows and self.held + size <= self._limit:
                self._rows[sample] = row
                self.held += size
        if self.disk is not None:
            self.disk.keep(sample, self._form, row)

    def fits(self, block: Block) -> bool:
        """Whether the fields of a block are those of what is kept, so that rows of both can stand in one."""
        forms = {
            name: (values.dtype, values.shape[1:]) if isinstance(values, np.ndarray) else None
            for name, values in block.fields.items()
        }
        if any(form is not None and form[0].hasobject for form in forms.values()):
            return False
        with self._lock:
            if self._forms is None:
                self._forms, self._form = forms, _as_text(forms)
            return self._forms == forms

    def fields(self, rows: Sequence[Row | None], read: Block | None, at: NDArray[np.int64]) -> dict[str, Any]:
        """The fields of all rows: of those that are kept, and of a block that has those at `at`."""
        out: dict[str, Any] = {}
        kept = [k for k, row in enumerate(rows) if row is not None]
        for n, (name, form) in enumerate((self._forms or {}).items(), 1):
            values = [row[n] for row in rows if row is not None]
            if form is None:
                whole: Any = [None] * len(rows)
                for k, value in zip(kept, values, strict=True):
                    whole[k] = copied(value)[0] if isinstance(value, list | dict | tuple) else value
                for k, value in zip(at.tolist(), () if read is None else read.fields[name], strict=True):
                    whole[k] = value
            else:
                whole = np.empty((len(rows), *form[1]), form[0])
                if kept:
                    whole[kept] = values
                if read is not None:
                    whole[at] = read.fields[name]
            out[name] = whole
        return out

    def _adopt(self) -> None:
        """What others have kept says what the fields are, before anything is read."""
        if self.disk is not None and (text := self.disk.form) is not None:
            with self._lock:
                if self._forms is None:
                    pairs = json.loads(text)
                    self._forms = {name: form and (np.dtype(form[0]), tuple(form[1])) for name, form in pairs}
                    self._form = text


def _as_text(forms: Mapping[str, _Form]) -> str:
    return json.dumps([[name, form and (form[0].str, form[1])] for name, form in forms.items()])


def _values_of(block: Block, row: int) -> tuple[list[Any], int] | None:
    """A copy of the fields of a block's row, and the bytes they take; None where they cannot be copied."""
    try:
        values = [copied(field[row]) for field in block.fields.values()]
    except TypeError:
        return None
    return [value for value, _ in values], _ROW + sum(size for _, size in values)


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

    Raises ConfigError where what the host engine decodes is not what the feed's engine would.
    """

    def __init__(self, program: Program, decode: Decode, tuning: Tuning) -> None:
        subject, engine = "Cache(pixels=True)", program.engine
        if not program.outputs:
            msg = f"{subject}: keeps decoded images, but no column is an Image. Leave pixels out"
            raise ConfigError(msg)
        if engine != "host":
            msg = (
                f"{subject}: keeps what the host engine decodes; found the {engine} engine, whose decoder gives other"
                ' pixels. Give Decode(engine="host"), or leave pixels out'
            )
            raise ConfigError(msg)
        first = next(iter(program.columns.values()))  # further image columns are screened when they are read
        self._recipes, self._exif = [output.recipe for output in first], program.recipe.exif
        self._decode, self._tuning = decode, tuning
        self._local = threading.local()
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    @property
    def told(self) -> tuple[object, ...]:
        """All that decides what the pixels of a payload are, and whether it has any."""
        from dali_feed.engines.host.decode import nvimgcodec

        return ("pixels", nvimgcodec.__version__, self._exif, self._decode.max_pixels, self._decode.max_work)

    def __call__(
        self, payloads: list[memoryview], has_room: Callable[[int], bool], stop: threading.Event | None
    ) -> list[memoryview | None]:
        """The file of each payload's pixels; None for what is no image, or has no room. For any thread."""
        found = screen(payloads, self._decode.max_pixels, self._decode.max_work)
        if self._exif:
            found = with_ways(found, payloads)
        bad = dict(found.reasons)
        for recipe in self._recipes:
            bad |= unfit(recipe, found.sizes)
        ways = turns(found.sizes)
        tasks: list[tuple[int, memoryview, int, int, Any]] = []
        room = 0
        for row, (height, width) in enumerate(found.sizes[:, :2].tolist()):
            size = height * width * 3 + 32
            if row in bad or not has_room(room + size):
                continue
            room += size
            way = _UPRIGHT if ways is None else ways[row, :3].tolist()
            tasks.append((row, found.plain.get(row, payloads[row]), height, width, way))
        out: list[memoryview | None] = [None] * len(payloads)
        if tasks:
            every = self._threads().map(lambda task: self._one(task, stop), tasks)
            for (row, *_), made in zip(tasks, every, strict=True):
                out[row] = made
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

    def _one(self, task: tuple[int, memoryview, int, int, Any], stop: threading.Event | None) -> memoryview | None:
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

    kept     where, and how many bytes
    decoded  makes payloads into pixels; None: they are kept as they are
    """

    def __init__(self, source: Source, kept: Cache, decoded: WholePixels | None = None) -> None:
        self._source, self._kept, self.decoded = source, kept, decoded
        self._rows: CachedRows | None = None
        self._stop: threading.Event | None = None
        self._fingerprint = ""
        self._by_runs = False
        self._lock = threading.Lock()
        self._hits = self._misses = 0

    def begin(self, snapshot: Snapshot) -> None:
        """A pass over that snapshot begins: what was kept of another one is dropped.

        ConfigError where rows are to be kept on a disk and it cannot be told whose they are, or it cannot be written.
        """
        if self._rows is None or self._fingerprint != snapshot.fingerprint:
            self._drop()
            disk = None
            if self._kept.disk is not None:
                key = key_of(self._source, snapshot.fingerprint, () if self.decoded is None else self.decoded.told)
                disk = DiskRows(self._kept.disk, self._kept.disk_bytes, key)
            self._rows, self._fingerprint = CachedRows(self._kept.limit, disk), snapshot.fingerprint
        else:
            self._rows.look()
        self._by_runs = not snapshot.random_access

    def _drop(self) -> None:
        rows, self._rows = self._rows, None
        if rows is not None:
            rows.close()

    def reader(self, slabs: Slabs, stop: threading.Event) -> Reader:
        """A reader of the source, with the cache before it, and its columns, if any, behind."""
        self._stop = stop
        if isinstance(self._source, Columnar):
            return self._source.reader(slabs, stop, lambda reader: _CachedReader(self, reader, slabs, stop))
        return _CachedReader(self, self._source.reader(slabs, stop), slabs, stop)

    def payload(self, sample: int, held: memoryview | None) -> bytes:
        """A record's payload as its source has it, read again where pixels are kept in its place."""
        rows = self._rows
        row = None if rows is None or self.decoded is None else rows.find([sample])[0]
        if row is None or row[0] is None:
            return bytes(held or b"")
        partition, position = unpack_id(sample)
        reader = self._source.reader(SlabPool(), self._stop)
        try:
            block = reader.read(Extents.one(partition, position, position + 1))
            found = bytes(block.payloads[0] or b"")
            block.lease.release()
        finally:
            reader.close()
        return found

    def stats(self) -> CacheStats:
        """As it is now."""
        rows = self._rows
        records, held = (0, 0) if rows is None else (len(rows), rows.held)
        memory = CacheStats(self._hits, self._misses, records, held, self._kept.limit)
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


class _CachedReader(PassingOn):
    """Gives what is kept, reads the rest, and keeps that."""

    def __init__(self, cache: RecordCache, reader: Reader, slabs: Slabs, stop: threading.Event) -> None:
        super().__init__(reader)
        self._cache, self._slabs, self._stop = cache, slabs, stop

    def read(self, extents: Extents) -> Block:
        """As the source's reader does; see `records.Reader`."""
        kept, by_runs = self._cache.at()
        if kept is None:
            return self._read(extents)
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
            block = self._read(extents)
            self._keep(kept, block, new)
            return block
        read = self._read(_runs(ids[at])) if len(at) else None
        lease = self._slabs.lease() if read is None else read.lease
        try:
            if read is not None and not self._keep(kept, read, new[at]):  # fields of another kind: all from the source
                lease.release()
                return self._read(_runs(ids))
            payloads = [None if row is None else row[0] for row in rows]
            for k, payload in zip(at.tolist(), () if read is None else read.payloads, strict=True):
                payloads[k] = payload
            faults = {} if read is None else {int(at[row]): why for row, why in read.faults.items()}
            return Block(ids, payloads, kept.fields(rows, read, at), lease, faults)
        except BaseException:
            lease.release()
            raise

    def _read(self, extents: Extents) -> Block:
        block: Block = self._reader.read(extents)
        return block

    def _keep(self, kept: CachedRows, block: Block, new: NDArray[np.bool_]) -> bool:
        """Keep what can be kept of a block's new rows; payloads that become pixels are the block's from here on.

        False where its fields are of another kind than those that are kept.
        """
        if not kept.fits(block):
            return False
        rows, decoded = list[tuple[int, list[Any], int]](), self._cache.decoded
        for row in np.flatnonzero(new).tolist():
            if row not in block.faults and kept.has_room(1) and (copies := _values_of(block, row)) is not None:
                rows.append((row, *copies))
        if decoded is not None:
            images = {row: payload for row, _, _ in rows if (payload := block.payloads[row]) is not None}
            for row, file in zip(images, decoded([*images.values()], kept.has_room, self._stop), strict=True):
                block.payloads[row] = images[row] if file is None else file
            rows = [
                each for each in rows if block.payloads[each[0]] is not images.get(each[0], ())
            ]  # no pixels: not kept
        for row, values, size in rows:
            payload = block.payloads[row]
            whole = size + (0 if payload is None else len(payload))
            if kept.has_room(whole):
                own = payload if payload is None or decoded is not None else memoryview(bytearray(payload))
                kept.keep(int(block.ids[row]), (own, *values), whole)
        return True


def _runs(ids: Int64s) -> Extents:
    """These records as runs of neighbours, in their order."""
    partition, position = unpack_ids(ids)
    begins = np.flatnonzero(np.diff(ids, prepend=ids[:1] - 2) != 1)
    ends = np.append(begins[1:], len(ids)) - 1
    return Extents(partition[begins], position[begins], position[ends] + 1)
