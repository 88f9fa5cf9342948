"""Files of object stores and web servers, by obstore: ranges of them, many at once.

The law: what is handed on are the bytes of the object that was opened. Each request asks for that one (If-Match), and
an answer of another size, ETag or time of change is a SourceChangedError; one with other bytes than were asked for is
tried again, never used. Whoever waits hears of `stop` within a moment, whatever a server does; a request that was given
up writes nowhere, since the thread that asked copies what came. No error holds an option or what signs an address.

Threads: one daemon per process has the loop of all requests; `_lock` guards its making.
"""

from __future__ import annotations

import asyncio
import atexit
import hashlib
import logging
import os
import random
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

from dali_feed.errors import (
    ClosedError,
    ConfigError,
    DaliFeedError,
    SourceChangedError,
    SourceDeniedError,
    SourceError,
    SourceNotFoundError,
    SourceUnreachableError,
)
from dali_feed.packages import needed
from dali_feed.records.gauges import StorageMeter
from dali_feed.secrets import hidden, revealed_options
from dali_feed.storage.paths import INDEXES, MASK, braces, called, has_magic, pattern_of, shown
from dali_feed.storage.store import FileReads, Stamp
from dali_feed.storage.web import OPTIONS, WebStore, private, seconds

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import ObjectStore

REQUEST_BYTES = 8 << 20
GAP_BYTES = 256 << 10  # read and thrown away rather than asked around: less than a request costs at 100 MB/s and 3 ms
CONCURRENCY = 16  # requests at once of a process
TRIES = 5  # of one request in all
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0  # before the second try, and before any
LIMIT_S = 60  # that one try may take
WITHIN_S = 180  # from a request's beginning, in which another try may begin; as obstore has it
SILENT_S = 5.0  # without an answer, after which the log says what is waited for
MOMENT = 0.1  # seconds between looks at a stop event
LAST_S = 2.0  # that a process which ends waits for its requests to be given up

_WEB = ("http", "https")
_KINDS = (*_WEB, "s3", "s3a", "gs", "gcs", "az", "azure", "abfs", "abfss", "adl")
_ADDRESS = re.compile(r"(\w+)://([^/@]*@)?([^/?]*)")
_STATUS = re.compile(r"non-2xx status code: (\d+)[^:<]*")
_TIMES = re.compile(r" in [\d.]+[nµm]?s(, after \d+ retries, [^-]*?)?(?= - )")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_OTHER_BYTES = re.compile(r"non-partial response|Range request not supported|Requested \d+\.\.\d+, got|short answer")
_NO_RANGE = re.compile(r"status code: 416|CONTENT_RANGE")  # what an empty object answers
_SAYS_WHO = re.compile(r"token|auth|secret|password|credential|key|session|cookie")  # of a header's name
_RENAMED = {  # options of fsspec's file systems, and what obstore calls them
    "key": "access_key_id",
    "secret": "secret_access_key",
    "token": "session_token (S3), or credentials in the environment",
    "anon": "skip_signature=True",
    "endpoint_url": "endpoint",
    "client_kwargs": "endpoint and region",
    "config_kwargs": "client_options and retry_config",
    "headers": "client_options={'default_headers': {...}}",
    "profile": "nothing: with boto3 installed, AWS_PROFILE is honoured",
}
_JITTER = random.SystemRandom()  # of its own, so that no draw of data depends on it
_Call = Callable[[], Coroutine[Any, Any, Any]]
_Answer = tuple[int, Any, float, Exception | None]  # which request, what came, seconds from when it was made on

_log = logging.getLogger("dali_feed")
_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None  # that has it
_gate = asyncio.Semaphore(CONCURRENCY)
_over = ""  # why this process can make no requests, or not any more


def _in_child() -> None:
    """Of a process that had read obstore's threads are not in its fork, and a request would hang there."""
    global _lock, _over  # noqa: PLW0603
    _lock = threading.Lock()
    if _loop is not None:
        _over = (
            "this process was forked from one that had read from a remote store, whose connections do not survive "
            "that; start it by spawn (multiprocessing_context='spawn'), or fork before the first read"
        )


