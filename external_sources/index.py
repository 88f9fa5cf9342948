"""Indexes of files: where each member or record lies, as bytes and back; how they are made, and where they are kept.

The law: an index tells the truth about a whole file, or there is none. One that does not belong to the file's present
size and mtime, that is older than the file's last change, or whose own digest is wrong, is built anew. No file that is
not an index of ours is ever replaced: other tools keep theirs beside the shards too.

An index file is a magic, the SHA-256 of the rest, and the rest, little endian; nothing in it is ever executed or
unpickled. That of a tar file is six int64 (version, shard bytes, shard mtime in ns, samples, members, `unread`), then
`first`, `offset`, `length` as int64, `suffix` as int32, of version 3 `crc` as uint32, and the suffixes joined by NUL.
That of a file of records is four int64 (version, the file's bytes, its mtime in ns, records), the name of the kind of
file in 16 bytes, then `at` and `size` as int64.

Version 2 of a tar file's is made from a file that somebody wrote: it belongs to that file by its size and times.
Version 3 is written with the tar file and says what its members are, by their CRC-32; so it belongs to every copy of
it, has no time (mtime 0), and equal shards have equal indexes.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dali_feed.checks import path_of
from dali_feed.errors import SourceChangedError, SourceDeniedError, SourceError
from dali_feed.external_sources.ranges import NONE
from dali_feed.records.source import Int64s
from dali_feed.storage.durable import user_cache
from dali_feed.storage.paths import place_of
from dali_feed.storage.store import LOCAL, File, LocalFile, Stamp, Store, read_at

_T = TypeVar("_T")


def _file_of(magic: bytes, body: bytes) -> bytes:
    return magic + hashlib.sha256(body).digest() + body


def _body_of(whole: bytes, magic: bytes) -> memoryview:
    """What stands behind the digest; ValueError where that is another one, or there is not even a head."""
    body = memoryview(whole)[40:]
    if whole[:8] != magic or len(body) < _HEAD or hashlib.sha256(body).digest() != whole[8:40]:
        msg = "damaged"
        raise ValueError(msg)
    return body


TAR, RECORDS = b"dfeedtar", b"dfeedrec"
_HEAD = 48  # bytes of six numbers, or of four and a name
SEALED_HEAD = 48  # bytes that say whether an index is sealed
_BUILT, _SEALED = 2, 3
_RECORDS_VERSION = 1


@dataclass(frozen=True, slots=True)
class TarIndex:
    """The members of one tar file, sample by sample.

    stamp     what the tar file was when it was indexed, or when this index was found to fit
    unread    byte of what lies behind the archive's end and is not read; 0 where there is nothing
    first     int64 (samples + 1,): members first[k]..first[k+1]-1 are sample k
    offset    int64 (members,): where a member's data starts
    length    int64 (members,): bytes of data
    suffix    int32 (members,): which of `suffixes` (lower case, without the dot) the member has
    crc       uint32 (members,): CRC-32 of each member's data, where the index was written with the file; else None
    """

    stamp: Stamp
    unread: int
    first: NDArray[np.int64]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    suffix: NDArray[np.int32]
    suffixes: tuple[bytes, ...]
    crc: NDArray[np.uint32] | None = None

    def __len__(self) -> int:
        return len(self.first) - 1

    @property
    def digest(self) -> str:
        """SHA-256 of the size, the suffixes and the columns up to `suffix`, as hex."""
        digest = hashlib.sha256(b"%d\n" % self.stamp.size + b"\0".join(self.suffixes))
        for column in self._columns():
            digest.update(column)
        return digest.hexdigest()

    def member(self, suffixes: Sequence[bytes]) -> tuple[Int64s, Int64s]:
        """Offset and length, int64 (samples,) each, of the member with the first of the suffixes; -1 and 0 for none.

        Of two members with one name the later counts, as in any tar.
        """
        member = self._of(suffixes)
        has = member >= 0
        return np.where(has, self.offset[member], NONE), np.where(has, self.length[member], 0)

    def crc_of(self, suffixes: Sequence[bytes]) -> Int64s:
        """The CRC-32 of the same members, int64 (samples,); -1 where nobody knows."""
        if self.crc is None:
            return np.full(len(self), NONE, np.int64)
        member = self._of(suffixes)
        return np.where(member >= 0, self.crc[member].astype(np.int64), NONE)

    def _of(self, suffixes: Sequence[bytes]) -> Int64s:
        """Which member has the first of the suffixes, int64 (samples,); -1 where a sample has none."""
        member = np.full(len(self), NONE, np.int64)
        for suffix in reversed(suffixes):
            if suffix in self.suffixes:
                has = np.flatnonzero(self.suffix == self.suffixes.index(suffix))
                member[np.searchsorted(self.first, has, side="right") - 1] = has
        return member

    def _columns(self) -> list[bytes]:
        every = ((self.first, "<i8"), (self.offset, "<i8"), (self.length, "<i8"), (self.suffix, "<i4"))
        return [np.ascontiguousarray(column, dtype).tobytes() for column, dtype in every]

    def to_bytes(self) -> bytes:
        """The index file: sealed where the checksums are known."""
        built = self.crc is None
        numbers = (_BUILT if built else _SEALED, self.stamp.size, self.stamp.mtime_ns if built else 0)
        head = np.array([*numbers, len(self), len(self.offset), self.unread], "<i8").tobytes()
        crc = b"" if self.crc is None else self.crc.astype("<u4").tobytes()
        return _file_of(TAR, b"".join((head, *self._columns(), crc)) + b"\0".join(self.suffixes))

    @classmethod
    def of(cls, whole: bytes) -> TarIndex:
        """What `to_bytes` gave, with no more of the stamp than it holds; ValueError for other bytes."""
        body = _body_of(whole, TAR)
        version, size, mtime_ns, samples, entries, more = np.frombuffer(body[:_HEAD], "<i8").tolist()
        if version not in (_BUILT, _SEALED) or not (0 <= samples <= entries <= len(body) and size >= 0):
            msg = f"version {version}, {samples} samples of {entries} members in {len(body)} bytes"
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
        return cls(Stamp(0, size, mtime_ns, 0), more, first, offset, length, suffix, suffixes, crc)


def is_sealed(head: bytes) -> bool:
    """Whether the index of a tar file that begins so was written with its shard."""
    return head[:8] == TAR and head[40:SEALED_HEAD] == _SEALED.to_bytes(8, "little")


@dataclass(frozen=True, slots=True)
class RecordIndex:
    """The records of a file.

    stamp     what the file was when it was indexed, or when this index was found to fit
    at, size  int64 (records,): where each record lies
    more      what else its digest is made of
    """

    stamp: Stamp
    at: Int64s
    size: Int64s
    more: bytes = b""

    def __len__(self) -> int:
        return len(self.at)

    @property
    def digest(self) -> str:
        """SHA-256 of the file's size, of `more` and of both columns, as hex."""
        return hashlib.sha256(b"%d\n%b" % (self.stamp.size, self.more) + self._columns()).hexdigest()

    def _columns(self) -> bytes:
        return b"".join(np.ascontiguousarray(column, "<i8").tobytes() for column in (self.at, self.size))

    def to_bytes(self, kind: str) -> bytes:
        """The index file, of that kind of file."""
        head = np.array([_RECORDS_VERSION, self.stamp.size, self.stamp.mtime_ns, len(self)], "<i8").tobytes()
        return _file_of(RECORDS, head + _name(kind) + self._columns())

    @classmethod
    def of(cls, whole: bytes, kind: str, stamp: Stamp) -> RecordIndex:
        """What `to_bytes` gave; ValueError where it is damaged, or of no such file."""
        body = _body_of(whole, RECORDS)
        version, size, mtime_ns, records = np.frombuffer(body[:32], "<i8").tolist()
        if (version, size, mtime_ns) != (_RECORDS_VERSION, stamp.size, stamp.mtime_ns) or body[32:_HEAD] != _name(kind):
            msg = "stale"
            raise ValueError(msg)
        if not 0 <= records <= len(body):
            msg = f"{records} records in {len(body)} bytes"
            raise ValueError(msg)
        at, length = np.frombuffer(body[_HEAD:], "<i8").reshape(2, records)
        if records and (at.min() < 0 or length.min() < 0 or (at > size - length).any()):
            msg = "no index of this file"
            raise ValueError(msg)
        return cls(stamp, at, length)


