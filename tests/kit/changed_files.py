"""Shards and files that are written or replaced while somebody reads them."""

from __future__ import annotations

import os
from pathlib import Path

from kit.images import jpeg

from dali_feed.packing.sinks import write_shard


def shard(path: Path, first: int, count: int = 64) -> bytes:
    """A shard of as many bytes, whatever the labels from `first` on."""
    write_shard(path, [(jpeg(0), first + n) for n in range(count)])
    return path.read_bytes()


def replaced(path: Path, data: bytes) -> None:
    """As a tool does that writes beside it and renames: the times are those of the old one."""
    beside = path.with_suffix(".new")
    beside.write_bytes(data)
    _with_times_of(path, beside)
    beside.replace(path)


def _rewritten(path: Path, data: bytes) -> None:
    """In place."""
    with path.open("r+b") as file:
        file.write(data)


def _rewritten_with_its_times(path: Path, data: bytes) -> None:
    """In place, and the time of the last write set back."""
    status = path.stat()
    _rewritten(path, data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _with_times_of(old: Path, new: Path) -> None:
    status = old.stat()
    os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))


WAYS = [replaced, _rewritten, _rewritten_with_its_times]
