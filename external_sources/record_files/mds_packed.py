"""Shards of an MDS set that are there only as Zstandard packed them: read whole, unpacked in memory, forgotten.

The law: what is given are the bytes of the shard as it was before it was packed. A packed file is held against its hash
in index.json before a byte of it is unpacked, and never unpacks to more than index.json says. Nothing is written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dali_feed.errors import DataLostError
from dali_feed.packages import needed
from dali_feed.records.storage_stats import StorageMeter
from dali_feed.storage.store import File, Stamp, Store, read_at

__all__ = ["Packed", "PackedFile", "PackedStore", "check_zstandard"]

LARGEST = 1 << 32  # bytes of a shard: its table of samples has four bytes for each place
Check = Callable[["Packed", memoryview], None]  # raises DataLostError where the packed bytes have another hash


@dataclass(frozen=True, slots=True)
class Packed:
    """A packed shard: its path, its bytes, its hashes by their algorithms, and the bytes of what it unpacks to."""

    path: str
    bytes: int
    hashes: Mapping[str, str]
    raw: int


def check_zstandard(packed: str) -> None:
    """Raise MissingPackageError, which names the file, where there is nothing that unpacks it."""
    try:
        with needed():
            import zstandard  # noqa: F401
    except ImportError as error:
        msg = f"{packed}: {error}; or unpack all: zstd -d --rm {packed.rpartition('/')[0] or '.'}/*.zstd"
        raise type(error)(msg, name="zstandard") from None


class PackedFile:
    """A shard, whose bytes are unpacked when any but its foremost are asked for, and kept until it is closed."""

    def __init__(self, below: File, packed: Packed, check: Check) -> None:
        self._below, self._packed, self._check = below, packed, check
        self._whole: memoryview | None = None

    def stamp(self) -> Stamp:
        """The packed file's, with the bytes that it unpacks to."""
        return _stamp(self._packed, self._below.stamp())

    def read(self, view: memoryview, at: int) -> int:
        """See `storage.store.File`. DataLostError where the packed file is not what it was."""
        if self._whole is None and at == 0 and len(view) <= self._packed.raw // 8:  # the table of samples, in an index
            return self._unpacked(_Parts(self._below, self._packed.bytes), view)
        if self._whole is None:
            held = memoryview(bytearray(self._packed.bytes))
            if (got := self._below.read(held, 0)) < len(held):
                raise _damaged(self._packed, f"{got} bytes, but index.json says {len(held)}")
            self._check(self._packed, held)
            whole = memoryview(bytearray(self._packed.raw + 1))  # a byte more, to see that there is none
            if (found := self._unpacked(held, whole)) != self._packed.raw:
                more = "more" if found > self._packed.raw else str(found)
                raise _damaged(self._packed, f"{more} bytes in it, but index.json says {self._packed.raw}")
            self._whole = whole[:-1]
        part = self._whole[at : at + len(view)]
        view[: len(part)] = part
        return len(part)

    def close(self) -> None:
        """Forget the bytes. Safe to call twice."""
        self._whole = None
        self._below.close()

    def _unpacked(self, packed: Any, room: memoryview) -> int:
        """Fill `room` from bytes, or from what can be read; how many bytes there were."""
        import zstandard

        at = 0
        try:
            with zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True, closefd=False) as stream:
                while at < len(room) and (got := stream.readinto(room[at:])):
                    at += got
        except zstandard.ZstdError as error:
            raise _damaged(self._packed, f"{error}, after {at} unpacked bytes") from None
        return at


class _Parts:
    """A file from its first byte on, as a stream."""

    def __init__(self, file: File, size: int) -> None:
        self._file, self._left, self._at = file, size, 0

    def read(self, size: int) -> bytes:
        """At most so many bytes; none at the end."""
        found = read_at(self._file, min(size, self._left), self._at)
        self._at, self._left = self._at + len(found), self._left - len(found)
        return found


class PackedStore:
    """`below`, with the packed shards at the paths of what they unpack to; other paths are as they are. Can be pickled.

    packed  by the path of the shard that it unpacks to
    """

    random_access = False  # a shard is unpacked whole for any of its records
    most_open = 1  # of a reader: as much as it keeps in memory

    def __init__(self, below: Store, packed: Mapping[str, Packed], check: Check) -> None:
        self._below, self._packed, self._check = below, packed, check

    @property
    def meter(self) -> StorageMeter | None:
        """See `storage.store.Store`."""
        return self._below.meter

    def metered(self) -> PackedStore:
        """See `storage.store.Store`."""
        below = self._below.metered()
        return PackedStore(below, self._packed, self._check)

    def matches(self, pattern: str) -> list[str]:
        """As the store beneath does."""
        return self._below.matches(pattern)

    def stamp(self, path: str) -> Stamp:
        """Of a packed shard as of what it unpacks to."""
        packed = self._packed.get(path)
        return self._below.stamp(path) if packed is None else _stamp(packed, self._below.stamp(packed.path))

    def open(self, path: str, stop: threading.Event | None = None) -> File:
        """See `storage.store.Store`."""
        packed = self._packed.get(path)
        if packed is None:
            return self._below.open(path, stop)
        return PackedFile(self._below.open(packed.path, stop), packed, self._check)

    def fill(
        self,
        file_of: Callable[[int], File],
        files: Sequence[int],
        views: Sequence[memoryview],
        at: Sequence[int],
        stop: threading.Event,
    ) -> list[int]:
        """One file after the other, each unpacked once however often it stands in `files`."""
        counts = [-1] * len(views)
        for k in sorted(range(len(views)), key=lambda k: files[k]):
            if stop.is_set():
                break
            try:
                counts[k] = file_of(files[k]).read(views[k], at[k])
            except OSError:  # told by the careful way
                continue
        return counts


def _stamp(packed: Packed, found: Stamp) -> Stamp:
    if found.size != packed.bytes:
        raise _damaged(packed, f"{found.size} bytes, but index.json says {packed.bytes}")
    return found._replace(size=packed.raw)


def _damaged(packed: Packed, found: str) -> DataLostError:
    return DataLostError(f"{packed.path}: a packed shard must be whole; found {found}; copy the shard again")
