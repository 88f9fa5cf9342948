"""What a user says of a cache of files on a disk."""

from __future__ import annotations

import os
from dataclasses import dataclass

from dali_feed.checks import bytes_of, path_of, whole
from dali_feed.errors import ConfigError
from dali_feed.storage.piece import BLOCK

__all__ = ["DiskCache"]

MOST = 8 << 20


@dataclass(frozen=True, slots=True)
class DiskCache:
    """Pieces of files, kept in a folder: of a store whose reads are dear, on a disk whose reads are cheap.

    folder  on a local file system; it is made where there is none. All processes of a machine may share it, runs one
            after the other too; more sources than one may
    limit   bytes that the pieces may take, or a size such as "200GB" (of 10^9); each process may be one piece above it
    piece   bytes of a piece: all are fetched where any is asked for; a multiple of 16 KiB, 8 MiB at most

    A piece is of a file as it was: of one that has changed nothing is found. Every read is checked by a checksum.
    """

    folder: str | os.PathLike[str]
    limit: int | str
    piece: int = 8 << 20

    def __post_init__(self) -> None:
        path_of("DiskCache(folder=...)", self.folder)
        if isinstance(self.limit, str):
            bytes_of("DiskCache(limit=...)", self.limit)
        else:
            whole("DiskCache(limit=...)", self.limit, 1)
        if whole("DiskCache(piece=...)", self.piece, BLOCK) % BLOCK or self.piece > MOST:
            msg = f"DiskCache(piece=...): must be a multiple of {BLOCK}, {MOST} at most; found {self.piece}"
            raise ConfigError(msg)

    @property
    def bytes(self) -> int:
        """`limit` in bytes."""
        return bytes_of("DiskCache(limit=...)", self.limit) if isinstance(self.limit, str) else self.limit
