"""Files of a mounted file system: a file descriptor each, and many reads at once."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dali_feed.errors import SourceDeniedError, SourceError, SourceNotFoundError
from dali_feed.records.storage_stats import StorageMeter
from dali_feed.storage.contract import Opened
from dali_feed.storage.local_reads import fill_local
from dali_feed.storage.lustre_reads import ahead_of
from dali_feed.storage.paths import matches
from dali_feed.storage.stamp import Stamp

__all__ = ["LOCAL", "LocalFile", "LocalStore"]


class LocalFile:
    """A file descriptor.

    at_once  whether its file system can be asked for what the page cache has, and no more
    ahead    bytes that are asked for at once, where a layout says so: see `storage.lustre_reads`; 0 elsewhere
    """

    __slots__ = ("ahead", "at_once", "fd")

    def __init__(self, fd: int, ahead: int = 0) -> None:
        self.fd, self.at_once, self.ahead = fd, True, ahead

    def stamp(self) -> Stamp:
        """What `fstat` says."""
        return Stamp.of(os.fstat(self.fd))

    def read(self, view: memoryview, at: int) -> int:
        """See `storage.contract.Opened`."""
        got = more = os.preadv(self.fd, (view,), at)
        while more and got < len(view):  # a read may come short before the end of a file
            got += (more := os.preadv(self.fd, (view[got:],), at + got))
        return got

    def close(self) -> None:
        """Close it. Safe to call twice."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


@dataclass(frozen=True, slots=True)
class LocalStore:
    """Files by their paths.

    meter  counts what one reader reads
    """

    most_open: int = 128
    random_access: bool = True
    meter: StorageMeter | None = field(default=None, repr=False, compare=False)

    def __reduce__(self) -> Any:
        return "LOCAL" if self is LOCAL else (type(self), (self.most_open, self.random_access))

    def metered(self) -> LocalStore:
        """See `storage.contract.Metered`."""
        return replace(self, meter=StorageMeter("local"))

    def matches(self, pattern: str) -> list[str]:
        """See `storage.contract.Store`."""
        return matches(pattern)

    def stamp(self, path: str) -> Stamp:
        """What `stat` says."""
        try:
            return Stamp.of(os.stat(path))
        except FileNotFoundError as error:
            raise _missing(path) from error
        except OSError as error:
            msg = f"{path}: a shard must be readable; found: {error.strerror} (errno {error.errno})"
            raise SourceError(msg) from error

    def open(self, path: str, stop: threading.Event | None = None) -> LocalFile:
        """The file; see `storage.contract.Store`."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # or a pipe would wait for its writer
        except FileNotFoundError as error:
            raise _missing(path) from error
        except PermissionError as error:
            msg = f"{path}: a shard must be readable; found {error.strerror}; check its permissions and owner"
            raise SourceDeniedError(msg) from error
        except OSError as error:
            msg = f"{path}: a shard must be readable; opening it failed: {error.strerror} (errno {error.errno})"
            raise SourceError(msg) from error
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            os.close(fd)
            found = "a folder" if stat.S_ISDIR(mode) else "a pipe" if stat.S_ISFIFO(mode) else "a device"
            cure = "name the files in it" if stat.S_ISDIR(mode) else "write it into a file first"
            msg = f"{path}: a shard must be a file, to be read by position; found {found}; {cure}"
            raise SourceError(msg)
        return LocalFile(fd, ahead_of(path))

    def fill(
        self,
        file_of: Callable[[int], Opened],
        files: Sequence[int],
        views: Sequence[memoryview],
        at: Sequence[int],
        stop: threading.Event,
    ) -> list[int]:
        """What the page cache has first, then the rest; see `local_reads`."""
        return fill_local(file_of, files, views, at, stop, self.meter)


def _missing(path: str) -> SourceNotFoundError:
    return SourceNotFoundError(f"{path}: no such shard file; check the path or the pattern")


LOCAL = LocalStore()
