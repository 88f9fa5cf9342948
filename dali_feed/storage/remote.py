"""Files of object stores and web servers, by fsspec: ranges of them, many at once.

The law: what is handed on are the bytes of the object that was opened. Neighbours are asked for together, and the one
copy that is made is from an answer into the slab's view.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from dali_feed.errors import ClosedError, ConfigError, MissingPackageError, SourceNotFoundError
from dali_feed.packages import needed
from dali_feed.records.storage_stats import StorageMeter
from dali_feed.secrets import hidden, revealed_options
from dali_feed.storage.asking import Asking, asking
from dali_feed.storage.contract import Opened
from dali_feed.storage.faults import Patience, told
from dali_feed.storage.paths import INDEXES, braces
from dali_feed.storage.requests import Requests
from dali_feed.storage.signed import MASK, called, shown
from dali_feed.storage.stamp import Stamp

__all__ = ["RemoteFile", "RemoteStore"]

REQUEST_BYTES = 8 << 20
GAP_BYTES = 256 << 10  # read and thrown away rather than asked around: less than a request costs at 100 MB/s and 3 ms
CONCURRENCY = 16
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "http": "aiohttp", "https": "aiohttp"}
_PACKAGES |= {"az": "adlfs", "abfs": "adlfs", "abfss": "adlfs", "adl": "adlfs", "hdfs": "pyarrow"}
_NO_LISTS = ("http", "https")


@dataclass(frozen=True, slots=True)
class _Way:
    """One process's way to a store."""

    fs: Any
    asking: Asking
    requests: Requests


class RemoteFile:
    """One object, as it was when it was opened."""

    __slots__ = ("_stop", "_store", "_tag", "path", "was")

    def __init__(self, store: RemoteStore, path: str, stop: threading.Event | None) -> None:
        self._store, self.path, self._stop = store, path, stop
        # One that was asked before is not asked again where each request says which object it wants.
        known = store.known.get(path)
        self.was, self._tag = known if known and known[1] else store.about(path, stop)

    def stamp(self) -> Stamp:
        """What it was when it was opened, where each answer is checked to be of that object; else what it is now."""
        way = self._store.way()
        return self.was if way.asking.checks and self._tag else self._store.about(self.path, self._stop)[0]

    def read(self, view: memoryview, at: int) -> int:
        """See `storage.contract.Opened`."""
        return self._store.read([(self, view, at)], self._stop)[0]

    def asked(self, way: _Way, start: int, stop: int) -> Callable[[], Any]:
        """The request for a range of it."""
        known = way.fs._strip_protocol(self._store.asked_as(self.path))
        return partial(way.asking.range, known, start, stop, self.was.size, self._tag)

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True, eq=False, repr=False)
class RemoteStore:
    """The objects behind one kind of address.

    address      any of them: which file system it is
    options      of that file system, as fsspec takes them; secrets as `FromEnv` and `FromFile`. Never shown
    concurrency  requests at once, of all readers together
    patience     how often, how long
    signed       the addresses with a query, by what their objects are called
    meter        counts the ranges that one reader reads
    """

    address: str
    options: Mapping[str, Any] = field(default_factory=dict)
    concurrency: int = CONCURRENCY
    patience: Patience = field(default_factory=Patience)
    signed: dict[str, str] = field(default_factory=dict)
    most_open: int = 1 << 12  # nothing is held open
    random_access: bool = False
    meter: StorageMeter | None = None
    _ways: dict[int, _Way] = field(default_factory=dict)  # by process: a file system does not survive a fork
    known: dict[str, tuple[Stamp, str]] = field(default_factory=dict)  # what objects were when they were asked last
    _making: threading.Lock = field(default_factory=threading.Lock)

    def __repr__(self) -> str:
        return f"RemoteStore({self.protocol}://)"

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteStore, (self.address, dict(self.options), self.concurrency, self.patience, self.signed)

    @property
    def protocol(self) -> str:
        """`s3`, `https`, ..."""
        return self.address.partition("://")[0]

    @property
    def retries(self) -> int:
        """Tries after the first of a request, by this process so far."""
        way = self._ways.get(os.getpid())
        return way.requests.retries if way else 0

    def way(self) -> _Way:
        """This process's file system, made at its first use."""
        way = self._ways.get(os.getpid())
        if way is None:
            if not self._making.acquire(timeout=60):  # after a fork in the middle of it the lock stays taken
                msg = f"{self!r}: this process was forked while its store was made; make the ShardSet after the fork"
                raise ClosedError(msg)
            try:
                way = self._ways.get(os.getpid()) or self._made()
                self._ways[os.getpid()] = way
            finally:
                self._making.release()
        return way

    def metered(self) -> RemoteStore:
        """The same, by the same connections, for one reader that counts its own reads."""
        name = f"{self.protocol}://{self.address.partition('://')[2].partition('/')[0]}"
        return replace(self, meter=StorageMeter(name))

    def matches(self, pattern: str) -> list[str]:
        """See `storage.contract.Store`. A name without `*` or `[` is not looked for: its index is asked for soon."""
        found: list[str] = []
        for name in braces(pattern):
            web = self.protocol in _NO_LISTS
            if not any(sign in (name.partition("?")[0] if web else name) for sign in ("*[" if web else "*?[")):
                found.append(called(name) if web else name)
                if found[-1] != name:
                    self.signed[found[-1]] = name
                continue
            if web:
                what = f"found the pattern {shown(name)!r}"
                msg = f"ShardSet: a web server lists no files; {what}; write a range, {{0000..0099}}"
                raise ConfigError(msg)
            way = self.way()
            some = way.requests.one(name, partial(_listed, way.fs, name), None)
            some = [way.fs.unstrip_protocol(path) for path in some if not path.endswith(INDEXES)]
            if not some:
                msg = f"ShardSet: {pattern!r} must name files that are there; found no match {name!r}; check the path"
                raise SourceNotFoundError(msg)
            found += some
        return sorted(found)

    def asked_as(self, path: str) -> str:
        """The address of an object. SourceNotFoundError for what stands beside one with a query: it has none."""
        if MASK in path and path not in self.signed:
            msg = f"{path}: no such shard file; of what lies beside an address with a query no address is known"
            raise SourceNotFoundError(msg)
        return self.signed.get(path, path)

    def stamp(self, path: str) -> Stamp:
        """What the store says of it now."""
        return self.about(path, None)[0]

    def about(self, path: str, stop: threading.Event | None) -> tuple[Stamp, str]:
        """Its stamp, and its ETag or ""."""
        way = self.way()
        answer = way.requests.one(path, partial(way.asking.about, way.fs._strip_protocol(self.asked_as(path))), stop)
        self.known[path] = cast("tuple[Stamp, str]", answer)
        return self.known[path]

    def open(self, path: str, stop: threading.Event | None = None) -> RemoteFile:
        """The object; see `storage.contract.Store`."""
        return RemoteFile(self, path, stop)

    def fill(
        self,
        file_of: Callable[[int], Opened],
        files: Sequence[int],
        views: Sequence[memoryview],
        at: Sequence[int],
        stop: threading.Event,
    ) -> list[int]:
        """All at once, neighbours in one request; see `storage.contract.Store`."""
        try:
            asked = [
                (cast("RemoteFile", file_of(file)), view, byte)
                for file, view, byte in zip(files, views, at, strict=True)
            ]
            return self.read(asked, stop)
        except ClosedError:
            return [-1] * len(views)

    def read(self, asked: Sequence[tuple[RemoteFile, memoryview, int]], stop: threading.Event | None) -> list[int]:
        """Fill each view from a byte of a file; how many bytes there were."""
        way = self.way()
        counts = [max(0, min(len(view), file.was.size - at)) for file, view, at in asked]
        parts = _parts([(file, view[:count], at) for (file, view, at), count in zip(asked, counts, strict=True)])
        groups = _joined(parts)

        def copied(k: int, pieces: Sequence[bytes]) -> None:
            group = groups[k]
            _copy(pieces, group[0][2], [(view, at) for _, view, at in group])

        calls = [
            (group[0][0].path, group[0][0].asked(way, group[0][2], group[-1][2] + len(group[-1][1])))
            for group in groups
        ]
        way.requests.all(calls, stop, copied, self.meter)
        return counts

    def _made(self) -> _Way:
        with needed():
            import fsspec
        subject = "ShardSet: storage_options"
        try:
            options = revealed_options(subject, self.options)
            if _PACKAGES.get(self.protocol) == "s3fs":  # we try again ourselves, and botocore would in each try
                options["config_kwargs"] = {"retries": {"total_max_attempts": 1}, **options.get("config_kwargs", {})}
            fs, _ = fsspec.core.url_to_fs(self.address, skip_instance_cache=True, **options)
        except MissingPackageError:
            raise
        except ImportError as error:
            package = _PACKAGES.get(self.protocol)
            cure = f"pip install {package}" if package else "install what fsspec needs for it"
            msg = f"{self.protocol}://: this needs {package or 'a package of its own'}, which is not installed; {cure}"
            raise MissingPackageError(msg, name=package or error.name or "") from None
        except ConfigError:
            raise
        except (ValueError, TypeError) as error:
            names = ", ".join(sorted(self.options)) or "none"
            msg = f"{subject} must be options of fsspec's {self.protocol}:// (given: {names}); found: "
            raise ConfigError(msg + hidden(str(error))) from None
        except OSError as error:
            raise told(self.protocol, error, 1) from None
        loop = fs.loop if fs.async_impl else None
        return _Way(fs, asking(fs), Requests(loop, self.concurrency, self.patience))


