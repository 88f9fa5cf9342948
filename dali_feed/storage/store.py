"""How the bytes of files are read, wherever those lie: what sources of files ask of a store.

The law: a store gives the bytes that a file has, or says why it cannot; which of them were read at once and from where
changes nothing. What a file was is kept as its `Stamp`, and sources compare it before the first byte they use and after
the last: a file that was written again or replaced has another one, whoever set its times, since the time of change is
the kernel's own. (An inode alone proves nothing: mounts of object stores give one file several.)
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from dali_feed.records.gauges import StorageMeter


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