def _at_exit() -> None:
    """Give up all requests: an answer that came while the interpreter ends would abort the process."""
    global _over
    with _lock:
        loop, _over = _loop, _over or "this process ends"
    if loop is not None and _thread is not None and _over == "this process ends":
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(_given_up(), loop).result(LAST_S)
        loop.call_soon_threadsafe(loop.stop)
        _thread.join(LAST_S)


async def _given_up() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(3 * MOMENT if tasks else 0)  # obstore's threads hear of it a little later


os.register_at_fork(after_in_child=_in_child)
atexit.register(_at_exit)


def check_address(pattern: str) -> str:
    """The store that an address is of, `s3://` or `https://`.

    Raises ConfigError for one with a password, and for a kind that there is none for.
    """
    match = _ADDRESS.match(pattern)
    kind = match[1] if match else pattern.partition("://")[0]
    if kind not in _KINDS:
        cure = "mount it, and name its files" if kind in ("hdfs", "sftp", "ftp", "smb") else "name files by their paths"
        msg = f"ShardSet: an address must begin with {'://, '.join(_KINDS)}://; found {kind}://; {cure}"
        raise ConfigError(msg)
    if match and match[2]:
        msg = f"ShardSet: an address must hold no user or password; found {kind}://***@{match[3]}; "
        raise ConfigError(msg + "give them by storage_options=")
    return f"{kind}://"


class Bucket:
    """A bucket, or a host, by obstore, as `RemoteStore` reads it."""

    def __init__(self, store: ObjectStore) -> None:
        import obstore

        self._store, self._obstore = store, obstore

    async def get(self, key: str, start: int, end: int, tag: str = "") -> tuple[ObjectMeta, memoryview]:
        """What the object is, and its bytes from `start` to `end`; `tag`: only where that is its ETag.

        What obstore does not try again by itself is tried again here.
        """
        options = cast("GetOptions", {"range": (start, end)} | ({"if_match": tag} if tag else {}))
        for tried in range(1, TRIES + 1):
            try:
                answer = await self._obstore.get_async(self._store, key, options=options)
                data = memoryview(await answer.bytes_async())
                if len(data) != min(end, answer.meta["size"]) - start:  # one that shrank is the reader's matter
                    msg = f"short answer: {end - start} bytes were asked for, and it held {len(data)}"
                    raise OSError(msg)
            except Exception as error:
                # Without an ETag obstore cannot go on in the middle of a body that was cut off.
                cut = not tag and "body error" in str(error)
                if tried == TRIES or not (cut or _OTHER_BYTES.search(str(error))):
                    raise
                await asyncio.sleep(_JITTER.uniform(0, min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (tried - 1))))
            else:
                return answer.meta, data
        raise AssertionError

    async def head(self, key: str) -> ObjectMeta:
        """What the object is."""
        return await self._obstore.head_async(self._store, key)

    async def names(self, folder: str, *, deep: bool) -> AsyncIterator[str]:
        """Those of the objects in a folder; `deep`: below it too."""
        if deep:
            async for chunk in self._obstore.list(self._store, folder or None):
                for meta in chunk:
                    yield meta["path"]
        else:
            listed = await self._obstore.list_with_delimiter_async(self._store, folder or None)
            for meta in listed["objects"]:
                yield meta["path"]


class RemoteFile:
    """One object, as it was when it was opened."""

    __slots__ = ("_stop", "_store", "path", "tag", "was")
    kept = 0

    def __init__(
        self, store: RemoteStore, path: str, was: Stamp, tag: str, stop: threading.Event | None = None
    ) -> None:
        self._store, self.path, self.was, self.tag, self._stop = store, path, was, tag, stop

    def stamp(self) -> Stamp:
        """What it was when it was opened, where each answer is checked to be of that object; else what it is now."""
        return self.was if self.tag else self._store.stamp(self.path)

    def read(self, view: memoryview, at: int) -> int:
        """See `storage.store.File`."""
        return self._store.read([(self, view, at)], self._stop)[0]

    def close(self) -> None:
        """Nothing is held."""


