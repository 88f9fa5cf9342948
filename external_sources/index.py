"""An index of a tar file as bytes, and back.

An index file is the magic, the SHA-256 of the rest, and the rest: six int64 (version, shard bytes, shard mtime in ns,
samples, members, `behind`), then `first`, `offset`, `length` as int64, `suffix` as int32, of version 3 `crc` as uint32,
and the suffixes joined by NUL. Little endian, nothing in it is ever executed or unpickled.

Version 2 is made from a tar file that somebody wrote: it belongs to that file by its size and times. Version 3 is
written with the tar file and says what its members are, by their CRC-32; so it belongs to every copy of it, has no time
(mtime 0), and equal shards have equal indexes.
"""

from __future__ import annotations

import hashlib
import logging
import os
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
    "homes_of",
    "index_bytes",
    "index_path",
    "indexed",
    "is_sealed",
    "keep",
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