def _name(kind: str) -> bytes:
    return kind.encode().ljust(16, b"\0")


# Indexes made of files.


class DamageError(Exception):
    """What is wrong at which byte; in which record, or in which member, where that is known."""

    def __init__(self, byte: int, what: str, record: int = -1, member: bytes = b"") -> None:
        super().__init__(what)
        self.byte, self.what, self.record, self.member = byte, what, record, member


def scanned(path: str, store: Store, kind: str, scan: Callable[[ReadWindow, int], _T]) -> tuple[Stamp, _T]:
    """What a file is, and what `scan` makes of its bytes and how many they are. SourceChangedError if it is written."""
    with closing(store.open(path)) as file:
        try:
            before = file.stamp()
            result = scan(ReadWindow(file), before.size)
            after = file.stamp()
        except OSError as error:
            msg = f"{path}: a {kind} must be readable to be indexed; found {error.strerror}; check the disk"
            raise SourceError(msg) from error
    if changed := before.change(after):
        msg = f"{path}: a {kind} must not be written while it is indexed; {changed}; try again later"
        raise SourceChangedError(msg)
    return before, result


# Where indexes of files are kept: beside the file, else in the user's cache, or in a folder that was named.


SUFFIX = ".dfidx"  # of our own: Energon keeps a train-0000.tar.idx
_log = logging.getLogger("dali_feed")