_Part = tuple[RemoteFile, memoryview, int]  # to be filled from that byte of that file


@dataclass(frozen=True, eq=False, repr=False)
class RemoteStore:
    """The objects behind one kind of address.

    address  any of them: what it begins with says which kind
    options  as obstore takes them for that kind, `client_options` and `retry_config` among them; secrets as `Secret`.
             Never shown
    signed   the addresses with a query, by what their objects are called
    meter    counts the ranges that one reader reads
    """

    address: str
    options: Mapping[str, Any] = field(default_factory=dict)
    signed: dict[str, str] = field(default_factory=dict)
    most_open: int = 1 << 12  # nothing is held open
    random_access: bool = False
    meter: StorageMeter | None = None
    # What is shared by all stores that `metered` makes of one: stores of buckets and hosts, and what objects were when
    # their stamps were looked at.
    _stores: dict[str, Bucket | WebStore] = field(default_factory=dict)
    _known: dict[str, tuple[Stamp, str]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"RemoteStore({self.kind}://)"

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteStore, (self.address, dict(self.options), self.signed)

    @property
    def kind(self) -> str:
        """`s3`, `https`, ..."""
        return self.address.partition("://")[0]

    def metered(self) -> RemoteStore:
        """The same, by the same connections, for one reader that counts its own reads."""
        name = f"{self.kind}://{self.address.partition('://')[2].partition('/')[0]}"
        return replace(self, meter=StorageMeter(name))

    def matches(self, pattern: str, subject: str = "ShardSet") -> list[str]:
        """See `storage.store.Store`. A name without `*` or `[` is not looked for: its index is asked for soon."""
        names: list[str] = []
        for name in braces(pattern, subject):
            web = self.kind in _WEB
            if not has_magic(name.partition("?")[0] if web else name):
                names.append(called(name) if web else name)
                if names[-1] != name:
                    self.signed[names[-1]] = name
                continue
            if web:
                what = f"found the pattern {shown(name)!r}"
                msg = f"{subject}: a web server lists no files; {what}; write a range, {{0000..0099}}"
                raise ConfigError(msg)
            some = [path for path in self._one(name, partial(self._matching, name)) if not path.endswith(INDEXES)]
            if not some:
                msg = f"{subject}: {pattern!r} must name files that are there; found no match {name!r}; check the path"
                raise SourceNotFoundError(msg)
            names += some
        return sorted(names)

    def is_empty(self, folder: str) -> bool:
        """Whether nothing lies under an address, which is no web server's. Raises as `stamp`."""
        return bool(self._one(folder, partial(self._nothing, folder)))

    def stamp(self, path: str) -> Stamp:
        """What the store says of it now."""
        stamp, tag = self._one(path, partial(self._about, path))
        self._known[path] = stamp, tag
        return cast("Stamp", stamp)

    def open(self, path: str, stop: threading.Event | None = None) -> RemoteFile:
        """The object; see `storage.store.Store`. One whose stamp was looked at is not asked for again."""
        was, tag = self._known.get(path) or (None, "")
        if was is None or not tag:
            was, tag = self._one(path, partial(self._about, path), stop)
        return RemoteFile(self, path, was, tag, stop)

    def fill(self, reads: FileReads) -> list[int]:
        """All at once, neighbours in one request; see `storage.store.Store`. A request that fails is an error here."""
        file_of, files, views, at, stop = reads
        try:
            parts = [
                (cast("RemoteFile", file_of(k)), view, byte) for k, view, byte in zip(files, views, at, strict=True)
            ]
            return self.read(parts, stop)
        except ClosedError:
            if not stop.is_set():
                raise
            return [-1] * len(views)

    def read(self, parts: Sequence[_Part], stop: threading.Event | None) -> list[int]:
        """Fill each view from a byte of a file; how many bytes there were. Raises as `File.read`."""
        counts = [max(0, min(len(view), file.was.size - at)) for file, view, at in parts]
        groups = _joined([(file, view[:count], at) for (file, view, at), count in zip(parts, counts, strict=True)])

        def copy(k: int, data: memoryview) -> None:
            begin = groups[k][0][2]
            for _, view, at in groups[k]:
                view[:] = data[at - begin : at - begin + len(view)]

        calls = [
            (group[0][0].path, partial(self._range, group[0][0], group[0][2], group[-1][2] + len(group[-1][1])))
            for group in groups
        ]
        self._all(calls, stop, copy, self.meter or StorageMeter(""))
        return counts

    async def _range(self, file: RemoteFile, start: int, end: int) -> memoryview:
        """These bytes of an object."""
        store, key = self._where(file.path)
        tag = file.tag if file.tag.startswith('"') else ""  # a weak ETag (W/"...") matches nothing here
        meta, data = await store.get(key, start, end, tag)
        _check_same(file, meta)
        return data

    async def _about(self, path: str) -> tuple[Stamp, str]:
        """An object's stamp, and its ETag, its time of change or "": by its first byte, since some refuse a HEAD."""
        import obstore

        store, key = self._where(path)
        try:
            meta, _ = await store.get(key, 0, 1)
        except (obstore.exceptions.GenericError, OSError) as error:
            if not _NO_RANGE.search(str(error)):
                raise
            meta = await store.head(key)
        tag = _tag(meta)
        return _stamp(meta["size"], tag), tag

    async def _matching(self, pattern: str) -> list[str]:
        root, key = _split(pattern)
        folder = re.split(r"[*?\[]", key, maxsplit=1)[0].rpartition("/")[0]
        deep = "/" in key.removeprefix(folder + "/") or "**" in key
        fits, bucket = pattern_of(key).fullmatch, cast("Bucket", self._store(root))
        return [f"{root}/{name}" async for name in bucket.names(folder, deep=deep) if fits(name)]

    async def _nothing(self, folder: str) -> bool:
        root, key = _split(folder)
        async for _ in cast("Bucket", self._store(root)).names(key, deep=True):
            return False
        return True

    def _where(self, path: str) -> tuple[Bucket | WebStore, str]:
        """The store that has an object, and its name there.

        Raises SourceNotFoundError for what stands beside an address with a query: it has none.
        """
        if MASK in path and path not in self.signed:
            msg = f"{path}: no such shard file; of what lies beside an address with a query no address is known"
            raise SourceNotFoundError(msg)
        address = self.signed.get(path, path)
        root, key = _split(address)
        if "?" in address and self.kind in _WEB:
            return self._store(address), ""  # to the letter, since it is signed
        return self._store(root), unquote(key) if self.kind in _WEB else key

    def _store(self, root: str) -> Bucket | WebStore:
        """Made at its first use. By the thread of the loop alone."""
        if root not in self._stores:
            self._stores[root] = _store_of(root, self.options)
        return self._stores[root]

    def _one(self, path: str, call: _Call, stop: threading.Event | None = None) -> Any:
        """The answer to one request. Raises as `_all`."""
        answers: list[Any] = []
        self._all([(path, call)], stop, lambda _, answer: answers.append(answer), StorageMeter(""))
        return answers[0]

    def _all(
        self,
        calls: Sequence[tuple[str, _Call]],
        stop: threading.Event | None,
        done: Callable[[int, Any], object],
        meter: StorageMeter,
    ) -> None:
        """Make all requests; `done(k, answer)` is called by this thread as answers come, in any order.

        Raises ClosedError where `stop` was set, or this process was forked from one that had read, and a SourceError
        where a request failed for good; the others are given up.

        calls  the path that each is about, and what asks
        """
        loop, answers = _running(), SimpleQueue[_Answer]()
        left, problem = len(calls), None
        since, warned = time.monotonic(), False
        meter.queued += left
        requests = asyncio.run_coroutine_threadsafe(_requests([call for _, call in calls], answers), loop)
        try:
            while left and problem is None:
                if (stop is not None and stop.is_set()) or (requests.done() and answers.empty()):
                    msg = "the read of a remote store was stopped"
                    raise ClosedError(msg)
                if not warned and time.monotonic() - since > SILENT_S:
                    warned = True
                    more = f" and {left - 1} more" if left > 1 else ""
                    _log.warning(
                        "%s%s: no answer for %.0f s; a request has %d tries of %d s, unless client_options and "
                        "retry_config in storage_options= say otherwise",
                        *(calls[0][0], more, SILENT_S, TRIES, LIMIT_S),
                    )
                with suppress(Empty):
                    k, answer, seconds, error = answers.get(timeout=MOMENT)
                    left -= 1
                    since = time.monotonic()
                    meter.queued -= 1
                    meter.read(seconds, len(answer) if isinstance(answer, memoryview) else 0)
                    if error is None:
                        done(k, answer)
                    else:
                        meter.failures += 1
                        problem = _error_of(calls[k][0], error)
        finally:
            meter.queued -= left
            requests.cancel()
        if problem is not None:  # raised out here: obstore's error, which holds the full address, is no context of it
            raise problem


async def _requests(calls: Sequence[_Call], answers: SimpleQueue[_Answer]) -> None:
    """Make requests, CONCURRENCY at once of all that run in this process; what came of each goes to `answers`."""

    async def one(k: int, call: _Call) -> None:
        async with _gate:
            begun, answer, problem = time.monotonic(), None, None
            try:
                answer = await call()
            except Exception as error:  # noqa: BLE001  whatever it is, the thread that waits must hear of it
                problem = error
            answers.put((k, answer, time.monotonic() - begun, problem))

    async with asyncio.TaskGroup() as group:
        for k, call in enumerate(calls):
            group.create_task(one(k, call))


class _Loop(asyncio.SelectorEventLoop):
    """Looks names up in daemon threads, one for each: asyncio's are few, and a process that ends waits for them."""

    async def getaddrinfo(self, *where: Any, **how: Any) -> Any:
        """As `socket.getaddrinfo`."""
        answer: asyncio.Future[Any] = self.create_future()

        def look_up() -> None:
            try:
                tell = partial(answer.set_result, socket.getaddrinfo(*where, **how))
            except Exception as error:  # noqa: BLE001  whatever it is, who waits must hear of it
                tell = partial(answer.set_exception, error)
            with suppress(RuntimeError):  # the loop is closed: the process ends
                self.call_soon_threadsafe(lambda: answer.done() or tell())

        threading.Thread(target=look_up, name="dali-feed-names", daemon=True).start()
        return await answer


def _running() -> asyncio.AbstractEventLoop:
    """The loop of this process, which runs in a daemon thread: a server that hangs must not keep a process from ending.

    Raises ClosedError in a child that was forked from a process that had read, and in a process that ends.
    """
    global _loop, _thread  # noqa: PLW0603
    with _lock:
        if _over:
            msg = f"remote stores: {_over}"
            raise ClosedError(msg)
        if _loop is None:
            with needed():
                import obstore  # noqa: F401  here, so that its absence is an error of the caller's
            loop = _Loop()
            _thread = threading.Thread(target=loop.run_forever, name="dali-feed-remote", daemon=True)
            _thread.start()
            _loop = loop
        return _loop


def _store_of(root: str, raw: Mapping[str, Any]) -> Bucket | WebStore:
    """The store of a bucket or host, or of an address that is signed. ConfigError for options that it does not take."""
    from obstore.exceptions import BaseError
    from obstore.store import HTTPStore, from_url

    subject, kind = "ShardSet: storage_options", root.partition("://")[0]
    options = revealed_options(subject, raw)
    for name in options:
        if name in _RENAMED:
            msg = f"{subject}: {name!r} is an option of fsspec; obstore has {_RENAMED[name]}; see docs/sources.md"
            raise ConfigError(msg)
        if name in ("client_options", "retry_config") and not isinstance(options[name], Mapping):
            what = f"found a {type(options[name]).__name__}"
            raise ConfigError(f"{subject}[{name!r}] must be a mapping of options of obstore's; {what}")
    pauses = {"init_backoff": timedelta(seconds=FIRST_PAUSE_S), "max_backoff": timedelta(seconds=LONGEST_PAUSE_S)}
    retry = {"max_retries": TRIES - 1, "backoff": pauses} | options.pop("retry_config", {})
    endpoint = options.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL", "")
    plain = kind == "http" or str(endpoint).startswith("http://")
    client = {"timeout": timedelta(seconds=LIMIT_S), "allow_http": plain} | options.pop("client_options", {})
    headers = private(client.get("default_headers", {}))
    if kind in _WEB and (headers or "?" in root):
        return _private_web(root, client, retry, options, headers)
    if any(_SAYS_WHO.search(name.lower()) for name in headers):
        msg = (
            f"{subject}['client_options']['default_headers']: a header that says who asks must not follow a redirect of"
            f" {kind}:// to another host; found {', '.join(headers)}; leave it to Authorization, or to the store's own"
        )
        raise ConfigError(f"{msg} credentials")
    if kind.startswith("s3") and not options.keys() & {"access_key_id", "skip_signature", "credential_provider"}:
        options |= _profile()
    try:
        if kind in _WEB:  # some hosts are more to `from_url`, which signed addresses are not
            return Bucket(HTTPStore(root, client_options=client, retry_config=retry, **options))
        root = root.replace("gcs://", "gs://")
        return Bucket(from_url(root, client_options=client, retry_config=retry, **options))
    except (BaseError, ValueError, TypeError) as error:
        said = _said(error)
    names = ", ".join(sorted(raw)) or "none"
    msg = f"{subject} must be options of obstore's {kind}:// (given: {names}); found: {said}"
    raise ConfigError(msg)


def _private_web(
    root: str, client: Mapping[str, Any], retry: Mapping[str, Any], options: Mapping[str, Any], headers: Sequence[str]
) -> WebStore:
    """The web server whose credentials obstore would take along to another host. ConfigError for other options."""
    subject, why = "ShardSet: storage_options", "an address with a query" if "?" in root else f"header {headers[0]!r}"
    pauses = {"init_backoff": FIRST_PAUSE_S, "max_backoff": LONGEST_PAUSE_S, "retry_timeout": WITHIN_S}
    limits = {name: timedelta(seconds=each) for name, each in pauses.items()} | {**retry, **retry["backoff"]}
    others = [f"client_options[{name!r}]" for name in client.keys() - OPTIONS] + list(options)
    others += [f"retry_config[{name!r}]" for name in limits.keys() - pauses.keys() - {"max_retries", "backoff"}]
    if others:
        found = ", ".join(sorted(others))
        raise ConfigError(f"{subject}: {why} goes to its own host alone, for which there is no {found}; leave it out")
    proxy = str(client.get("proxy_url") or "").partition("://")
    if proxy[1] and proxy[0] != "http" and (proxy[0] != "https" or root.startswith("https:")):
        msg = f"{subject}['client_options']['proxy_url']: {why} goes by a proxy of http:// alone; found {proxy[0]}://"
        raise ConfigError(f"{msg}; name one of http://, or leave it out")
    try:
        first, longest, within = (seconds(limits[name]) for name in pauses)
        return WebStore(root, client, tries=limits["max_retries"] + 1, first=first, longest=longest, within=within)
    except (ValueError, TypeError, OSError) as error:
        said = _said(error)
    raise ConfigError(f"{subject}: client_options and retry_config must be as obstore takes them; found: {said}")


def _profile() -> dict[str, Any]:
    """What finds credentials as Amazon's own tools do, with ~/.aws, where boto3 is installed and has found some."""
    if "AWS_ACCESS_KEY_ID" in os.environ:
        return {}
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider

        return {"credential_provider": Boto3CredentialProvider()}
    except (ImportError, ValueError):
        return {}


def _error_of(path: str, error: Exception) -> DaliFeedError:
    """The error of ours for one of obstore's."""
    from obstore import exceptions

    if isinstance(error, DaliFeedError):
        return error
    match, text, said = _STATUS.search(str(error)), str(error), _said(error)
    status = int(match[1]) if match else 0
    denied = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
    if status in (401, 403) or isinstance(error, denied) or "169.254.169.254" in text or "redential" in text:
        cure = "check the credentials in storage_options= or in the environment, and the rights of their owner"
        return SourceDeniedError(f"{path}: a shard must be readable; the store refuses ({said}); {cure}")
    if status in (404, 410) or isinstance(error, FileNotFoundError):
        return SourceNotFoundError(f"{path}: no such shard file; check the path or the pattern")
    if status in (412, 416) or isinstance(error, exceptions.PreconditionError):
        return _changed(path, "another object is in its place")
    if isinstance(error, exceptions.InvalidPathError):
        cure = "rename that object, or name the shards without * and ["
        rule = "a folder can be listed where no name in it has an empty part, as a//b"
        return SourceError(f"{path}: {rule}; found {said}; {cure}")
    may_pass = status in (408, 425, 429) or status >= 500
    if may_pass or (isinstance(error, exceptions.BaseError | OSError) and not status and "ertificate" not in text):
        hint = "; it must serve ranges, as object stores and nginx do" if _OTHER_BYTES.search(text) else ""
        cure = f"check the network and the server, or try again later{hint}"
        cure += "; client_options and retry_config in storage_options= set other limits"
        return SourceUnreachableError(
            f"{path}: a shard must be readable; {TRIES} tries failed, the last with: {said}; {cure}"
        )
    return SourceError(f"{path}: a shard must be readable; found {said}; check the path and storage_options=")


def _said(error: Exception) -> str:
    """What an error says, in a line without secrets: of a server's answer the status and its code, not its words."""
    first, status, code = str(error).partition("\n")[0], _STATUS.search(str(error)), _CODE.search(str(error))
    if status:
        first = first[: status.end()].rstrip() + (f" {code[1]}" if code else "")
    first = _TIMES.sub("", first)
    return shown(hidden(f"{type(error).__name__}: {first}"))[:300]


def _changed(path: str, what: str) -> SourceChangedError:
    msg = f"{path}: a shard must not change after it was indexed; {what}; make the source anew to read it as it is"
    return SourceChangedError(msg)


def _check_same(file: RemoteFile, meta: ObjectMeta) -> None:
    """Raise SourceChangedError where an answer is of another object than the one that was opened."""
    if meta["size"] != file.was.size:
        raise _changed(file.path, f"it had {file.was.size} bytes and has {meta['size']} now")
    now = _tag(meta)
    if file.tag and now and now != file.tag:
        raise _changed(file.path, "it has another ETag or time of change")


def _tag(meta: ObjectMeta) -> str:
    """The ETag; where there is none the time of the last change, where that is known."""
    changed = meta["last_modified"]
    return meta["e_tag"] or (changed.isoformat() if changed.timestamp() else "")


def _stamp(size: int, tag: str) -> Stamp:
    """Bytes and ETag (or what else tells one version from the next), as a stamp: its time is a hash of the tag."""
    return Stamp(0, size, int.from_bytes(hashlib.sha256(tag.encode()).digest()[:8], "big") >> 1, 0)


def _split(address: str) -> tuple[str, str]:
    """Bucket or host with what stands before it, and what comes behind."""
    kind, _, rest = address.partition("://")
    root, _, key = rest.partition("/")
    return f"{kind}://{root}", key


def _joined(parts: Sequence[_Part]) -> list[list[_Part]]:
    """Pieces of at most a request's size, those near each other in one file together; each group in order."""
    pieces = [
        (file, view[done : done + REQUEST_BYTES], at + done)
        for file, view, at in parts
        for done in range(0, len(view), REQUEST_BYTES)
    ]
    groups: list[list[_Part]] = []
    end = 0
    for file, view, at in sorted(pieces, key=lambda part: (part[0].path, part[2])):
        group = groups[-1] if groups else []
        near = group and group[0][0] is file and 0 <= at - end <= GAP_BYTES
        if near and at + len(view) - group[0][2] <= REQUEST_BYTES:
            group.append((file, view, at))
        else:
            groups.append([(file, view, at)])
        end = at + len(view)
    return groups
