"""Readers that keep what they read, and give it again without the source.

The law: with a cache and without, a read gives the same rows: records that are faults are read every time, a payload
that was decoded has the pixels that the engine would find, and what is kept is of one snapshot of the source. What is
read of one that is shuffled by runs, because single records are dear, is kept and read again by runs.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.columns.columns import Columnar
from dali_feed.compiler.program import turns, unfit
from dali_feed.engines.choose import Compiled
from dali_feed.errors import ConfigError
from dali_feed.feed.disk_rows import RowFiles, key_of, row_of, told
from dali_feed.options import Cache, Decode, Tuning
from dali_feed.records.extents import unpack_id, unpack_ids
from dali_feed.records.gauges import CacheStats
from dali_feed.records.live import PassingOn
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import Block, Extents, Int64s, Reader, Slabs, Snapshot, Source
from dali_feed.screen.header import UnusableError
from dali_feed.screen.screen import screen
from dali_feed.screen.screen import turned as with_ways

__all__ = ["RecordCache", "WholePixels", "copied"]


# Records in memory: what a read gave, kept row by row, and given again as a read would.
#
# The law: what is given is equal to what was read, whatever the training loop has done with that since: bytes are
# copied when they are kept, and lists are copied again when they are given. A record that is a fault, or that holds
# what cannot be copied so, is not kept.


_ROW = 200  # bytes that a row takes beside its values, about
_ITEM = 32  # and a number, or a place in a list
_Form = tuple[np.dtype[Any], tuple[int, ...]] | None  # of a field that is an array: of a row; None: any values


@dataclass(frozen=True, slots=True)
class Row:
    """A record: its payload (None: the position holds none) and its fields' values; `size` in bytes."""

    payload: memoryview | None
    values: tuple[Any, ...]
    size: int


class Shelf:
    """Rows by sample id, up to `limit` bytes. Nothing is ever taken away; any number of threads may use it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rows: dict[int, Row] = {}
        self._forms: dict[str, _Form] | None = None
        self._lock = threading.Lock()
        self.held = 0  # bytes

    def __len__(self) -> int:
        return len(self._rows)

    def look(self) -> None:
        """See what others have kept since: of memory nobody has."""

    def close(self) -> None:
        """Let go of what is not memory."""

    def rows(self, ids: Sequence[int]) -> list[Row | None]:
        """What is kept of these records."""
        get = self._rows.get
        return [get(sample) for sample in ids]

    def has_room(self, size: int) -> bool:
        """Whether so many bytes more may be kept."""
        return self.held + size <= self._limit

    def keep(self, sample: int, payload: memoryview | None, values: Sequence[Any], size: int) -> None:
        """Keep a row whose bytes are its own."""
        with self._lock:
            if sample not in self._rows and self.has_room(size):
                self._rows[sample] = Row(payload, tuple(values), size)
                self.held += size

    def fits(self, block: Block) -> bool:
        """Whether the fields of a block are those of what is kept, so that rows of both can stand in one."""
        forms = _forms(block)
        if any(form is not None and form[0].hasobject for form in forms.values()):
            return False
        with self._lock:
            if self._forms is None:
                self._forms = forms
            return self._forms == forms

    def values_of(self, block: Block, row: int) -> tuple[list[Any], int] | None:
        """A copy of the fields of a block's row, and the bytes they take; None where they cannot be copied."""
        values, size = [], _ROW
        for field in block.fields.values():
            try:
                value, bytes_ = copied(field[row])
            except TypeError:
                return None
            values.append(value)
            size += bytes_
        return values, size

    def fields(self, rows: Sequence[Row | None], read: Block | None, at: NDArray[np.int64]) -> dict[str, Any]:
        """The fields of all rows: of those that are kept, and of a block that has those at `at`."""
        out: dict[str, Any] = {}
        kept = [k for k, row in enumerate(rows) if row is not None]
        for n, (name, form) in enumerate((self._forms or {}).items()):
            values = [row.values[n] for row in rows if row is not None]
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


def _forms(block: Block) -> dict[str, _Form]:
    return {
        name: (values.dtype, values.shape[1:]) if isinstance(values, np.ndarray) else None
        for name, values in block.fields.items()
    }


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

    def __init__(self, made: Compiled, decode: Decode, tuning: Tuning) -> None:
        views = made.program.views[:1] if made.columns else made.program.views
        subject, engine = "Cache(pixels=True)", made.columns[0].engine if made.columns else made.engine
        if not views:
            msg = f"{subject}: keeps decoded images, but no column is an Image. Leave pixels out"
            raise ConfigError(msg)
        if engine != "host":
            msg = (
                f"{subject}: keeps what the host engine decodes; found the {engine} engine, whose decoder gives other"
                ' pixels. Give Decode(engine="host"), or leave pixels out'
            )
            raise ConfigError(msg)
        self._recipes, self._exif = [view.recipe for view in views], views[0].recipe.exif
        self._decode, self._tuning = decode, tuning
        self._local = threading.local()
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    @property
    def told(self) -> tuple[object, ...]:
        """All that decides what the pixels of a payload are, and whether it has any."""
        from dali_feed.engines.codec import nvimgcodec

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


# Rows in memory first, then in files: what has no room in memory, and what other processes or runs have kept.
#
# The law is that of `shelf` and of `row_files` together: a row is given as it was read, or not at all.


class DiskShelf(Shelf):
    """As `Shelf`, up to `limit` bytes in memory and what `files` has room for. `files` is closed with it."""

    def __init__(self, limit: int, files: RowFiles) -> None:
        super().__init__(limit)
        self.files = files
        self._adopt()

    def look(self) -> None:
        """See what others have kept since."""
        self.files.look()
        self._adopt()

    def rows(self, ids: Sequence[int]) -> list[Row | None]:
        """What is kept of these records, in memory or in files."""
        held = super().rows(ids)
        return [self._from_files(sample) if row is None else row for sample, row in zip(ids, held, strict=True)]

    def has_room(self, size: int) -> bool:
        """In one of the two."""
        return super().has_room(size) or self.files.has_room(size)

    def keep(self, sample: int, payload: memoryview | None, values: Sequence[Any], size: int) -> None:
        """In both, where there is room."""
        super().keep(sample, payload, values, size)
        if self._forms is None or sample in self.files or not self.files.has_room(size):
            return
        try:
            body = told(payload, values)
        except TypeError:  # a number of a kind that has no form in files
            return
        self.files.keep(sample, _as_text(self._forms), body)

    def close(self) -> None:
        """Let the files go."""
        self.files.close()

    def _adopt(self) -> None:
        if self._forms is None and self.files.form is not None:
            self._forms = _from_text(self.files.form)

    def _from_files(self, sample: int) -> Row | None:
        body = self.files.find(sample)
        if body is None or self._forms is None:
            return None
        try:
            payload, values = row_of(body)
        except ValueError:
            return None
        return Row(payload, values, len(body)) if len(values) == len(self._forms) else None


def _as_text(forms: Any) -> str:
    return json.dumps([[name, None if form is None else [form[0].str, list(form[1])]] for name, form in forms.items()])


def _from_text(text: str) -> Any:
    return {name: None if form is None else (np.dtype(form[0]), tuple(form[1])) for name, form in json.loads(text)}


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
