"""Files beneath a cache of pieces, and what is read of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from dali_feed.storage.disk_cache import CachedFile, CachedStore, DiskCache
from dali_feed.storage.local import LOCAL, LocalStore
from dali_feed.storage.store import File

__all__ = ["DATA", "PIECE", "SIZE", "Counting", "opened", "pieces", "read", "taken"]

PIECE = 1 << 16
SIZE = 10 * PIECE - 1000
DATA = np.random.default_rng(0).integers(0, 256, SIZE, np.uint8).tobytes()


class Counting(LocalStore):
    """The local store, and which reads came to it: (at, size)."""

    __slots__ = ("reads",)

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "reads", [])

    reads: list[tuple[int, int]]

    def metered(self) -> Counting:
        """Itself: it counts for all readers."""
        return self

    def fill(
        self,
        file_of: Callable[[int], File],
        files: Sequence[int],
        views: Sequence[memoryview],
        at: Sequence[int],
        stop: threading.Event,
    ) -> list[int]:
        """Noted."""
        self.reads.extend((byte, len(view)) for byte, view in zip(at, views, strict=True))
        return LOCAL.fill(file_of, files, views, at, stop)


def opened(path: str, limit: int = 1 << 30) -> tuple[Counting, CachedStore, CachedFile]:
    """The file through a cache beside it."""
    below = Counting()
    store = CachedStore(below, DiskCache(Path(path).parent / "cache", limit, PIECE))
    return below, store, store.open(path)


def read(file: CachedFile, at: int = 0, size: int = SIZE) -> bytes:
    """Some bytes."""
    view = bytearray(size)
    got = file.read(memoryview(view), at)
    return bytes(view[:got])


def pieces(path: str) -> list[Path]:
    """The files of pieces."""
    return sorted((Path(path).parent / "cache").glob("?" * 32 + "/*"))


def taken(path: str) -> int:
    """Bytes that the pieces take."""
    return sum(each.stat().st_size for each in pieces(path))
