"""A folder of pieces of files, shared by processes: who fetches one, where it is kept, and what makes room for it.

    FOLDER/lock                held while pieces come and go; holds how many bytes they take
    FOLDER/parts/FILE-NUMBER   a piece on its way; its lock is held by the process that fetches it
    FOLDER/FILE/NUMBER         a piece that is there: what it is a piece of, a checksum for each block, then its bytes

The law: bytes that are given are those that were kept: every read checks the head, and the blocks that it touches. A
process that is killed leaves nothing that is taken for a piece, and no lock. A piece takes its place by a rename, and
is counted before; one that goes is counted after: so the count may be too high, which the next process to begin puts
right, and the limit holds. Trouble with the folder costs speed, never data. What will be read decides what is kept,
never what is given.
"""

from __future__ import annotations

import logging
import os
import struct
import threading
import time
import zlib
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dali_feed.errors import ConfigError
from dali_feed.locks import flocked, locked

__all__ = [
    "BLOCK",
    "HEAD",
    "NEVER",
    "Coming",
    "DamagedError",
    "Depot",
    "Int64s",
    "Name",
    "PieceClaim",
    "head_of",
    "load",
]

Int64s = NDArray[np.int64]
Name = tuple[str, int]  # of a piece: its file's name of 32 hexadecimal digits, and its number

BLOCK = 16 << 10  # bytes under one checksum: what is read and checked at least
HEAD = 4096  # bytes before the first block: a page, which has room for the checksums of 15 MiB
_FIXED = struct.Struct("<8s16sQQ")
_SUM = struct.Struct("<I")
_MAGIC = b"DFPIECE1"

NEVER = 1 << 62  # the next use of what is not known to be needed again
_BITS = 40  # of a byte's place in a file

SLICE_S = 0.02  # how often one who waits for another process looks again
PATIENCE_S = 30.0  # after which another process is taken for one that stands still: what it holds is done without
SCAN_S = 2.0  # so long, at least, what other processes do is not looked for again
_USED = struct.Struct("<Q")

log = logging.getLogger("dali_feed")


class DamagedError(Exception):
    """A kept piece is not what it was."""


def head_of(name: Name, data: memoryview) -> bytes:
    """The first HEAD bytes of the file of a piece with these bytes."""
    sums = [zlib.crc32(data[at : at + BLOCK]) for at in range(0, len(data), BLOCK)]
    head = _FIXED.pack(_MAGIC, bytes.fromhex(name[0]), name[1], len(data)) + struct.pack(f"<{len(sums)}I", *sums)
    return (head + _SUM.pack(zlib.crc32(head))).ljust(HEAD, b"\0")


