"""Indexes of files: that of a tar file as bytes, and back; where any of them is kept, and how it is written.

An index file is the magic, the SHA-256 of the rest, and the rest: six int64 (version, shard bytes, shard mtime in ns,
samples, members, `behind`), then `first`, `offset`, `length` as int64, `suffix` as int32, of version 3 `crc` as uint32,
and the suffixes joined by NUL. Little endian, nothing in it is ever executed or unpickled.

Version 2 is made from a tar file that somebody wrote: it belongs to that file by its size and times. Version 3 is
written with the tar file and says what its members are, by their CRC-32; so it belongs to every copy of it, has no time
(mtime 0), and equal shards have equal indexes.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dali_feed.errors import SourceDeniedError
from dali_feed.storage.durable import user_cache
from dali_feed.storage.local import LOCAL
from dali_feed.storage.store import Store

__all__ = [
    "MAGIC",
    "SEALED_HEAD",
    "SUFFIX",
    "Columns",
    "Indexed",
    "Pread",
    "ReadWindow",
    "homes_of",
    "index_bytes",
    "index_path",
    "indexed",
    "is_sealed",
    "keep",
    "mode_of",
    "write_index",
]


MAGIC = b"dfeedtar"
_BUILT, _SEALED = 2, 3
_HEAD = 48  # bytes of the six numbers
SEALED_HEAD = 48  # bytes that say whether an index is sealed
Columns = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]


@dataclass(frozen=True, slots=True)
class Indexed:
    """What an index file says.

    size      bytes of the tar file
    mtime_ns  its last write; 0 where the index is sealed
    behind    see `tar_index.TarIndex`
    columns   first, offset, length and suffix, as `TarIndex` has them
    crc       uint32 (members,): zlib.crc32 of each member's data; None where the index was built from headers
    """

    size: int
    mtime_ns: int
    behind: int
    columns: Columns
    suffixes: tuple[bytes, ...]
    crc: NDArray[np.uint32] | None = None

    @property
    def sealed(self) -> bool:
        """Whether it was written with the tar file."""
        return self.crc is not None


def index_bytes(index: Indexed) -> bytes:
    """The whole file."""
    first, offset, length, suffix = index.columns
    version = _BUILT if index.crc is None else _SEALED
    head = np.array([version, index.size, index.mtime_ns, len(first) - 1, len(offset), index.behind], "<i8")
    columns = [first.astype("<i8"), offset.astype("<i8"), length.astype("<i8"), suffix.astype("<i4")]
    crc = [] if index.crc is None else [index.crc.astype("<u4")]
    body = b"".join(part.tobytes() for part in (head, *columns, *crc)) + b"\0".join(index.suffixes)
    return MAGIC + hashlib.sha256(body).digest() + body


def is_sealed(head: bytes) -> bool:
    """Whether an index that begins so was written with its shard."""
    return head[:8] == MAGIC and head[40:SEALED_HEAD] == _SEALED.to_bytes(8, "little")


def indexed(whole: bytes) -> Indexed:
    """What the bytes of a file say. Raises ValueError where they are no index, or damaged."""
    body = memoryview(whole)[40:]
    if whole[:8] != MAGIC or len(body) < _HEAD or hashlib.sha256(body).digest() != whole[8:40]:
        msg = "damaged"
        raise ValueError(msg)
    version, size, mtime_ns, samples, entries, more = np.frombuffer(body[:_HEAD], "<i8").tolist()
    if version not in (_BUILT, _SEALED):
        msg = f"version {version}"
        raise ValueError(msg)
    at = _HEAD + 8 * (samples + 1)
    first = np.frombuffer(body[_HEAD:at], "<i8")
    offset = np.frombuffer(body, "<i8", entries, at)
    length = np.frombuffer(body, "<i8", entries, at + 8 * entries)
    suffix = np.frombuffer(body, "<i4", entries, at + 16 * entries)
    end = at + 20 * entries
    crc = None
    if version == _SEALED:
        crc, end = np.frombuffer(body, "<u4", entries, end), end + 4 * entries
    suffixes = tuple(bytes(body[end:]).split(b"\0")) if entries else ()
    if (
        first[0] != 0
        or first[-1] != entries
        or (np.diff(first) < 1).any()
        or (entries and (min(offset.min(), length.min(), suffix.min()) < 0 or suffix.max() >= len(suffixes)))
        or (offset > size - length).any()
    ):
        msg = "no index of this shard"
        raise ValueError(msg)
    return Indexed(size, mtime_ns, more, (first, offset, length, suffix), suffixes, crc)


# Where indexes of files are kept: beside the file, else in the user's cache, or in a folder that was named.


SUFFIX = ".dfidx"  # of our own: Energon keeps a train-0000.tar.idx
_log = logging.getLogger("dali_feed")


def index_path(path: str, folder: str | os.PathLike[str] | None) -> Path:
    """Where the index of a shard lies in `folder` (None: the user's cache)."""
    whole = path if "://" in path else os.path.abspath(path)
    name = hashlib.sha256(whole.encode(errors="surrogateescape")).hexdigest()
    if folder is None:
        return user_cache() / "index" / f"{name}{SUFFIX}"
    return Path(folder, f"{os.path.basename(path)}-{name[:16]}{SUFFIX}")


def homes_of(path: str, index_dir: str | os.PathLike[str] | None, store: Store) -> list[Path]:
    """Where the index of a file may lie, the best place first."""
    own = index_path(path, index_dir)
    return [Path(path + SUFFIX), own] if index_dir is None and store is LOCAL else [own]


def keep(
    path: str, homes: Sequence[Path], write: Callable[[Path], None], index_dir: str | os.PathLike[str] | None
) -> None:
    """Have the index of a file written to the first of its homes that takes it.

    Where none does, a warning says that it is built at every start; SourceDeniedError where `index_dir` was given.
    """
    errors: list[OSError] = []
    for home in homes:
        try:
            write(home)
        except OSError as error:
            errors.append(error)
        else:
            return
    if index_dir is not None:
        msg = f"index_dir={os.fspath(index_dir)!r}: it must be a folder that can be written; found: {errors[0]}"
        raise SourceDeniedError(msg) from errors[0]
    _log.warning(
        "%s: its index cannot be saved (%s), so it is made again at every start; set index_dir", path, errors[-1]
    )


def mode_of(path: str, store: Store) -> int:
    """Who may read and write an index: those who may a mounted file's, else its owner alone."""
    return os.stat(path).st_mode & 0o666 if store is LOCAL else 0o600


def write_index(home: Path, whole: bytes, mode: int) -> None:
    """Write whole or not at all: others may read or write the same index at this moment.

    OSError where it cannot be, or where a file lies that does not begin as this index does.
    """
    with contextlib.suppress(FileNotFoundError), home.open("rb") as file:
        if file.read(len(MAGIC)) != whole[: len(MAGIC)]:
            raise FileExistsError(
                errno.EEXIST, "a file that is not an index of dali_feed; it is not replaced", str(home)
            )
    home.parent.mkdir(parents=True, exist_ok=True)
    fd, temporary = tempfile.mkstemp(dir=home.parent, prefix=f".{home.name[:100]}-")
    try:
        with open(fd, "wb") as file:
            os.fchmod(fd, mode)
            file.write(whole)
        os.replace(temporary, home)
    except BaseException:
        os.unlink(temporary)
        raise


# Reading the headers of a file one after the other.


Pread = Callable[[int, int], bytes]  # so many bytes, from a byte on; fewer where the file ends

_LEAST, _MOST = 4096, 1 << 20
_MANY = 16  # questions that one read answered, from which the next is worth twice as much


class ReadWindow:
    """Reads ahead where records are small, and little more than was asked for where they are large."""

    def __init__(self, pread: Pread) -> None:
        self._pread, self._size, self._answered = pread, _LEAST, 0
        self._bytes, self._at = b"", 0

    def piece(self, at: int, size: int) -> bytes:
        """Bytes from `at`; fewer than `size` at the end of the file."""
        first = at - self._at
        if not 0 <= first <= len(self._bytes) - size:
            self._size = min(2 * self._size, _MOST) if self._answered >= _MANY else _LEAST
            self._bytes, self._at, first, self._answered = self._pread(max(size, self._size), at), at, 0, 0
        self._answered += 1
        return self._bytes[first : first + size]
