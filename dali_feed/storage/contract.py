"""How the bytes of files are read, wherever those lie: what sources of files ask of a store.

The law: a store gives the bytes that a file has, or says why it cannot; which of them were read at once, by how many
threads and from where changes nothing. What a file was is kept as its `Stamp`, and sources compare it before the first
byte they use and after the last.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from dali_feed.records.storage_stats import StorageMeter
from dali_feed.storage.stamp import Stamp

__all__ = ["Metered", "Opened", "Store", "piece"]


class Opened(Protocol):
    """One file, open for reads at any place. Used by one thread, and never inherited through fork."""

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

    def matches(self, pattern: str) -> list[str]:
        """The files that one pattern names, sorted.

        Raises:
            SourceNotFoundError: it names a file that is not there, or matches none.
            ConfigError: it names what is no file.
        """
        ...

    def stamp(self, path: str) -> Stamp:
        """What the file is now. Raises as `open`."""
        ...

    def open(self, path: str, stop: threading.Event | None = None) -> Opened:
        """The file, whose reads end early with a ClosedError once `stop` is set, where they may take long.

        Raises SourceNotFoundError, SourceDeniedError, or another SourceError that names the file.
        """
        ...

    def fill(
        self,
        file_of: Callable[[int], Opened],
        files: Sequence[int],
        views: Sequence[memoryview],
        at: Sequence[int],
        stop: threading.Event,
    ) -> list[int]:
        """Fill views[k] from byte at[k] of `file_of(files[k])`, many at once where that is faster; the bytes of each.

        `file_of` is called by this thread alone, and closes the oldest of more than `most_open` files. A count of -1:
        not read, because `stop` was set or because of an OSError, which `Opened.read` then tells.
        """
        ...


@runtime_checkable
class Metered(Protocol):
    """A store that counts what each reader reads."""

    @property
    def meter(self) -> StorageMeter | None:
        """What counts, in a store of one reader."""
        ...

    def metered(self) -> Store:
        """The same store for one more reader, with a meter of its own."""
        ...


def piece(file: Opened, size: int, at: int) -> bytes:
    """`size` bytes from byte `at`, fewer where the file ends."""
    found = bytearray(size)
    got = file.read(memoryview(found), at)
    return bytes(found[:got])
