"""How the bytes of files are read, wherever those lie: what sources of files ask of a store; and mounted files.

The law: a store gives the bytes that a file has, or says why it cannot; which of them were read at once and from where
changes nothing. What a file was is kept as its `Stamp`, and sources compare it before the first byte they use and after
the last: a file that was written again or replaced has another one, whoever set its times, since the time of change is
the kernel's own. (An inode alone proves nothing: mounts of object stores give one file several.)
"""

from __future__ import annotations

import errno
import os
import resource
import stat
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, NamedTuple, Protocol, cast

from dali_feed.errors import SourceDeniedError, SourceError, SourceNotFoundError
from dali_feed.records.gauges import StorageMeter
from dali_feed.storage import lustre
from dali_feed.storage.paths import matches


class Stamp(NamedTuple):
    """What a file was: its inode, bytes, and the times of the last write and of the last change of any kind, in ns."""

    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Stamp:
        """What `os.stat` or `os.fstat` says."""
        return cls(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    def change(self, now: Stamp) -> str:
        """What became of the file since; "" where it is the same."""
        if now.size != self.size:
            return f"it had {self.size} bytes and has {now.size} now"
        if (now.mtime_ns, now.ctime_ns) == (self.mtime_ns, self.ctime_ns):
            return ""
        if now.inode != self.inode:
            return f"another file of the same {self.size} bytes is in its place"
        times = "was written again" if now.mtime_ns != self.mtime_ns else "has another time of change (ctime)"
        return f"it {times} and has the same {self.size} bytes"


def sizes_and_times(stamps: Iterable[Stamp]) -> bytes:
    """What tells a file from one that was written in its place, the same on every machine that sees it."""
    return b"".join(struct.pack("<2q", stamp.size, stamp.mtime_ns) for stamp in stamps)


class File(Protocol):
    """One file, open for reads at any place. Used by one thread, and never inherited through fork."""

    @property
    def kept(self) -> int:
        """Bytes of it that are kept in memory until it is closed."""
        ...

    def stamp(self) -> Stamp:
        """What this file is now; of one that was replaced, what the open one is."""
        ...

    def read(self, view: memoryview, at: int) -> int:
        """Fill `view` from byte `at`; how many bytes there were. Fewer only where the file ends.

        Raises OSError where that is what happened, else a SourceError that names the file.
        """
        ...

    def close(self) -> None:
        """Let it go. Safe to call twice."""
        ...


FileOf = Callable[[int], File]  # the open file of a number


class FileReads(NamedTuple):
    """What is wanted of files: `views[k]` is filled from byte `at[k]` of the file `files[k]`.

    file_of  opens a file, and closes the oldest of more than `most_open`; called by one thread alone
    stop     ends it early
    """

    file_of: FileOf
    files: Sequence[int]
    views: Sequence[memoryview]
    at: Sequence[int]
    stop: threading.Event


class Store(Protocol):
    """A place of files. It can be pickled, and another process opens its own files."""

    @property
    def most_open(self) -> int:
        """Files that one reader may have open at once."""
        ...

    @property
    def random_access(self) -> bool:
        """Whether a single record costs little."""
        ...

    @property
    def meter(self) -> StorageMeter | None:
        """What counts the reads of one reader, in its own store; None where files count for themselves."""
        ...

    def metered(self) -> Store:
        """The same store for one more reader, with a meter of its own."""
        ...

    def matches(self, pattern: str, subject: str = "ShardSet") -> list[str]:
        """The files that one pattern names, sorted; errors begin with `subject`, who asks for them.

        Raises:
            SourceNotFoundError: it names a file that is not there, or matches none.
            ConfigError: it names what is no file.
        """
        ...

    def stamp(self, path: str) -> Stamp:
        """What the file is now. Raises as `open`."""
        ...

    def open(self, path: str, stop: threading.Event | None = None) -> File:
        """The file, whose reads end early with a ClosedError once `stop` is set, where they may take long.

        Raises SourceNotFoundError, SourceDeniedError, or another SourceError that names the file.
        """
        ...

    def fill(self, reads: FileReads) -> list[int]:
        """Read all, many at once where that is faster; the bytes of each.

        A count of -1: not read, because of `stop` or of an error, which `File.read` then raises.
        """
        ...


def read_whole(file: File, most: int) -> bytes:
    """All of a file that is to be held in memory. ValueError where it announces more bytes than it can rightly have."""
    size = file.stamp().size
    if size > most:
        msg = f"it has {size:,} bytes, and can have {most:,} at most"
        raise ValueError(msg)
    return read_at(file, size, 0)


def read_at(file: File, size: int, at: int) -> bytes:
    """`size` bytes from byte `at`, fewer where the file ends."""
    room = memoryview(bytearray(size))
    return bytes(room[: file.read(room, at)])


# Files of a mounted file system, in one part or in several: what the page cache has first, then the disk's.
#
# The law: which bytes were in the page cache decides when they come, never what they are. What it has not is asked of
# the kernel for many reads (and of all parts of a striped file) before any is waited for: a disk that has much to do
# does it faster, and several targets work at the same time. How much that is is bounded, so that a stop is heard soon.
# A byte goes from its file into the caller's memory, which is written only while someone waits for it.


MOST_OPEN = max(8, min(128, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8))  # files of one reader
DEPTH = 128  # reads asked of the disk and not waited for
LARGE = 1 << 20  # bytes of a read that the kernel reads ahead of better than advice does
ADVICE = 512 << 10  # bytes of one advice: of more at once the kernel takes what one request to the disk may hold
_AT_ONCE = getattr(os, "RWF_NOWAIT", 0)
_UNKNOWN = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class ReadAt(NamedTuple):
    """Where bytes of a file lie: from byte `at` of its part number `part`, `size` of them, for these views in turn."""

    part: int
    views: Sequence[memoryview]
    at: int
    size: int


class LocalFile:
    """A file, open.

    fds      a descriptor of each of its parts
    ahead    bytes that are asked for at once; 0: as many reads as may be, and large ones left to the kernel
    at_once  whether its file system can be asked for what the page cache has, and no more
    meter    counts its reads for each part; None: its store counts them
    """

    __slots__ = ("ahead", "at_once", "fds", "meter")
    kept = 0

    def __init__(self, fds: Sequence[int], ahead: int = 0, meter: StorageMeter | None = None) -> None:
        self.fds, self.ahead, self.at_once, self.meter = list(fds), ahead, True, meter

    def stamp(self) -> Stamp:
        """What `fstat` says."""
        return Stamp.of(os.fstat(self.fds[0]))

    def places(self, view: memoryview, at: int) -> Sequence[ReadAt]:
        """Where the bytes for `view` lie, from byte `at` on."""
        return (ReadAt(0, (view,), at, len(view)),)

    def read(self, view: memoryview, at: int) -> int:
        """See `File`."""
        return read_place(self.fds[0], ReadAt(0, (view,), at, len(view)))

    def close(self) -> None:
        """Close it. Safe to call twice."""
        while self.fds:
            os.close(self.fds.pop())


@dataclass(frozen=True, slots=True)
class LocalStore:
    """Files by their paths.

    meter  counts what one reader reads
    """

    most_open: int = MOST_OPEN
    random_access: bool = True
    meter: StorageMeter | None = field(default=None, repr=False, compare=False)

    def __reduce__(self) -> Any:
        return "LOCAL" if self is LOCAL else (type(self), (self.most_open, self.random_access))

    def metered(self) -> LocalStore:
        """See `Store`."""
        return replace(self, meter=StorageMeter("local"))

    def matches(self, pattern: str, subject: str = "ShardSet") -> list[str]:
        """See `Store`."""
        return matches(pattern, subject)

    def stamp(self, path: str) -> Stamp:
        """What `stat` says."""
        try:
            return Stamp.of(os.stat(path))
        except OSError as error:
            raise _unopened(path, error) from error

    def open(self, path: str, stop: threading.Event | None = None) -> LocalFile:
        """The file; see `Store`."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # or a pipe would wait for its writer
        except OSError as error:
            raise _unopened(path, error) from error
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            os.close(fd)
            what = "a folder" if stat.S_ISDIR(mode) else "a pipe" if stat.S_ISFIFO(mode) else "a device"
            cure = "name the files in it" if stat.S_ISDIR(mode) else "write it into a file first"
            msg = f"{path}: a shard must be a file, to be read by position; found {what}; {cure}"
            raise SourceError(msg)
        return LocalFile([fd], lustre.AHEAD_BYTES if lustre.magic_of(fd) == lustre.MAGIC else 0)

    def fill(self, reads: FileReads) -> list[int]:
        """What the page cache has first, then the rest; see `Store`."""
        filling = _Filling(reads)
        if self.meter is not None:
            self.meter.queued = len(reads.views)
        try:
            filling.run()
        finally:
            filling.give_up()
            if self.meter is not None:
                self.meter.queued = 0
                self.meter.many(filling.took, filling.bytes)
        return filling.counts


class _Late(NamedTuple):
    """A place that is asked for and not read: of which read, since when."""

    k: int
    place: ReadAt
    since: float
    meter: StorageMeter | None


class _Filling:
    """One call of `fill`. `took` and `bytes` are of files without a meter of their own."""

    def __init__(self, reads: FileReads) -> None:
        self._file_of, self._files, self._views, self._at, self._stop = reads
        self.counts = [-1] * len(reads.views)
        self.took: list[float] = []
        self.bytes = 0
        self._late: deque[_Late] = deque()
        self._pending = 0  # bytes of them

    def run(self) -> None:
        """Read all, or as much as there is before `stop`."""
        stopped, counts, took, preadv = self._stop.is_set, self.counts, self.took, os.preadv
        last, file = -1, cast("LocalFile", None)
        now = perf_counter()
        for k, (number, view, at) in enumerate(zip(self._files, self._views, self._at, strict=True)):
            if stopped():
                return
            if number != last:
                last, file = number, cast("LocalFile", self._file_of(number))
            large = len(view) > LARGE and not file.ahead
            if file.meter is None and (file.at_once or large):  # most reads, and with not a call more for each
                try:
                    got = preadv(file.fds[0], (view,), at, 0 if large else _AT_ONCE)
                except OSError as error:
                    got = -1
                    file.at_once = file.at_once and error.errno not in _UNKNOWN
                if got == len(view):
                    counts[k] = got
                    self.bytes += got
                    then = perf_counter()
                    took.append(then - now)
                    now = then
                    continue
            counts[k] = 0
            for place in file.places(view, at):
                if file.meter is None or not self._at_once(k, place, file):
                    file = self._ask(k, place, now, file)
            now = perf_counter()
        while self._late and not stopped():
            self._wait()

    def give_up(self) -> None:
        """Count what was asked for and will not be read as not read."""
        for late in self._late:
            self.counts[late.k] = -1
            _queue(late.meter, late.place.part, -1)

    def _at_once(self, k: int, place: ReadAt, file: LocalFile) -> bool:
        """Whether the page cache had all of a place of a file on targets."""
        if not file.at_once:
            return False
        begun = perf_counter()
        try:
            got = os.preadv(file.fds[place.part], place.views, place.at, _AT_ONCE)
        except OSError as error:
            file.at_once = error.errno not in _UNKNOWN
            return False
        if got == place.size:
            self._count(k, place, got, perf_counter() - begun, file.meter)
        return got == place.size

    def _ask(self, k: int, place: ReadAt, since: float, file: LocalFile) -> LocalFile:
        """Have a place read ahead once there is room for it; its file, which that may have closed and opened again."""
        while self._late and (len(self._late) == DEPTH or 0 < file.ahead < self._pending + place.size):
            self._wait()
            file = cast("LocalFile", self._file_of(self._files[k]))
        self._late.append(_Late(k, place, since, file.meter))
        self._pending += place.size
        _queue(file.meter, place.part, 1)
        advise(file.fds[place.part], place)
        return file

    def _wait(self) -> None:
        """Read what was asked for first. Its file is looked up again: it may have been closed meanwhile."""
        k, place, since, meter = self._late.popleft()
        self._pending -= place.size
        got = -1
        try:
            with suppress(OSError):
                got = read_place(cast("LocalFile", self._file_of(self._files[k])).fds[place.part], place)
        finally:
            _queue(meter, place.part, -1)
            self._count(k, place, got, perf_counter() - since, meter)

    def _count(self, k: int, place: ReadAt, got: int, seconds: float, meter: StorageMeter | None) -> None:
        if meter is None:
            self.took.append(seconds)
            self.bytes += max(0, got)
        else:
            meter.read(seconds, max(0, got), place.part)
            if got < place.size:  # a part is as long as its set says, or that is an error
                meter.failures += 1
                got = -1
        if got < 0 or self.counts[k] < 0:
            self.counts[k] = -1
        else:
            self.counts[k] += got


def _queue(meter: StorageMeter | None, part: int, more: int) -> None:
    if meter is not None:
        meter.queued += more
        meter.queues[part] += more


def advise(fd: int, place: ReadAt) -> None:
    """Have the kernel read it, and do not wait."""
    with suppress(OSError):  # a file system that takes no advice
        for done in range(0, place.size, ADVICE):
            os.posix_fadvise(fd, place.at + done, min(ADVICE, place.size - done), os.POSIX_FADV_WILLNEED)


def read_place(fd: int, place: ReadAt) -> int:
    """Fill the views of a place from one of its file's descriptors; how many bytes there were. Raises OSError."""
    got = more = os.preadv(fd, place.views, place.at)
    while more and got < place.size:  # a read may come short before the end of a file
        rest, skip = [], got
        for view in place.views:
            rest.append(view[skip:])
            skip = max(0, skip - len(view))
        got += (more := os.preadv(fd, rest, place.at + got))
    return got


def _unopened(path: str, error: OSError) -> SourceError:
    if isinstance(error, FileNotFoundError):
        return SourceNotFoundError(f"{path}: no such shard file; check the path or the pattern")
    what = f"{path}: a shard must be readable; found {error.strerror}"
    if isinstance(error, PermissionError):
        return SourceDeniedError(f"{what}; check its permissions and owner")
    cure = "; raise the limit (ulimit -n), or use fewer readers" if error.errno in (errno.EMFILE, errno.ENFILE) else ""
    return SourceError(f"{what} (errno {error.errno}){cure}")


LOCAL = LocalStore()