def load(fd: int, name: Name, length: int, at: int, view: memoryview) -> None:
    """Fill `view` from byte `at` of the piece of that name and length.

    Raises:
        DamagedError: the file is cut, or is not that piece, or bytes of it are others than were kept.
    """
    head = os.pread(fd, HEAD, 0)
    blocks = -(-length // BLOCK)
    end = _FIXED.size + 4 * blocks
    whole = len(head) == HEAD and _SUM.unpack_from(head, end)[0] == zlib.crc32(head[:end])
    if not whole or _FIXED.unpack_from(head) != (_MAGIC, bytes.fromhex(name[0]), name[1], length):
        msg = "its header is not that of the piece"
        raise DamagedError(msg)
    first, last = at // BLOCK, (at + len(view) - 1) // BLOCK
    begin, stop = first * BLOCK, min((last + 1) * BLOCK, length)
    exact = (begin, stop) == (at, at + len(view))
    room = view if exact else memoryview(bytearray(stop - begin))
    got = more = os.preadv(fd, (room,), HEAD + begin)
    while more and got < len(room):
        got += (more := os.preadv(fd, (room[got:],), HEAD + begin + got))
    sums = struct.unpack_from(f"<{last + 1 - first}I", head, _FIXED.size + 4 * first)
    for k, wanted in enumerate(sums):
        if got < len(room) or zlib.crc32(room[k * BLOCK : (k + 1) * BLOCK]) != wanted:
            msg = f"its block {first + k} has another checksum"
            raise DamagedError(msg)
    if not exact:
        view[:] = room[at - begin : at - begin + len(view)]


class Coming:
    """Reads to come: number k is of `size[k]` bytes from byte `at[k]` of `files[file[k]]`.

    piece  bytes of a piece
    now    how many of them are over, as far as is known
    this   how many are of the pass under way; behind them come those of later ones
    """

    def __init__(self, files: Sequence[str], file: Int64s, at: Int64s, size: Int64s, this: int, piece: int) -> None:
        self._number = {name: k for k, name in enumerate(files)}
        first, last = at // piece, (at + np.maximum(size, 1) - 1) // piece
        pieces = last - first + 1
        when = np.repeat(np.arange(len(at), dtype=np.int64), pieces)
        nth = np.arange(len(when), dtype=np.int64) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        code = _code(np.repeat(file, pieces), np.repeat(first, pieces) + nth)
        order = np.lexsort((when, code))
        self._uses = when[order]  # piece by piece
        self._pieces, which = np.unique(code[order], return_inverse=True)
        self._span = len(at) + 1
        self._keys = which * self._span + self._uses  # ascending, as each piece's uses are
        records = (file[:this] << _BITS) | at[:this]
        order = np.argsort(records, kind="stable")
        self._records, self._times = records[order], order.astype(np.int64)
        self.now = 0

    def read(self, file: str, at: int, size: int) -> None:
        """Those bytes have been read: what was to come up to there is over."""
        number = self._number.get(file)
        if number is not None:
            start = (number << _BITS) | at
            a, b = np.searchsorted(self._records, (start, start + size))
            ahead = self._times[a:b] >= self.now
            if ahead.any():  # of a record that comes several times the next one
                _, first = np.unique(self._records[a:b][ahead], return_index=True)
                self.now = int(self._times[a:b][ahead][first].max()) + 1

    def next_uses(self, names: Sequence[Name]) -> Int64s:
        """Of each piece the number of the next read that needs it, NEVER where none is known: int64 (n,)."""
        file = np.array([self._number.get(name, -1) for name, _ in names], np.int64)
        code = _code(file, np.array([number for _, number in names], np.int64))
        if not len(self._pieces):
            return np.full(len(names), NEVER, np.int64)
        piece = np.searchsorted(self._pieces, code).clip(max=len(self._pieces) - 1)
        use = np.searchsorted(self._keys, piece * self._span + self.now)
        at = use.clip(max=len(self._keys) - 1)
        there = (self._pieces[piece] == code) & (file >= 0) & (use < len(self._keys))
        there &= self._keys[at] // self._span == piece
        return np.where(there, self._uses[at], NEVER)


def _code(file: Int64s, number: Int64s) -> Int64s:
    return np.asarray((file << 24) | number, np.int64)


@dataclass(slots=True)
class PieceClaim:
    """The right to fetch a piece, until it is put or dropped: nobody else does."""

    name: Name
    path: Path
    fd: int

    def drop(self) -> None:
        """Let others fetch it. Safe to call twice."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            if _is(self.path, fd):  # else it has taken its place, and the path may be another process's by now
                self.path.unlink()
            os.close(fd)


@dataclass(slots=True)
class _Kept:
    size: int  # bytes of the file
    used: float  # Unix seconds of the last time


class Depot:
    """Pieces up to `limit` bytes in `folder`. For any number of threads; another process makes its own.

    damaged, evicted, failures  pieces that were thrown away for what they were, and for room; writes that failed
    """

    def __init__(self, folder: str | os.PathLike[str], limit: int) -> None:
        self.folder, self.limit = Path(folder), limit
        self._parts, self._lock = self.folder / "parts", self.folder / "lock"
        self.damaged = self.evicted = self.failures = 0
        self._kept: dict[Name, _Kept] | None = None
        self._scanned = 0.0
        self._mutex = threading.RLock()
        self.patience = PATIENCE_S

    def ready(self) -> None:
        """Make the folder, sweep what killed processes left, count what is there, and make that fit the limit.

        ConfigError where the folder cannot be written.
        """
        with self._mutex:
            if self._kept is not None:
                return
            try:
                self._parts.mkdir(parents=True, exist_ok=True)
                for path in self._parts.iterdir():
                    self._sweep(path)
                with self._locked() as fd:
                    self._scan(fd)
                    self._make_room(fd, 0, NEVER, None)
            except OSError as error:
                msg = f"DiskCache({self.folder}): must be a folder that can be written; found: {error}"
                raise ConfigError(msg) from error

    def find(self, name: Name, length: int, at: int, view: memoryview) -> bool | None:
        """Fill `view` from byte `at` of a piece; False where it is not there, None where it is damaged.

        A damaged one is thrown away. The first is told; of a folder whose pieces cannot be removed each read finds one.
        """
        path = self._path(name)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            load(fd, name, length, at, view)
            with suppress(OSError):
                os.utime(fd)
        except DamagedError as error:
            self._throw_away(name, path, fd, str(error))
            return None
        except OSError as error:
            self._throw_away(name, path, fd, str(error))
            return None
        finally:
            os.close(fd)
        if self._kept is not None and (kept := self._kept.get(name)) is not None:
            kept.used = time.time()
        return True

    def wants(self, name: Name, length: int, coming: Coming | None) -> bool:
        """Whether a piece is worth keeping: there is room, or something is there that is needed later or not at all."""
        size = HEAD + length
        if size > self.limit:
            return False
        with self._mutex:
            kept = self._kept or {}
            if coming is None or sum(each.size for each in kept.values()) + size <= self.limit:
                return True
            mine = int(coming.next_uses([name])[0])
            return bool(kept) and mine < int(coming.next_uses(list(kept)).max())

    def claim(self, name: Name, stop: threading.Event | None) -> PieceClaim | bool | None:
        """The right to fetch a piece; True where it has come meanwhile; False where another process fetches it now.

        Waits for that one where `stop` is given, and gives None where that is set, or where it takes too long. OSError
        where the folder fails.
        """
        path, ends = self._parts / f"{name[0]}-{name[1]}", time.monotonic() + self.patience
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            locked_here = False
            try:
                free = flocked(fd)
                locked_here = free and _is(path, fd)
            finally:
                if not locked_here:
                    os.close(fd)
            if locked_here:
                claim = PieceClaim(name, path, fd)
                if not self._path(name).exists():
                    return claim
                claim.drop()
                return True
            if not free:
                if stop is None:
                    return False
                if stop.wait(SLICE_S) or time.monotonic() > ends:
                    return None

    def put(self, claim: PieceClaim, data: memoryview, coming: Coming | None) -> bool:
        """Keep a piece, and let go of the claim; False where there is no room for it, or the disk fails."""
        head, size = head_of(claim.name, data), HEAD + len(data)
        try:
            with self._mutex:  # one at a time, so that no more than one is above the limit
                os.ftruncate(claim.fd, 0)
                for part, at in ((head, 0), (data, HEAD)):
                    done = 0
                    while done < len(part):
                        done += os.pwrite(claim.fd, part[done:], at + done)
                with self._locked() as fd:
                    own = NEVER if coming is None else int(coming.next_uses([claim.name])[0])
                    if not self._make_room(fd, size, own, coming):
                        return False
                    path = self._path(claim.name)
                    path.parent.mkdir(exist_ok=True)
                    self._count(fd, size)
                    claim.path.rename(path)
                    if self._kept is not None:
                        self._kept[claim.name] = _Kept(size, time.time())
            return True
        except OSError as error:
            self.failures += 1
            if self.failures == 1:
                log.warning(
                    "DiskCache(%s): a piece cannot be saved, and is read without the cache: %s", self.folder, error
                )
            return False
        finally:
            claim.drop()

    def _path(self, name: Name) -> Path:
        return self.folder / name[0] / f"{name[1]:06d}"

    def _locked(self) -> AbstractContextManager[int]:
        return locked(self._lock, self.patience)

    def _used(self, fd: int) -> int:
        count = os.pread(fd, _USED.size, 0)
        return int(_USED.unpack(count)[0]) if len(count) == _USED.size else 0

    def _count(self, fd: int, more: int) -> None:
        os.pwrite(fd, _USED.pack(max(0, self._used(fd) + more)), 0)

    def _scan(self, fd: int) -> None:
        """Look at what is there, and count it anew. With the lock held."""
        kept: dict[Name, _Kept] = {}
        for folder in os.scandir(self.folder):
            if len(folder.name) == 32 and folder.is_dir():
                for file in os.scandir(folder):
                    with suppress(ValueError, FileNotFoundError):
                        status = file.stat()
                        kept[folder.name, int(file.name)] = _Kept(status.st_size, status.st_mtime)
        self._kept, self._scanned = kept, time.monotonic()
        os.pwrite(fd, _USED.pack(sum(each.size for each in kept.values())), 0)

    def _make_room(self, fd: int, size: int, own: int, coming: Coming | None) -> bool:
        """Evict until so many bytes more fit, what is needed last first. With the lock held.

        False where all that is there is needed before `own`, the next use of what is to come.
        """
        used = self._used(fd)
        if used + size <= self.limit:
            return True
        kept = self._kept or {}
        others = used != sum(each.size for each in kept.values())  # processes, which have put or evicted something
        if others and (not kept or time.monotonic() - self._scanned > SCAN_S):
            self._scan(fd)
            kept, used = self._kept or {}, self._used(fd)
        names = list(kept)
        uses = [NEVER] * len(names) if coming is None else coming.next_uses(names).tolist()
        order = sorted(range(len(names)), key=lambda k: (-uses[k], kept[names[k]].used))
        for k in order:
            if used + size <= self.limit:
                break
            if coming is not None and uses[k] <= own:
                return False
            with suppress(FileNotFoundError):  # another process has
                self._path(names[k]).unlink()
                self._count(fd, -kept[names[k]].size)
                self.evicted += 1
            used = self._used(fd)
            kept.pop(names[k], None)
            with suppress(OSError):  # it is not empty
                self._path(names[k]).parent.rmdir()
        return used + size <= self.limit

    def _throw_away(self, name: Name, path: Path, fd: int, why: str) -> None:
        with self._mutex:
            self.damaged += 1
            first = self.damaged == 1
        if first:
            log.warning(
                "DiskCache(%s): %s is damaged, and is read again from where it came: %s; more of them are counted, as "
                "failures of the cache in loader.stats().storage",
                self.folder,
                path.relative_to(self.folder),
                why,
            )
        with suppress(OSError), self._mutex, self._locked() as lock:
            if _is(path, fd):
                size = os.fstat(fd).st_size
                kept = (self._kept or {}).pop(name, None)
                path.unlink()
                self._count(lock, -(size if kept is None else kept.size))

    def _sweep(self, path: Path) -> None:
        """Remove a part whose process is gone."""
        with suppress(OSError):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                if flocked(fd) and _is(path, fd):
                    path.unlink()
            finally:
                os.close(fd)


def _is(path: Path, fd: int) -> bool:
    """Whether the file at `path` is the open one."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False
