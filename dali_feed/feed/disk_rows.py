"""A kept row as bytes, and back: what `shelf.copied` copies, and nothing else.

The law: a row comes back equal, with the same types, in memory of its own. Bytes are read as values, never as code:
there is no pickle here.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import logging
import os
import pickle
import shutil
import struct
import sys
import threading
import uuid
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from dali_feed.columns.columns import Columnar
from dali_feed.errors import ConfigError
from dali_feed.locks import flocked, locked

__all__ = ["RowFiles", "key_of", "row_of", "told"]


_HEAD = struct.Struct("<cQ")  # what it is, and its bytes or its parts
_NUMBERS = "biufcSU"  # kinds of dtypes, as `copied` takes them


def told(payload: memoryview | None, values: Sequence[Any]) -> bytes:
    """A row as bytes. Raises TypeError for what has no form here."""
    return b"".join(_parts((payload, *values)))


def row_of(body: memoryview) -> tuple[memoryview | None, tuple[Any, ...]]:
    """The row; of writable memory views and arrays are. Raises ValueError where these are no bytes of `told`."""
    try:
        found, end = _value(body, 0)
    except (struct.error, KeyError, TypeError, IndexError, UnicodeError) as error:
        raise ValueError(str(error)) from error
    if end != len(body) or not isinstance(found, tuple) or not isinstance(found[0], memoryview | None):
        msg = "no row"
        raise ValueError(msg)
    return found[0], found[1:]


def _parts(value: Any) -> Iterator[bytes | memoryview]:
    kind = type(value)
    if kind is list or kind is tuple or kind is dict:
        parts = [each for pair in value.items() for each in pair] if kind is dict else value
        yield _HEAD.pack(b"d" if kind is dict else b"l" if kind is list else b"t", len(parts))
        for each in parts:
            yield from _parts(each)
    elif isinstance(value, np.generic) or kind is np.ndarray:
        if value.dtype.kind not in _NUMBERS:
            msg = f"cannot be kept: {value.dtype}"
            raise TypeError(msg)
        yield _HEAD.pack(b"a" if kind is np.ndarray else b"g", 3)
        for part in (value.dtype.str, tuple(value.shape), memoryview(value.tobytes())):
            yield from _parts(part)
    else:
        what, whole = _whole(value)
        yield _HEAD.pack(what, len(whole))
        yield whole


def _whole(value: Any) -> tuple[bytes, bytes | memoryview]:
    """What it is, and its bytes."""
    if value is None or value is True or value is False:
        return (b"N" if value is None else b"T" if value else b"F"), b""
    kind = type(value)
    if kind is memoryview or kind is bytes:
        return (b"m" if kind is memoryview else b"b"), value
    if kind is str:
        return b"s", value.encode("utf-8", "surrogatepass")
    if kind is int:
        return b"i", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    if kind is float or kind is complex:
        return (b"f" if kind is float else b"c"), np.complex128(value).tobytes()
    msg = f"cannot be kept: {kind.__name__}"
    raise TypeError(msg)


def _value(body: memoryview, at: int) -> tuple[Any, int]:
    """The value that begins there, and where it ends."""
    what, size = _HEAD.unpack_from(body, at)
    at += _HEAD.size
    if what in b"ltdag":
        parts = []
        for _ in range(size):
            part, at = _value(body, at)
            parts.append(part)
        return _made(what, parts), at
    whole = body[at : at + size]
    if len(whole) != size:
        msg = f"{size} bytes, found {len(whole)}"
        raise ValueError(msg)
    return _SIMPLE[what](whole), at + size


def _made(what: bytes, parts: list[Any]) -> Any:
    if what == b"l":
        return parts
    if what == b"t":
        return tuple(parts)
    if what == b"d":
        return dict(zip(parts[::2], parts[1::2], strict=True))
    name, shape, held = parts
    dtype = np.dtype(name)
    if dtype.kind not in _NUMBERS:
        msg = f"no dtype of ours: {name}"
        raise ValueError(msg)
    array = np.frombuffer(held, dtype).reshape(shape)
    return array if what == b"a" else array[()]


_SIMPLE: dict[bytes, Any] = {
    b"N": lambda _: None,
    b"T": lambda _: True,
    b"F": lambda _: False,
    b"m": lambda whole: whole,
    b"b": bytes,
    b"s": lambda whole: str(whole, "utf-8", "surrogatepass"),
    b"i": lambda whole: int.from_bytes(whole, "little", signed=True),
    b"f": lambda whole: float(np.frombuffer(whole, np.complex128)[0].real),
    b"c": lambda whole: complex(np.frombuffer(whole, np.complex128)[0]),
}

# Rows of records in files of a folder, shared by the processes of a machine and by runs one after the other.
#
#     FOLDER/rows.lock            held while bytes are given out
#     FOLDER/rows-KEY/lock        held by all who use these rows, so that nobody takes them away
#     FOLDER/rows-KEY/NAME.rows   what one process kept: the form of its rows, then a frame for each
#     FOLDER/rows-KEY/NAME.index  where each frame lies: record, byte, bytes; written after the frame
#
# The law: a row that is given is one that was kept under that key, whole: each frame has its record's id and a
# checksum. A process that is killed leaves rows that are whole, and nothing that is taken for one. Trouble with the
# folder costs speed, never data.


SLICE = 8 << 20  # bytes that a process is given at once: by so many it may be above the limit
PATIENCE_S = 30.0  # after which a process that holds the folder's lock is taken for one that stands still
_FRAME = struct.Struct("<4sIqQ")  # magic, CRC-32 of what follows, the record's id, the bytes of the row
_PLACE = struct.Struct("<3q")  # of an index: the record's id, the byte of its frame, the bytes of its row
_MAGIC, _FILE = b"DFRW", b"DFROWS01"
_FORM = struct.Struct("<8sII")  # magic, bytes of the form, their CRC-32

log = logging.getLogger("dali_feed")


class RowFiles:
    """The rows of one key, in `folder`, whose rows of all keys take `limit` bytes. For any number of threads.

    size     bytes of these rows
    damaged  rows that were not what was kept; they are read again from where they came
    """

    def __init__(self, folder: str | os.PathLike[str], limit: int, key: str) -> None:
        self._folder, self._limit = Path(folder), limit
        self._home = self._folder / f"rows-{key}"
        self._at: dict[int, tuple[int, int, int]] = {}  # record -> file, byte, bytes
        self._files: list[Path] = []
        self._seen: dict[str, int] = {}  # index file -> bytes of it that are known
        self._own: tuple[int, int] | None = None  # descriptors of our rows and their index
        self._number = self._end = self._grant = 0  # our file, where it ends, bytes that it may still grow by
        self._mutex = threading.Lock()
        self._trouble = False
        self.form: str | None = None
        self.size = self.damaged = 0
        self.full = False
        self._lock = self._opened()
        self.look()

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, sample: int) -> bool:
        return sample in self._at

    def look(self) -> None:
        """See what other processes have kept since."""
        with self._mutex, suppress(OSError):
            self.full = False
            for path in sorted(self._home.glob("*.index"), key=_written):  # what was kept again counts
                if (size := path.stat().st_size // _PLACE.size * _PLACE.size) > self._seen.get(path.name, 0):
                    self._take(path, size)

    def find(self, sample: int) -> memoryview | None:
        """A row's bytes, in memory of their own; None where it is not there, or not what was kept."""
        place = self._at.get(sample)
        if place is None:
            return None
        number, at, size = place
        held = bytearray(_FRAME.size + size)
        try:
            fd = os.open(self._files[number], os.O_RDONLY | os.O_CLOEXEC)
            try:
                got = more = os.preadv(fd, (held,), at)
                while more and got < len(held):
                    got += (more := os.preadv(fd, (memoryview(held)[got:],), at + got))
            finally:
                os.close(fd)
        except OSError as error:
            self._bad(sample, number, str(error))
            return None
        magic, crc, whose, length = _FRAME.unpack_from(held)
        if got < len(held) or (magic, whose, length) != (_MAGIC, sample, size) or crc != zlib.crc32(held[8:]):
            self._bad(sample, number, "its checksum is another")
            return None
        return memoryview(held)[_FRAME.size :]

    def has_room(self, size: int) -> bool:
        """Whether so many bytes more are likely to be kept."""
        return not self.full and size <= self._limit

    def keep(self, sample: int, form: str, body: bytes) -> None:
        """Keep a row of that form, where there is room for it and it is not there."""
        with self._mutex:
            if self.full or sample in self._at or (self.form is not None and self.form != form):
                return
            try:
                self._write(sample, form, body)
            except OSError as error:
                self.full = True
                if not self._trouble:
                    log.warning("Cache(disk=%s): records are read without it, because: %s", self._folder, error)
                self._trouble = True

    def close(self) -> None:
        """Let others have the place, where they need it. Safe to call twice."""
        with self._mutex:
            fds = [self._lock, *(self._own or ())]
            self._lock, self._own, self.full = -1, None, True
        for fd in fds:
            if fd >= 0:
                os.close(fd)

    def _opened(self) -> int:
        """The key's lock. ConfigError where the folder cannot be written."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with self._locked():
                self._home.mkdir(exist_ok=True)
                fd = os.open(self._home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
                fcntl.flock(fd, fcntl.LOCK_SH)
                os.utime(fd)
                return fd
        except OSError as error:
            msg = f"Cache(disk={os.fspath(self._folder)!r}): must be a folder that can be written; found: {error}"
            raise ConfigError(msg) from error

    def _take(self, path: Path, size: int) -> None:
        """What an index file says, from where it was known."""
        rows = path.with_suffix(".rows")
        if path.name not in self._seen and not self._fits(rows):
            self._seen[path.name] = 1 << 62  # of another form, or damaged: never looked at again
            return
        known = self._seen.get(path.name, 0)
        with path.open("rb") as file:
            file.seek(known)
            table = np.frombuffer(file.read(size - known), "<i8").reshape(-1, 3)
        self._seen[path.name] = size
        if rows not in self._files:
            self._files.append(rows)
        number, most = self._files.index(rows), rows.stat().st_size
        sane = (table[:, 1] >= 0) & (table[:, 2] >= 0) & (table[:, 2] <= most) & (table[:, 1] <= most - table[:, 2])
        for sample, at, length in table[sane].tolist():
            self.size += length - self._at.get(sample, (0, 0, 0))[2]
            self._at[sample] = number, at, length

    def _fits(self, rows: Path) -> bool:
        """Whether the rows of a file are of the form of the others."""
        with rows.open("rb") as file:
            head = file.read(_FORM.size)
            if len(head) < _FORM.size:
                return False
            magic, length, crc = _FORM.unpack(head)
            form = file.read(min(length, 1 << 20))
        if magic != _FILE or zlib.crc32(form) != crc:
            return False
        self.form = self.form or form.decode()
        return self.form == form.decode()

    def _write(self, sample: int, form: str, body: bytes) -> None:
        size = _FRAME.size + len(body) + _PLACE.size + (0 if self._own else _FORM.size + len(form.encode()))
        if size > self._grant and not self._granted(size):
            self.full = True
            return
        if self._own is None:
            self.form = form
            name = uuid.uuid4().hex
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            rows, index = self._home / f"{name}.rows", self._home / f"{name}.index"
            self._own = os.open(rows, flags, 0o666), os.open(index, flags, 0o666)
            self._number = len(self._files)
            self._files.append(rows)
            self._seen[index.name] = 1 << 62
            told = form.encode()
            head = _FORM.pack(_FILE, len(told), zlib.crc32(told)) + told
            self._end = _put(self._own[0], head, 0)
        told = struct.pack("<qQ", sample, len(body)) + body
        at = self._end
        self._end = _put(self._own[0], _MAGIC + struct.pack("<I", zlib.crc32(told)) + told, at)
        os.write(self._own[1], _PLACE.pack(sample, at, len(body)))
        self._grant -= size
        self._at[sample] = self._number, at, len(body)
        self.size += len(body)

    def _granted(self, size: int) -> bool:
        """Ask for room; rows of other keys that nobody uses make it, those that were used longest ago first."""
        wanted = max(SLICE, size)
        with self._locked():
            homes = {path: _taken(path) for path in self._folder.glob("rows-*")}
            idle = sorted((path for path in homes if path != self._home), key=_used)
            while sum(homes.values()) + wanted > self._limit and idle:
                if _removed(oldest := idle.pop(0)):
                    del homes[oldest]
            self._grant = min(wanted, self._limit - sum(homes.values()))
        return size <= self._grant

    def _locked(self) -> AbstractContextManager[int]:
        return locked(self._folder / "rows.lock", PATIENCE_S)

    def _bad(self, sample: int, number: int, why: str) -> None:
        with self._mutex:
            self.size -= self._at.pop(sample, (0, 0, 0))[2]  # it is kept again when it has been read
            self.damaged += 1
            first = self.damaged == 1
        if first:
            log.warning(
                "Cache(disk=%s): a record in %s is damaged, and is read again from where it came: %s; more of them "
                "are counted in loader.stats().cache",
                self._folder,
                self._files[number].relative_to(self._folder),
                why,
            )


def _put(fd: int, data: bytes, at: int) -> int:
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], at + done)
    return at + done


def _taken(home: Path) -> int:
    size = 0
    with suppress(OSError):
        for each in os.scandir(home):
            with suppress(OSError):
                size += each.stat().st_size
    return size


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _used(home: Path) -> float:
    try:
        return (home / "lock").stat().st_mtime
    except OSError:
        return 0.0


def _removed(home: Path) -> bool:
    """Remove the rows of a key, unless somebody uses them."""
    try:
        fd = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError:
        return False
    try:
        if not flocked(fd):
            return False
        shutil.rmtree(home, ignore_errors=True)
        return not home.exists()
    finally:
        os.close(fd)


# Which rows may stand for which reads, from run to run: a name made of all that decides what a read gives.
#
# The law: two reads that could give other rows have other names. So it is made of the snapshot's fingerprint, of all
# that another process would be sent to read the same source, of what is done to payloads, and of our version; and code
# of the user's own, which may change under its name, has none.


_VERSION = 1
_KNOWN = {"dali_feed", "numpy", "pyarrow", "copyreg", *sys.stdlib_module_names} - {"__main__"}


class _OwnCodeError(Exception):
    """Of a function or a class that is not ours."""


class _Digest(io.RawIOBase):
    """A file that is never there."""

    def __init__(self) -> None:
        super().__init__()
        self.hash = hashlib.blake2b(digest_size=16)

    def write(self, data: Any) -> int:
        self.hash.update(data)
        return len(data)


class _Teller(pickle.Pickler):
    """Writes what an object is. Nothing is ever read of it."""

    def reducer_override(self, obj: Any) -> Any:
        """Stop at code that may be another in the next run."""
        if isinstance(obj, type) or hasattr(obj, "__code__"):
            module = str(getattr(obj, "__module__", ""))
            if module.partition(".")[0] not in _KNOWN:
                msg = f"{module}.{getattr(obj, '__qualname__', obj)}"
                raise _OwnCodeError(msg)
        return NotImplemented


def key_of(source: Any, fingerprint: str, made: tuple[object, ...]) -> str:
    """The name of the rows that readers of a source give, in 32 hexadecimal digits; `made`: what is done to payloads.

    ConfigError where it cannot be told.
    """
    beneath = source.asked if isinstance(source, Columnar) else (source,)
    digest = _Digest()
    try:
        _Teller(digest, 5).dump((_VERSION, version("dali-feed"), fingerprint, made, beneath))
    except _OwnCodeError as error:
        msg = (
            f"Cache(disk=...): {beneath[0]!r} reads with your own code, {error}, and a folder cannot know when "
            "that has changed. Keep records in memory, or give a codec or a format of dali_feed"
        )
        raise ConfigError(msg) from None
    except Exception as error:  # whatever an object raises
        msg = (
            f"Cache(disk=...): the source must be one that can be sent to another process; found {beneath[0]!r}: "
            f"{error}. Keep records in memory"
        )
        raise ConfigError(msg) from error
    return digest.hash.hexdigest()
