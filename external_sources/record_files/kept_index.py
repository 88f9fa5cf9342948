"""Where the records of a file lie: found once by its frames, and kept beside the file, as tar shards' indexes are.

The law is that of `tar_index`: an index tells the truth about a whole file, or there is none; one that does not belong
to the file's present size and mtime, or whose own digest is wrong, is built anew; no file of others is replaced.

An index file is the magic, the SHA-256 of the rest, and the rest: four int64 (version, the file's bytes, its mtime in
ns, records), the name of the kind of file in 16 bytes, then `at` and `size` as int64. Little endian.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dali_feed.errors import DataLostError, SourceChangedError, SourceError
from dali_feed.external_sources.index_homes import homes_of, keep
from dali_feed.external_sources.record_files.frames import BrokenError, Framing
from dali_feed.records.source import Int64s
from dali_feed.storage.durable import write_whole
from dali_feed.storage.local import LOCAL
from dali_feed.storage.store import Stamp, Store, read_at

__all__ = ["RecordIndex", "build", "load"]

MAGIC = b"dfeedrec"
VERSION = 1
_HEAD = 48  # bytes of the four numbers and the name


@dataclass(frozen=True, slots=True)
class RecordIndex:
    """The records of a file.

    stamp     what the file was when it was indexed, or when this index was found to fit
    at, size  int64 (records,): where the piece of each lies that `Framing.value` takes
    digest    SHA-256 of the file's size and of both, as hex
    """

    stamp: Stamp
    at: Int64s
    size: Int64s
    digest: str

    @classmethod
    def of(cls, stamp: Stamp, at: Int64s, size: Int64s, told: bytes = b"") -> RecordIndex:
        """With its digest, of which `told` is a part."""
        columns = [np.ascontiguousarray(column, "<i8").tobytes() for column in (at, size)]
        return cls(stamp, at, size, hashlib.sha256(b"%d\n%b" % (stamp.size, told) + b"".join(columns)).hexdigest())


def build(path: str, framing: Framing, store: Store = LOCAL) -> RecordIndex:
    """Index a file by reading its frames.

    Raises:
        SourceNotFoundError, SourceDeniedError: the file cannot be opened.
        SourceError: it is compressed, or the disk fails.
        DataLostError: it is cut off or damaged.
        SourceChangedError: it is being written.
    """
    file = store.open(path)
    try:
        before = file.stamp()
        at, size = framing.frames(lambda count, first: read_at(file, count, first), before.size)
        after = file.stamp()
    except BrokenError as broken:
        other = framing.other(read_at(file, 16, 0), path) if broken.byte == 0 else ""
        if other:
            msg = (
                f"{path}: must be a {framing.name} file that is not compressed, so that records can be read by "
                f"position; found {other}"
            )
            raise SourceError(msg) from None
        msg = (
            f"{path}#{broken.record}: a {framing.name} file must be whole; found at byte {broken.byte} of"
            f" {before.size}: {broken.what}; fetch or write the file again"
        )
        raise DataLostError(msg) from None
    except OSError as error:
        msg = f"{path}: its records must be readable; found {error.strerror}; check the disk"
        raise SourceError(msg) from error
    finally:
        file.close()
    if changed := before.change(after):
        msg = f"{path}: a file must not be written while it is indexed; {changed}; try again later"
        raise SourceChangedError(msg)
    return RecordIndex.of(before, at, size)


def load(
    path: str, framing: Framing, index_dir: str | os.PathLike[str] | None = None, store: Store = LOCAL
) -> RecordIndex:
    """The index of a file: the kept one where it still fits, else a new one, which is then kept as `tar_index` does.

    Raises:
        SourceDeniedError: `index_dir` is given and cannot be written.
        SourceError: as `build`.
    """
    homes = homes_of(path, index_dir, store)
    for home in homes:
        with contextlib.suppress(OSError, ValueError, SourceError):  # absent, unreadable or stale: built anew
            return _read(home, store.stamp(path), framing)
    index = build(path, framing, store)
    keep(path, homes, lambda home: _write(home, index, framing), index_dir)
    return index


def _name(framing: Framing) -> bytes:
    return framing.name.encode().ljust(16, b"\0")


def _write(home: Path, index: RecordIndex, framing: Framing) -> None:
    """Whole or not at all. OSError where it cannot be, or where a file lies that is no index of ours."""
    with contextlib.suppress(FileNotFoundError), home.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            msg = f"{home}: a file that is not an index of dali_feed; it is not replaced"
            raise FileExistsError(msg)
    head = np.array([VERSION, index.stamp.size, index.stamp.mtime_ns, len(index.at)], "<i8").tobytes()
    body = head + _name(framing) + index.at.astype("<i8").tobytes() + index.size.astype("<i8").tobytes()
    home.parent.mkdir(parents=True, exist_ok=True)
    write_whole(home, MAGIC + hashlib.sha256(body).digest() + body)


def _read(home: Path, stamp: Stamp, framing: Framing) -> RecordIndex:
    """The index at `home`; ValueError where it is stale or damaged, or of another kind of file."""
    with home.open("rb") as file:
        written = os.fstat(file.fileno()).st_mtime_ns
        whole = file.read()
    body = memoryview(whole)[40:]
    if whole[:8] != MAGIC or len(body) < _HEAD or hashlib.sha256(body).digest() != whole[8:40]:
        msg = "damaged"
        raise ValueError(msg)
    version, size, mtime_ns, records = np.frombuffer(body[:32], "<i8").tolist()
    stale = written < stamp.ctime_ns or bytes(body[32:_HEAD]) != _name(framing)
    if (version, size, mtime_ns) != (VERSION, stamp.size, stamp.mtime_ns) or stale:
        msg = "stale"
        raise ValueError(msg)
    at, length = np.frombuffer(body[_HEAD:], "<i8").reshape(2, records)
    if records and (at.min() < 0 or length.min() < 0 or (at > size - length).any()):
        msg = "no index of this file"
        raise ValueError(msg)
    return RecordIndex.of(stamp, at, length)
