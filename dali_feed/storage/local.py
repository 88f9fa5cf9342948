"""Files of a mounted file system: a file descriptor each, and a `pread` for each piece."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from dali_feed.errors import SourceDeniedError, SourceError, SourceNotFoundError
from dali_feed.storage.contract import Opened
from dali_feed.storage.paths import matches
from dali_feed.storage.stamp import Stamp

__all__ = ["LOCAL", "LocalFile", "LocalStore"]


class LocalFile:
    """A file descriptor."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

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
    """Files by their paths."""

    most_open: int = 128
    random_access: bool = True

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
            return LocalFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except FileNotFoundError as error:
            raise _missing(path) from error
        except PermissionError as error:
            msg = f"{path}: a shard must be readable; found {error.strerror}; check its mode and owner"
            raise SourceDeniedError(msg) from error
        except OSError as error:
            msg = f"{path}: a shard must be readable; opening it gave: {error.strerror} (errno {error.errno})"
            raise SourceError(msg) from error

    def fill(
        self,
        file_of: Callable[[int], Opened],
        files: Sequence[int],
        views: Sequence[memoryview],
        at: Sequence[int],
        stop: threading.Event,
    ) -> list[int]:
        """One after the other: of a few KB each, what Python does for one read costs more than the read."""
        stopped, preadv, counts = stop.is_set, os.preadv, []
        last, fd = -1, -1
        for file, view, byte in zip(files, views, at, strict=True):
            if file != last:
                last, fd = file, cast("LocalFile", file_of(file)).fd
            try:
                counts.append(-1 if stopped() else preadv(fd, (view,), byte))
            except OSError:
                counts.append(-1)
        return counts


def _missing(path: str) -> SourceNotFoundError:
    return SourceNotFoundError(f"{path}: no such shard file; check the path or the pattern")


LOCAL = LocalStore()