def _listed(fs: Any, pattern: str) -> Any:
    fs.invalidate_cache()
    return fs._glob(pattern) if fs.async_impl else fs.glob(pattern)


_Part = tuple[RemoteFile, memoryview, int]


def _parts(asked: Sequence[_Part]) -> list[_Part]:
    """The same in pieces of at most a request's size, without the empty ones."""
    return [
        (file, view[done : done + REQUEST_BYTES], at + done)
        for file, view, at in asked
        for done in range(0, len(view), REQUEST_BYTES)
    ]


def _joined(parts: Sequence[_Part]) -> list[list[_Part]]:
    """Those that lie near each other in one file, together up to a request's size; each group in order."""
    groups: list[list[_Part]] = []
    end = 0
    for part in sorted(parts, key=lambda part: (part[0].path, part[2])):
        file, view, at = part
        last = groups[-1] if groups else []
        near = last and last[0][0] is file and 0 <= at - end <= GAP_BYTES
        if near and at + len(view) - last[0][2] <= REQUEST_BYTES:
            last.append(part)
        else:
            groups.append([part])
        end = at + len(view)
    return groups


def _copy(pieces: Sequence[bytes], begin: int, views: Sequence[tuple[memoryview, int]]) -> None:
    """Fill each (view, the byte that it begins at), in order, from pieces that follow each other from `begin` on."""
    k, low = 0, begin
    for view, at in views:
        done = 0
        while done < len(view):
            while low + len(pieces[k]) <= at + done:
                low += len(pieces[k])
                k += 1
            first = at + done - low
            some = memoryview(pieces[k])[first : first + len(view) - done]
            view[done : done + len(some)] = some
            done += len(some)
