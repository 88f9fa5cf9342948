"""A cache of files on a disk before a store: what is there is read there, what is not is fetched once and kept.

The law: bytes are those of the store beneath, of the file as it was opened: pieces are named by its path and its stamp.
Nothing that goes wrong with the cache ends a read.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dali_feed.checks import bytes_of, path_of, whole
from dali_feed.errors import ConfigError
from dali_feed.records.gauges import StorageMeter, StorageStats, storage_of
from dali_feed.storage.depot import BLOCK, Coming, Depot, Int64s, Name, PieceClaim
from dali_feed.storage.store import File, FileOf, Stamp, Store

__all__ = ["CachedFile", "CachedStore", "DiskCache"]

MOST = 8 << 20
AT_ONCE = 4  # pieces that one read fetches together: they are in memory until they are kept


@dataclass(frozen=True, slots=True)
class DiskCache:
    """Pieces of files, kept in a folder: of a store whose reads are dear, on a disk whose reads are cheap.

    folder  on a local file system; it is made where there is none. All processes of a machine may share it, runs one
            after the other too; more sources than one may
    limit   bytes that the pieces may take, or a size such as "200GB" (of 10^9); each process may be one piece above it
    piece   bytes of a piece: all are fetched where any is asked for; a multiple of 16 KiB, 8 MiB at most

    A piece is of a file as it was: of one that has changed nothing is found. Every read is checked by a checksum.
    """

    folder: str | os.PathLike[str]
    limit: int | str
    piece: int = 8 << 20

    def __post_init__(self) -> None:
        path_of("DiskCache(folder=...)", self.folder)
        if isinstance(self.limit, str):
            bytes_of("DiskCache(limit=...)", self.limit)
        else:
            whole("DiskCache(limit=...)", self.limit, 1)
        if whole("DiskCache(piece=...)", self.piece, BLOCK) % BLOCK or self.piece > MOST:
            msg = f"DiskCache(piece=...): must be a multiple of {BLOCK}, {MOST} at most; found {self.piece}"
            raise ConfigError(msg)

    @property
    def bytes(self) -> int:
        """`limit` in bytes."""
        return bytes_of("DiskCache(limit=...)", self.limit) if isinstance(self.limit, str) else self.limit


class CachedFile:
    """A file of the store beneath, open, and what its pieces are called."""

    def __init__(self, store: CachedStore, below: File, path: str, stop: threading.Event | None) -> None:
        self.below, self._store, self._stop = below, store, stop or threading.Event()
        self.was = below.stamp()
        self.size, self.piece = self.was.size, store.piece
        self.name = _named(path, self.was, self.piece)
        self.meter = StorageMeter(f"cache {store.depot.folder}", cached=True)

    def stamp(self) -> Stamp:
        """What the store beneath says."""
        return self.below.stamp()

    def read(self, view: memoryview, at: int) -> int:
        """From pieces; where that fails, from the store beneath, which says why."""
        (got,) = self._store.fill(lambda _: self, [0], [view], [at], self._stop)
        return self.below.read(view, at) if got < 0 else got

    def storage(self) -> tuple[StorageStats, ...]:
        """What it measured, and what the file beneath did."""
        return (self.meter.stats(), *storage_of([self.below]))

    def close(self) -> None:
        """Both. Safe to call twice."""
        self.below.close()


@dataclass(slots=True)
class _Part:
    """Bytes of a view that lie in one piece."""

    view: int  # its number
    file: int
    name: Name
    length: int  # of the piece
    at: int  # in the piece
    room: memoryview


class CachedStore:
    """`below`, with `cache` before it. It can be pickled: another process finds the same pieces."""

    def __init__(self, below: Store, cache: DiskCache) -> None:
        self._below, self._cache = below, cache
        self._whole = self  # whose depot and future this one uses
        self._begin()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._below, self._cache)

    def _begin(self) -> None:
        self._depot, self._process = Depot(self._cache.folder, self._cache.bytes), os.getpid()
        self._future: Coming | None = None

    @property
    def meter(self) -> StorageMeter | None:
        """That of the store beneath; what the cache does, its files count."""
        return self._below.meter

    def metered(self) -> CachedStore:
        """With the store beneath as of one reader; the pieces, and what is known of the future, are of all."""
        one = CachedStore(self._below.metered(), self._cache)  # `copy` would pickle it, and forget the whole
        one._whole = self._whole
        return one

    @property
    def depot(self) -> Depot:
        """Where the pieces are."""
        return self._whole._depot

    @property
    def _coming(self) -> Coming | None:
        return self._whole._future

    def _here(self) -> None:
        if self._whole is not self:
            self._whole._here()
        elif self._process != os.getpid():  # a fork has locks that nobody will let go of
            self._begin()

    @property
    def piece(self) -> int:
        """Bytes of a piece."""
        return self._cache.piece

    @property
    def most_open(self) -> int:
        """Of the store beneath."""
        return self._below.most_open

    @property
    def random_access(self) -> bool:
        """Of the store beneath: the first time each piece is fetched whole."""
        return self._below.random_access

    def matches(self, pattern: str) -> list[str]:
        """As the store beneath does."""
        return self._below.matches(pattern)

    def stamp(self, path: str) -> Stamp:
        """As the store beneath does."""
        return self._below.stamp(path)

    def open(self, path: str, stop: threading.Event | None = None) -> CachedFile:
        """As the store beneath does. ConfigError where the cache's folder cannot be written."""
        self._here()
        self.depot.ready()
        return CachedFile(self, self._below.open(path, stop), path, stop)

    def foresee(
        self, paths: Sequence[str], stamps: Sequence[Stamp], file: Int64s, at: Int64s, size: Int64s, this: int
    ) -> None:
        """Reads to come, in order: of `size` bytes from byte `at` of paths[file]; the first `this` in this pass."""
        self._here()
        names = [_named(path, stamp, self.piece) for path, stamp in zip(paths, stamps, strict=True)]
        self._whole._future = Coming(names, file, at, size, this, self.piece)

    def fill(
        self,
        file_of: FileOf,
        files: Sequence[int],
        views: Sequence[memoryview],
        at: Sequence[int],
        stop: threading.Event,
    ) -> list[int]:
        """See `storage.store.Store`: what is kept first, then the rest, several pieces at once."""
        counts, coming = [0] * len(views), self._coming
        missing: dict[Name, list[_Part]] = {}
        for k, (number, view, byte) in enumerate(zip(files, views, at, strict=True)):
            file = _cached(file_of(number))
            view = view[: max(0, file.size - byte)]  # noqa: PLW2901  it may end there
            counts[k] = len(view)
            if coming is not None:
                coming.read(file.name, byte, len(view))
            for part in _parts(k, number, file, view, byte):
                if stop.is_set():
                    counts[k] = -1
                elif self._found(file, part):
                    file.meter.hits += 1
                else:
                    file.meter.misses += 1
                    missing.setdefault(part.name, []).append(part)
        names = list(missing)
        for first in range(0, len(names), AT_ONCE):
            group = {name: missing[name] for name in names[first : first + AT_ONCE]}
            for part in self._fetched(file_of, group, stop, coming):
                counts[part.view] = -1
        return counts

    def _found(self, file: CachedFile, part: _Part) -> bool:
        begun = time.perf_counter()
        there = self.depot.find(part.name, part.length, part.at, part.room)
        if there:
            file.meter.read(time.perf_counter() - begun, len(part.room))
        elif there is None:
            file.meter.failures += 1
        return bool(there)

    def _fetched(
        self,
        file_of: FileOf,
        group: dict[Name, list[_Part]],
        stop: threading.Event,
        coming: Coming | None,
    ) -> list[_Part]:
        """Fetch these pieces, those that others fetch last; the parts that could not be filled."""
        claims: dict[Name, PieceClaim] = {}
        failed: list[_Part] = []
        later: list[Name] = []
        plain: list[_Part] = []
        try:
            for name, parts in group.items():
                claim = self._claim(name, parts[0].length, None, coming)
                if isinstance(claim, PieceClaim):
                    claims[name] = claim
                elif claim is None:
                    plain += parts
                else:
                    later.append(name)
            failed += self._take(file_of, claims, group, stop, coming)
        finally:
            for claim in claims.values():
                claim.drop()
        for name in later:  # with no claim held: two processes never wait for each other
            if all(self.depot.find(part.name, part.length, part.at, part.room) for part in group[name]):
                continue
            claim = self._claim(name, group[name][0].length, stop, coming)
            if isinstance(claim, PieceClaim):
                failed += self._take(file_of, {name: claim}, group, stop, coming)
            elif claim is None or not all(
                self.depot.find(part.name, part.length, part.at, part.room) for part in group[name]
            ):
                plain += group[name]
        return failed + self._directly(file_of, plain, stop)

    def _claim(
        self, name: Name, length: int, stop: threading.Event | None, coming: Coming | None
    ) -> PieceClaim | bool | None:
        """As `Depot.claim`; None where the piece is not worth keeping, or cannot be kept."""
        try:
            return self.depot.claim(name, stop) if self.depot.wants(name, length, coming) else None
        except OSError:
            return None

    def _take(
        self,
        file_of: FileOf,
        claims: dict[Name, PieceClaim],
        group: dict[Name, list[_Part]],
        stop: threading.Event,
        coming: Coming | None,
    ) -> list[_Part]:
        """Fetch claimed pieces together, keep them, and fill what is asked of them."""
        whole = {name: memoryview(bytearray(group[name][0].length)) for name in claims}
        files, starts = [group[name][0].file for name in claims], [name[1] * self.piece for name in claims]
        counts = self._below_fill(file_of, files, list(whole.values()), starts, stop)
        failed: list[_Part] = []
        same = {number: (file := _cached(file_of(number))).stamp() == file.was for number in set(files)}
        for (name, claim), number, got in zip(claims.items(), files, counts, strict=True):
            if got < len(whole[name]):
                failed += group[name]
                claim.drop()
                continue
            for part in group[name]:
                part.room[:] = whole[name][part.at : part.at + len(part.room)]
            if same[number]:  # else it was written again, and these may be bytes of another file
                self.depot.put(claim, whole[name], coming)
            else:
                claim.drop()
        return failed

    def _directly(self, file_of: FileOf, parts: list[_Part], stop: threading.Event) -> list[_Part]:
        """Read past the cache; the parts that could not be filled."""
        if not parts:
            return []
        at = [part.name[1] * self.piece + part.at for part in parts]
        counts = self._below_fill(file_of, [part.file for part in parts], [part.room for part in parts], at, stop)
        return [part for part, got in zip(parts, counts, strict=True) if got < len(part.room)]

    def _below_fill(
        self,
        file_of: FileOf,
        files: Sequence[int],
        views: Sequence[memoryview],
        at: Sequence[int],
        stop: threading.Event,
    ) -> list[int]:
        if not files:
            return []
        return self._below.fill(lambda number: _cached(file_of(number)).below, files, views, at, stop)


def _cached(file: File) -> CachedFile:
    assert isinstance(file, CachedFile)  # noqa: S101  who opened it: a reader of this store
    return file


def _parts(view: int, number: int, file: CachedFile, room: memoryview, at: int) -> list[_Part]:
    out, done = [], 0
    while done < len(room):
        piece, within = divmod(at + done, file.piece)
        length = min(file.piece, file.size - piece * file.piece)
        size = min(len(room) - done, length - within)
        out.append(_Part(view, number, (file.name, piece), length, within, room[done : done + size]))
        done += size
    return out


def _named(path: str, stamp: Stamp, piece: int) -> str:
    """A file as it was, in pieces of that size, in 32 hexadecimal digits."""
    where = path if "://" in path else os.path.abspath(path)
    key = "\0".join((where, str(piece), *(str(each) for each in stamp)))
    return hashlib.blake2b(key.encode(errors="surrogateescape"), digest_size=16).hexdigest()
