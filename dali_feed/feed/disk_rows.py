"""Rows of records on a disk, shared by the processes of a machine and by runs one after the other.

    FOLDER/rows.lock              held while rows are opened, or room is made
    FOLDER/rows-KEY/lock          held by all who use these rows, so that nobody takes them away
    FOLDER/rows-KEY/NAME.sqlite   the rows, and with -wal behind its name what SQLite has not put into it yet

The law: a row that is given is one that was kept under that key, whole: a checksum of its record's id and its bytes
says so. A process that is killed leaves rows that are whole. A file that SQLite finds damaged is deleted, and another
one, of another name, takes its place. Trouble with the folder costs speed, never data; no read waits for a writer.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import logging
import os
import pickle
import shutil
import sqlite3
import struct
import sys
import uuid
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from dali_feed import sync
from dali_feed.errors import ConfigError
from dali_feed.records.source import Source
from dali_feed.storage.durable import flocked, locked
from dali_feed.storage.paths import called

BATCH = 8 << 20  # bytes of rows that wait for the disk, and about those of a transaction
BUSY_S = 2.0  # that SQLite waits for another process
STALL_S = 5.0  # that a reader waits for a disk that takes no rows: then no more are kept in this pass
LINGER_S = 0.5  # that the writing thread waits for more rows before it ends
PATIENCE_S = 30.0  # after which a process that holds the folder's lock is taken for one that stands still
PAGE = 32 << 10  # larger ones cost small rows more, smaller ones large rows

Row = tuple[Any, ...]  # the values of a record's members; none at all where the position holds no record

_ID, _HEAD = struct.Struct("<q"), struct.Struct("<I")  # a record's id; bytes of a row's plain values
_ABOUT = -1  # in place of an id: what a file says of itself. No record's id is negative
_TABLE = "CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, crc INTEGER, body BLOB)"
_FIND = "SELECT crc, body FROM rows WHERE id = ?"
_SETTINGS = ("synchronous = OFF", "wal_autocheckpoint = 1", "trusted_schema = OFF", "cell_size_check = ON")
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}  # ERROR: not the table it was

log = logging.getLogger("dali_feed")


class DiskRows:
    """The rows of one key in `folder`, whose rows of all keys take `limit` bytes. For any number of threads.

    form     what the fields of the rows are, as who keeps them says it; None: there are no rows
    records  that are kept, by whichever process, as of the last look or write
    size     bytes of them
    damaged  rows, and files, that were not what was written; they are read again from where they came
    full     no more is kept before the next `look`

    Raises:
        ConfigError: the folder cannot be written.
    """

    def __init__(self, folder: str | os.PathLike[str], limit: int, key: str) -> None:
        self._folder, self._limit = Path(folder), limit
        self._home = self._path = self._folder / f"rows-{key}"
        self._changed = sync.Condition()  # guards what follows; never held over a read or a write of the disk
        self._waiting: dict[int, bytes] = {}  # rows for the next transaction
        self._writing: dict[int, bytes] = {}  # rows of the one that is under way
        self._bytes, self._new_form = 0, ""  # of those that wait
        self._idle: list[sqlite3.Connection] = []
        self._writer: sync.Thread | None = None
        self._lock, self._off, self._closed, self._warned = -1, False, False, False
        self.form: str | None = None
        self.records = self.size = self.damaged = 0
        self.full = False
        try:
            self._open()
        except OSError as error:
            msg = f"Cache(disk={os.fspath(folder)!r}): must be a folder that can be written; found: {error}"
            raise ConfigError(msg) from error

    def look(self) -> None:
        """See what other processes have kept since, and try again what failed."""
        gone = not self._path.exists()
        with self._changed:
            again, self._off, self.full = gone or self._off, False, False
        try:
            if again:
                self._open()
            else:
                with self._connection() as file:
                    self._look_at(file)
        except (OSError, sqlite3.Error) as error:
            self._failed(error, off=True)

    def find(self, ids: Sequence[int], form: str) -> list[Row | None]:
        """Rows of that form, in memory of their own; None where one is not there, or not what was kept."""
        with self._changed:
            new = [self._writing.get(sample) or self._waiting.get(sample) for sample in ids]
            there = self.form == form and not self._off and not self._closed
        rows = [None if body is None else decoded_row(bytearray(body)) for body in new]
        if there and None in rows:
            try:
                with self._connection() as file:
                    file.execute("BEGIN")
                    for k, sample in enumerate(ids):
                        if rows[k] is None and (body := self._body(file, sample)) is not None:
                            rows[k] = decoded_row(bytearray(body))
                    file.execute("COMMIT")
            except sqlite3.Error as error:
                self._failed(error, off=True)
        return rows

    def keep(self, sample: int, form: str, row: Row) -> None:
        """Keep a row of that form where there is room for it. Waits while `BATCH` bytes wait for the disk."""
        if not self.has_room(0) or self.form not in (None, form):
            return
        try:
            body = encoded_row(row)
        except TypeError:  # a number of a kind that has no form on disks
            return
        with self._changed:
            if not self._changed.wait_for(lambda: self._bytes < BATCH or not self.has_room(0), STALL_S):
                self.full = True
            if not self.has_room(0):
                return
            self._waiting[sample], self._new_form = body, form
            self._bytes += len(body)
            if self._writer is None:
                self._writer = sync.Thread(target=self._write, name="dali_feed-rows", daemon=True)
                self._writer.start()
            self._changed.notify_all()

    def has_room(self, size: int) -> bool:
        """Whether so many bytes more are likely to be kept."""
        return not (self.full or self._off or self._closed) and size <= self._limit

    def close(self) -> None:
        """Write what waits, and let others have the place where they need it. Safe to call twice."""
        with self._changed:
            self._closed, writer = True, self._writer
            self._changed.notify_all()
        if writer is not None:
            writer.join(2 * STALL_S)
        self._disconnect()
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def _open(self) -> None:
        """Take the rows that are there, or begin a file. OSError where the folder cannot be written."""
        self._disconnect()
        self._folder.mkdir(parents=True, exist_ok=True)
        with locked(self._folder / "rows.lock", PATIENCE_S):
            self._home.mkdir(exist_ok=True)
            os.utime(self._home)
            fd = os.open(self._home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            fcntl.flock(fd, fcntl.LOCK_SH)  # at once: who wants it alone holds the folder's lock, too
            self._lock, before = fd, self._lock
            if before >= 0:
                os.close(before)
            damaged = True
            for path in [*sorted(self._home.glob("*.sqlite")), self._home / f"{uuid.uuid4().hex}.sqlite"]:
                if damaged:
                    self._path, self.form, self.records, self.size = path, None, 0, 0
                    damaged = not self._begun()

    def _begun(self) -> bool:
        """Make a file ready for use; False where it was damaged, and has been deleted."""
        try:
            with closing(self._connect("rwc")) as file:
                for statement in (f"PRAGMA page_size = {PAGE}", "PRAGMA journal_mode = WAL", _TABLE):
                    file.execute(statement)
                self._look_at(file)
        except sqlite3.Error as error:
            return not self._failed(error, off=True)
        self._off = False
        return True

    def _connect(self, mode: str = "rw") -> sqlite3.Connection:
        uri = f"{self._path.absolute().as_uri()}?mode={mode}"
        file = sqlite3.connect(uri, BUSY_S, isolation_level=None, check_same_thread=False, uri=True)
        file.text_factory = bytes  # of a damaged row that says it is text
        for setting in _SETTINGS:
            file.execute(f"PRAGMA {setting}")
        return file

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """A connection for this thread alone; one in which something failed is closed."""
        with self._changed:
            idle = self._idle
            file = idle.pop() if idle else None
        file = file or self._connect()
        try:
            yield file
        except BaseException:
            file.close()
            raise
        with self._changed:
            if idle is self._idle:
                idle.append(file)
                return
        file.close()

    def _disconnect(self) -> None:
        with self._changed:
            idle, self._idle = self._idle, []
        for file in idle:
            file.close()

    def _body(self, file: sqlite3.Connection, sample: int) -> bytes | None:
        """The bytes of a row that is there, and whole."""
        if (row := file.execute(_FIND, (sample,)).fetchone()) is None:
            return None
        if isinstance(row[1], bytes) and row[0] == _crc(sample, row[1]):
            return row[1]
        self._harmed("a record in " + str(self._path.relative_to(self._folder)), "its checksum is another")
        return None

    def _look_at(self, file: sqlite3.Connection) -> None:
        if (body := self._body(file, _ABOUT)) is not None:
            self.form, self.records, self.size = json.loads(body)
        elif file.execute("SELECT 1 FROM rows LIMIT 1").fetchone() is not None:  # so what their fields are is lost
            error = sqlite3.DatabaseError("it does not say what its rows are")
            error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise error

    def _write(self) -> None:
        """In a thread of its own while there are rows: those that wait, in one transaction."""
        while True:
            with self._changed:
                self._writing = {}
                self._changed.wait_for(lambda: self._waiting or self._closed, LINGER_S)
                if not self._waiting:
                    self._writer = None
                    return
                self._writing, self._waiting, self._bytes = self._waiting, {}, 0
                self._changed.notify_all()
            try:
                self._save(self._writing, self._new_form)
            except (OSError, sqlite3.Error) as error:
                self._failed(error)

    def _save(self, rows: dict[int, bytes], form: str) -> None:
        room = self._room(sum(map(len, rows.values())))
        with self._connection() as file:
            file.execute("BEGIN IMMEDIATE")
            self._look_at(file)
            records, size = self.records, self.size
            for sample, body in rows.items():
                room -= len(body)
                if room < 0 or self.form not in (
                    None,
                    form,
                ):  # no room; or another process came first, with another form
                    self.full = True
                    break
                there = file.execute("SELECT 1 FROM rows WHERE id = ?", (sample,)).fetchone()
                records, size = records + (not there), size + (0 if there else len(body))
                _put(file, sample, body)
            if records > self.records:
                _put(file, _ABOUT, json.dumps([form, records, size]).encode())
            file.execute("COMMIT")
            if records > self.records:
                self.form, self.records, self.size = form, records, size

    def _room(self, wanted: int) -> int:
        """Bytes that may be added; rows of other keys that nobody uses make room, those used longest ago first."""
        left = self._limit - sum(map(_taken, self._folder.glob("rows-*")))
        if left < wanted:
            with locked(self._folder / "rows.lock", BUSY_S):
                homes = sorted(self._folder.glob("rows-*"), key=lambda home: home.stat().st_mtime)
                left = self._limit - sum(map(_taken, homes))
                for home in homes:
                    if left < wanted and home != self._home:
                        left += _removed(home)
        return left

    def _failed(self, error: Exception, *, off: bool = False) -> bool:
        """Keep no more, with `off` read no more, before the next `look`. True: the file was damaged, and is deleted."""
        damaged = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 255 in _DAMAGED
        with self._changed:
            self.full, self._off = True, self._off or off or damaged
            self._changed.notify_all()
        if damaged:
            self._disconnect()
            self._harmed(str(self._path.relative_to(self._folder)), f"{error}; it is deleted")
            for end in ("", "-wal", "-shm"):  # whoever has them open keeps what was theirs
                with suppress(OSError):
                    self._path.with_name(self._path.name + end).unlink()
        elif not self._warned:
            self._warned = True
            log.warning("Cache(disk=%s): records are read without it, because: %s", self._folder, error)
        return damaged

    def _harmed(self, what: str, why: str) -> None:
        with self._changed:
            self.damaged += 1
            first = self.damaged == 1
        if first:
            log.warning(
                "Cache(disk=%s): %s is damaged, and is read again from where it came: %s; more of them are counted in "
                "loader.stats().cache",
                *(self._folder, what, why),
            )


def _crc(sample: int, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(_ID.pack(sample)))


def _put(file: sqlite3.Connection, sample: int, body: bytes) -> None:
    file.execute("INSERT OR REPLACE INTO rows VALUES (?, ?, ?)", (sample, _crc(sample, body), body))


def _taken(home: Path) -> int:
    size = 0
    with suppress(OSError):
        for each in os.scandir(home):
            with suppress(OSError):
                size += each.stat().st_size
    return size


def _removed(home: Path) -> int:
    """Remove the rows of a key, unless somebody uses them; how many bytes they took."""
    size = _taken(home)
    with suppress(OSError), (home / "lock").open("ab") as lock:
        if flocked(lock.fileno()):
            shutil.rmtree(home)
            return size
    return 0


# A row as bytes: JSON of its plain values, then the bytes of the others, one after another. What `cache.copied` copies
# has a form here, and nothing else; it comes back equal, with the same types. Bytes are read as values, never as code.


_NUMBERS = "biufcSU"  # kinds of dtypes, as `copied` takes them


def encoded_row(row: Row) -> bytes:
    """A row as bytes. Raises TypeError for what has no form here."""
    blobs: list[bytes | memoryview] = []
    plain = json.dumps([_plain(value, blobs) for value in row], ensure_ascii=False, separators=(",", ":"))
    head = plain.encode("utf-8", "surrogatepass")
    return b"".join((_HEAD.pack(len(head)), head, *blobs))


def _plain(value: Any, blobs: list[bytes | memoryview]) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is list:
        return [_plain(each, blobs) for each in value]
    if kind is tuple:
        return {"t": [_plain(each, blobs) for each in value]}
    if kind is dict:
        return {"d": [[_plain(key, blobs), _plain(each, blobs)] for key, each in value.items()]}
    if kind is complex:
        return {"c": [value.real, value.imag]}
    if kind is memoryview or kind is bytes:
        blobs.append(value)
        return {"m" if kind is memoryview else "b": len(value)}
    if isinstance(value, np.generic | np.ndarray) and value.dtype.kind in _NUMBERS:
        blobs.append(value.tobytes())
        return {"a" if kind is np.ndarray else "g": [value.dtype.str, value.shape, value.nbytes]}
    msg = f"cannot be kept: {kind.__name__}"
    raise TypeError(msg)


def decoded_row(body: bytearray) -> Row | None:
    """The row; memory views and arrays are views of `body`. None where these are no bytes of `encoded_row`."""
    view, at = memoryview(body), _HEAD.size

    def blob(size: int) -> memoryview:
        nonlocal at
        at += size
        return view[at - size : at]

    def value(plain: Any) -> Any:
        if isinstance(plain, list):
            return list(map(value, plain))
        if not isinstance(plain, dict):
            return plain
        ((what, its),) = plain.items()
        if what == "t":
            return tuple(map(value, its))
        if what == "d":
            return {value(key): value(each) for key, each in its}
        if what == "c":
            return complex(*its)
        if what in "mb":
            return blob(its) if what == "m" else bytes(blob(its))
        name, shape, size = its
        if np.dtype(name).kind not in _NUMBERS:
            return None
        array = np.frombuffer(blob(size), name).reshape(shape)
        return array if what == "a" else array[()]

    try:
        row = value(json.loads(str(blob(_HEAD.unpack_from(body)[0]), "utf-8", "surrogatepass")))
    except (struct.error, ValueError, TypeError):
        return None
    return tuple(row) if at == len(view) and isinstance(row, list) else None


# Which rows may stand for which reads, from run to run: a name made of all that decides what a read gives.
#
# The law: two reads that could give other rows have other names. So it is made of the snapshot's fingerprint, of all
# that another process would be sent to read the same source, of what its files are now where the fingerprint does not
# say so, of what is done to payloads, and of our version; and code of the user's own, which may change under its name,
# has none. Equal sources have equal names: neither which equal objects are one nor the order of a set changes it.


_VERSION = 3
_KNOWN = {"dali_feed", "numpy", "pyarrow", "copyreg", *sys.stdlib_module_names} - {"__main__"}


class _OwnCodeError(Exception):
    """Of a function or a class that is not ours."""


class _Naming(pickle.Pickler):
    """Writes what an object is. Nothing is ever read of it."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, 5)
        self.fast = True  # each object as if it were the first

    def persistent_id(self, obj: Any) -> Any:
        """What stands for an object whose bytes would not say what it is, or would say more."""
        if type(obj) is str and "://" in obj:
            return "address", called(obj).encode(errors="surrogateescape")  # signatures are none of it
        return ("set", sorted(map(repr, obj))) if isinstance(obj, set | frozenset) else None

    def reducer_override(self, obj: Any) -> Any:
        """Stop at code that may be another in the next run."""
        if isinstance(obj, type) or hasattr(obj, "__code__"):
            module = str(getattr(obj, "__module__", ""))
            if module.partition(".")[0] not in _KNOWN:
                msg = f"{module}.{getattr(obj, '__qualname__', obj)}"
                raise _OwnCodeError(msg)
        elif isinstance(obj, Source) and obj.file_stamps() is not None:
            reduced: tuple[Any, ...] = obj.__reduce_ex__(5)  # type: ignore[assignment]
            return list, (obj.file_stamps(), *reduced[1]), *reduced[2:]
        return NotImplemented


def key_of(source: Source, members: tuple[object, ...], fingerprint: str, changes: tuple[object, ...]) -> str:
    """The name of the rows that readers of a source give, in 32 hexadecimal digits.

    members  what it is asked for
    changes  what is done to images

    ConfigError where it cannot be told.
    """
    file = io.BytesIO()
    try:
        _Naming(file).dump((_VERSION, version("dali-feed"), fingerprint, changes, source, members))
    except _OwnCodeError as error:
        msg = (
            f"Cache(disk=...): {source!r} reads with your own code, {error}, and a folder cannot know when "
            "that has changed. Keep records in memory, or give a codec or a format of dali_feed"
        )
        raise ConfigError(msg) from None
    except Exception as error:  # whatever an object raises
        msg = (
            f"Cache(disk=...): the source must be one that can be sent to another process; found {source!r}: "
            f"{error}. Keep records in memory"
        )
        raise ConfigError(msg) from error
    return hashlib.sha256(file.getbuffer()).hexdigest()[:32]