def homes_of(path: str, index_dir: str | os.PathLike[str] | None, store: Store) -> list[Path]:
    """Where the index of a file may lie, the best place first."""
    name = hashlib.sha256(place_of(path).encode(errors="surrogateescape")).hexdigest()
    if index_dir is not None:
        folder = Path(path_of("index_dir", index_dir)).expanduser()
        return [folder / f"{os.path.basename(path)}-{name[:16]}{SUFFIX}"]
    own = user_cache() / "index" / f"{name}{SUFFIX}"
    return [Path(path + SUFFIX), own] if store is LOCAL else [own]


def most_bytes(stamp: Stamp) -> int:
    """Bytes of a file's index at most: of the shortest records, 8 bytes each, it takes 16 for each."""
    return 2 * stamp.size + 4096


def fitting(homes: Sequence[Path], stamp: Stamp, parse: Callable[[bytes], _T]) -> _T | None:
    """The first index that is there, not older than the file's last change, and that `parse` takes."""
    for home in homes:
        with contextlib.suppress(OSError, ValueError), home.open("rb") as file:  # absent, unreadable or stale
            about = os.fstat(file.fileno())
            if about.st_mtime_ns >= stamp.ctime_ns and about.st_size <= most_bytes(stamp):
                return parse(file.read())
    return None


def keep(
    path: str, homes: Sequence[Path], whole: bytes, index_dir: str | os.PathLike[str] | None, store: Store
) -> None:
    """Write the index of a file to the first of its homes that takes it.

    Who may read and write a mounted file may that of its index, else its owner alone. Where no home takes it, a warning
    says that it is built at every start; SourceDeniedError where `index_dir` was given.
    """
    errors: list[OSError] = []
    for home in homes:
        try:
            _write(home, whole, os.stat(path).st_mode & 0o666 if store is LOCAL else 0o600)
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


def _write(home: Path, whole: bytes, mode: int) -> None:
    """Write whole or not at all: others may read or write the same index at this moment.

    OSError where it cannot be, or where a file lies that does not begin as this index does.
    """
    with contextlib.suppress(FileNotFoundError), home.open("rb") as file:
        if file.read(8) != whole[:8]:
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


_LEAST, _MOST = 4096, 1 << 20  # bytes of a read
_MANY = 16  # questions that one read answered, from which the next is worth twice as much
_NEAR, _BLOCK = 64 << 10, 8 << 20  # bytes of a request; of one that begins so near behind the one before


class ReadWindow:
    """Reads ahead where records are small, and little more than was asked for where they are large."""

    def __init__(self, file: File) -> None:
        self._read: Callable[[int, int], bytes] = partial(read_at, file)
        if type(file) is LocalFile:  # one that is striped is several
            self._read = partial(os.pread, file.fds[0])
        self._file, self._size, self._answered = file, _LEAST, 0
        self._bytes, self._at = b"", 0

    def __call__(self, at: int, size: int) -> bytes:
        """Bytes from `at`; fewer than `size` at the end of the file."""
        first = at - self._at
        if not 0 <= first <= len(self._bytes) - size:
            if isinstance(self._file, LocalFile):
                self._size = min(2 * self._size, _MOST) if self._answered >= _MANY else _LEAST
            else:
                self._size = _BLOCK if self._bytes and 0 <= first <= len(self._bytes) + _NEAR else _NEAR
            self._bytes, self._at = self._read(max(size, self._size), at), at
            first, self._answered = 0, 0
        self._answered += 1
        return self._bytes[first : first + size]
