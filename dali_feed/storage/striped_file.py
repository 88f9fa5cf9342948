"""One shard whose bytes lie on several targets, read from all of them at once.

The law: a byte goes from its part's file into the caller's memory and nowhere else. Stripes of one part that a read
wants together are neighbours in that file, so they are one `preadv` with a place for each.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence

from dali_feed.errors import ClosedError, DataLostError, SourceDeniedError, SourceError
from dali_feed.records.storage_stats import StorageMeter, StorageStats
from dali_feed.storage.layout import Layout, Part
from dali_feed.storage.stamp import Stamp
from dali_feed.storage.stripe_writer import lost
from dali_feed.storage.target_queues import Batch, TargetQueue, acquire, release

__all__ = ["AHEAD", "StripedFile", "open_part", "stamp_of"]

AHEAD = 32 << 20  # bytes that one reader has asked for at once
_JOB = 2 << 20  # bytes after which the next of a target's threads gets the rest
_PLACES = 512  # of one preadv; Linux takes 1,024
_NEVER = threading.Event()
_Read = tuple[list[memoryview], int, int]  # where to, from which byte of the part, bytes


class StripedFile:
    """A shard of several parts, open. Raises DataLostError, SourceDeniedError, which name target and file."""

    def __init__(
        self, name: str, home: str, layout: Layout, parts: Sequence[Part], stop: threading.Event | None = None
    ) -> None:
        self._layout, self._parts, self._stop = layout, parts, stop or _NEVER
        self.size = sum(part.size for part in parts)
        self._folders = [layout.folder(part.target, home) for part in parts]
        self._lock = threading.Lock()
        self._busy, self._closed = 0, False
        self._fds: list[int] = []
        try:
            for folder, part in zip(self._folders, parts, strict=True):
                self._fds.append(open_part(folder, part))
        except BaseException:
            self._shut()
            raise
        self._queues: list[TargetQueue] = acquire(self._folders)
        self._meter = StorageMeter(name, self._folders)

    def stamp(self) -> Stamp:
        """Of all parts together: their bytes, and the last of their times."""
        return stamp_of([os.fstat(fd) for fd in self._fds])

    def storage(self) -> tuple[StorageStats, ...]:
        """See `records.storage_stats.Stored`."""
        return (self._meter.stats(),)

    def read(self, view: memoryview, at: int) -> int:
        """See `storage.contract.Opened`."""
        batch, failed = Batch(), list[SourceError | ClosedError]()
        size = self.ask(batch, view, at, failed.append)
        if not batch.wait(self._stop):
            msg = f"{self._meter.store}: the read was stopped"
            raise ClosedError(msg)
        if failed:
            raise failed[0]
        return size

    def ask(self, batch: Batch, view: memoryview, at: int, failed: Callable[[SourceError | ClosedError], None]) -> int:
        """Have `view` filled from byte `at`, by threads; the bytes of it that the file has.

        `failed` is called with a SourceError, by any thread, for each part that could not be read.
        """
        size = max(0, min(len(view), self.size - at))
        reads: list[list[_Read]] = [[] for _ in self._parts]
        done = 0
        for part, byte, held in self._layout.pieces(at, size):
            place, mine = view[done : done + held], reads[part]
            done += held
            if mine and mine[-1][1] + mine[-1][2] == byte and mine[-1][2] < _JOB and len(mine[-1][0]) < _PLACES:
                mine[-1][0].append(place)
                mine[-1] = mine[-1][0], mine[-1][1], mine[-1][2] + held
            else:
                mine.append(([place], byte, held))
        for part, mine in enumerate(reads):
            for read in mine:
                self._put(batch, part, read, failed)
        return size

    def _put(self, batch: Batch, part: int, read: _Read, failed: Callable[[SourceError | ClosedError], None]) -> None:
        places, byte, size = read

        def job() -> None:
            if not self._enter():
                failed(ClosedError(f"{self._meter.store}: the file was closed"))
                return
            began, got = time.perf_counter(), 0
            try:
                got = _preadv(self._fds[part], places, byte, size, batch)
                if got < size and not batch.cancelled:
                    found = f"{byte + got} bytes"
                    failed(DataLostError(lost(self._folders[part], self._parts[part], found)))
            except OSError as error:
                path = os.path.join(self._folders[part], self._parts[part].file)
                what = f"{error.strerror} (errno {error.errno})"
                msg = f"{path}: a part of a shard must be readable; found: {what}; check the target"
                failed(SourceError(msg))
            finally:
                self._leave(part, time.perf_counter() - began, got, whole=got == size)

        with self._lock:
            self._meter.queued += 1
            self._meter.queues[part] += 1
        batch.put(self._queues[part], size, job)

    def _enter(self) -> bool:
        with self._lock:
            self._busy += not self._closed
            return not self._closed

    def _leave(self, part: int, seconds: float, size: int, *, whole: bool) -> None:
        with self._lock:
            self._meter.read(seconds, size, part)
            self._meter.failures += not whole
            self._meter.queued -= 1
            self._meter.queues[part] -= 1
            self._busy -= 1
            if self._closed and not self._busy:
                self._shut()

    def close(self) -> None:
        """Let it go. A read that hangs keeps the files until it ends, so that no other file gets their numbers."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if not self._busy:
                self._shut()
        release(self._queues)

    def _shut(self) -> None:
        while self._fds:
            os.close(self._fds.pop())


def stamp_of(parts: Sequence[os.stat_result]) -> Stamp:
    """What several files are, as one."""
    return Stamp(
        hash(tuple(each.st_ino for each in parts)),
        sum(each.st_size for each in parts),
        max(each.st_mtime_ns for each in parts),
        max(each.st_ctime_ns for each in parts),
    )


def open_part(folder: str, part: Part) -> int:
    """A file descriptor of a part, which is as long as it should be; see StripedFile."""
    path = os.path.join(folder, part.file)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError as error:
        msg = f"{path}: a part of a shard must be readable; found {error.strerror}; check its permissions and owner"
        raise SourceDeniedError(msg) from error
    except OSError as error:
        raise DataLostError(lost(folder, part, error.strerror or f"errno {error.errno}")) from error
    found = os.fstat(fd).st_size
    if found != part.size:
        os.close(fd)
        raise DataLostError(lost(folder, part, f"{found} bytes"))
    return fd


def _preadv(fd: int, places: list[memoryview], at: int, size: int, batch: Batch) -> int:
    got = more = os.preadv(fd, places, at)
    while more and got < size and not batch.cancelled:  # a read may come short before the end of a file
        rest, skip = [], got
        for place in places:
            if skip < len(place):
                rest.append(place[skip:])
            skip = max(0, skip - len(place))
        got += (more := os.preadv(fd, rest, at + got))
    return got
