"""Requests to a web server whose credentials stay with the host that they were given for.

The law: the user's headers, and what signs an address, go to that scheme, host and port, and to no other, wherever a
server sends us. obstore follows redirects by itself, takes all headers along but Authorization and Cookie, and says
where it came from (Referer), signature and all; so requests with anything else to keep go this way.

Threads: a daemon per try. One that is given up is told so, and its connection is shut down: it ends within a moment.
"""

from __future__ import annotations

import asyncio
import random
import re
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.message import Message
from email.utils import parsedate_to_datetime
from functools import cached_property, lru_cache
from http.client import HTTPConnection, HTTPException, HTTPMessage, HTTPResponse, HTTPSConnection
from time import monotonic
from typing import IO, TYPE_CHECKING, Any, cast
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import (
    AbstractHTTPHandler,
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPRedirectHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    UnknownHandler,
)

from dali_feed.secrets import PLAIN_HEADERS

if TYPE_CHECKING:
    from obstore import ObjectMeta

PIECE = 64 << 10  # bytes of a body, at most, between looks whether they are still wanted
CLOSES_S = 1.0  # that a request which is given up has to close its connection before another takes its place

_HELD_BACK = frozenset({"authorization", "cookie"})  # headers that obstore itself leaves out for another host
OPTIONS = frozenset({
    "allow_http", "allow_invalid_certificates", "default_headers", "http1_only", "proxy_url", "root_certificate",
    "timeout", "user_agent",
})  # fmt: skip

_JITTER = random.SystemRandom()
_TIME = re.compile(r"(\d+) *([a-z]*)")
_UNITS = {"ms": 0.001, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_Answer = tuple["ObjectMeta", memoryview]


class WebStore:
    """One host, or one address that is signed, as `RemoteStore` reads it.

    root     the address of the host; or a whole one, which is asked for to the letter
    client   obstore's client_options, those in OPTIONS
    tries    of a request in all; between them a random pause of up to `first` seconds, doubled each time, to `longest`
    within   seconds from a request's beginning in which another try may begin
    """

    def __init__(
        self, root: str, client: Mapping[str, Any], *, tries: int, first: float, longest: float, within: float
    ) -> None:
        self._root, self._tries, self._first, self._longest, self._within = root, tries, first, longest, within
        own = client.get("default_headers", {}).items()
        self._headers = {"User-Agent": client.get("user_agent", "dali_feed"), **{k: _text(v) for k, v in own}}
        self._limit = seconds(client["timeout"])
        certificate, insecure = client.get("root_certificate"), bool(client.get("allow_invalid_certificates"))
        self._opener, connections = _opener(client.get("proxy_url"), certificate, insecure)
        if root.startswith("https:") or certificate:
            _ = connections.tls  # here, where an error is one of the options

    async def get(self, key: str, start: int, end: int, tag: str = "") -> _Answer:
        """What the object is, and its bytes from `start` to `end`; `tag`: only where that is its ETag.

        Raises OSError, whose text says what `RemoteStore` looks for in obstore's errors.
        """
        headers = {"Range": f"bytes={start}-{end - 1}"} | ({"If-Match": tag} if tag else {})
        return await self._tried("GET", key, headers, (start, end))

    async def head(self, key: str) -> ObjectMeta:
        """What the object is. Raises as `get`."""
        return (await self._tried("HEAD", key, {}, None))[0]

    async def _tried(self, method: str, key: str, own: Mapping[str, str], span: tuple[int, int] | None) -> _Answer:
        url, begun = f"{self._root}/{quote(key)}" if key else self._root, monotonic()
        for tried in range(1, self._tries + 1):
            request = Request(url, headers=self._headers | dict(own), method=method)  # noqa: S310  http(s) alone
            try:
                return await asyncio.wait_for(self._answer(request, span), self._limit)
            except TimeoutError:
                problem = OSError(f"no whole answer in {self._limit:g} s")
            except (OSError, HTTPException) as error:
                problem = OSError(_said(error))
                if isinstance(error, _ForGoodError) or (isinstance(error, HTTPError) and not _may_pass(error.code)):
                    break
            if monotonic() - begun > self._within:
                break
            if tried < self._tries:
                await asyncio.sleep(_JITTER.uniform(0, min(self._longest, self._first * 2 ** (tried - 1))))
        raise problem

    async def _answer(self, request: Request, span: tuple[int, int] | None) -> _Answer:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[_Answer | Exception] = loop.create_future()

        def tell(result: _Answer | Exception) -> None:
            with suppress(RuntimeError):  # the loop is closed: the process ends
                loop.call_soon_threadsafe(ended.set_result, result)

        thread = _Try(self._opener, request, self._limit, span, tell)
        thread.start()
        try:
            await asyncio.wait([ended])
        except asyncio.CancelledError:
            thread.give_up()
            await asyncio.wait([ended], timeout=CLOSES_S)
            raise
        result = ended.result()
        if isinstance(result, Exception):
            raise result
        return result


class _Try(threading.Thread):
    """One try: what the address gives, or the one that it leads to. Given up, it ends whatever the server does.

    But not while a name is looked up or a connection is made, for which its limit holds. `tell` hears in this thread
    what came of it, when its connection is closed.
    """

    def __init__(
        self,
        opener: OpenerDirector,
        request: Request,
        limit: float,
        span: tuple[int, int] | None,
        tell: Callable[[_Answer | Exception], None],
    ) -> None:
        super().__init__(name="dali-feed-web", daemon=True)
        self._opener, self._request, self._limit, self._span, self._tell = opener, request, limit, span, tell
        self._lock = threading.Lock()  # guards both below
        self._over = False
        self._line: socket.socket | None = None  # the connection, by a descriptor of its own: who closes it shuts it

    def run(self) -> None:
        """Try it."""
        result: _Answer | Exception
        try:
            with self._opener.open(self._request, timeout=self._limit) as answer:
                result = self._read(answer)
        except HTTPError as error:
            error.close()  # the connection
            result = error
        except Exception as error:  # noqa: BLE001  whatever it is, who waits must hear of it
            result = error
        with self._lock:
            self._over = True
            if self._line is not None:
                self._line.close()
        self._tell(result)

    def give_up(self) -> None:
        """Nobody waits for it any more. Returns at once. For any thread."""
        with self._lock:
            self._over = True
            if self._line is not None:
                with suppress(OSError):  # the server has closed it
                    self._line.shutdown(socket.SHUT_RDWR)

    def connect(self, *where: Any) -> socket.socket:
        """As `socket.create_connection`, for the connections of this try: one, and one more for each redirect."""
        line = socket.create_connection(*where)
        with self._lock:
            if self._line is not None:
                self._line.close()
            self._line = line.dup()
            if self._over:
                self._line.shutdown(socket.SHUT_RDWR)
        return line

    def _read(self, answer: HTTPResponse) -> _Answer:
        meta = _meta(answer.headers)
        if self._span is None:
            return meta, memoryview(b"")
        start, end = self._span
        meta["size"] = size = _range_of(answer.status, answer.headers, start, end)
        room = memoryview(bytearray(min(end, size) - start))
        done = 0
        while done < len(room) and not self._over:
            count = answer.readinto1(room[done : done + PIECE])  # what has come: `readinto` waits for all
            if not count:
                raise OSError(f"short answer: {len(room)} bytes were asked for, and it held {done}")
            done += count
        return meta, room[:done]


class _Connections(AbstractHTTPHandler):
    """Connects for the try whose thread asks."""

    def __init__(self, certificate: str | bytes | None, insecure: bool) -> None:
        super().__init__()
        self._certificate, self._insecure = certificate, insecure

    http_request = https_request = AbstractHTTPHandler.do_request_

    @cached_property
    def tls(self) -> ssl.SSLContext:
        """Made at its first use, as it costs tens of milliseconds."""
        tls = ssl.create_default_context()
        if self._certificate:
            tls.load_verify_locations(cadata=_text(self._certificate))
        if self._insecure:
            tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        return tls

    def http_open(self, request: Request) -> HTTPResponse:
        """The answer to a request."""
        return self.do_open(cast("Any", _connection), request, kind=HTTPConnection)

    def https_open(self, request: Request) -> HTTPResponse:
        """The answer to a request, by TLS."""
        return self.do_open(cast("Any", _connection), request, kind=HTTPSConnection, context=self.tls)


def _connection(host: str, *, kind: type[HTTPConnection], **how: Any) -> HTTPConnection:
    made = kind(host, **how)
    made._create_connection = cast("_Try", threading.current_thread()).connect  # type: ignore[attr-defined]
    return made


class _ForGoodError(OSError):
    """What another try would not change."""


class _Redirects(HTTPRedirectHandler):
    """Goes where a server says, to another scheme, host or port without anything that says who asks."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        """The next request."""
        fp.close()  # or urllib would read all of its body
        came, to = urlsplit(req.full_url).scheme, urlsplit(newurl).scheme
        if to not in (came, "https"):
            raise _ForGoodError(f"a redirect from {came} to {to} is not followed")
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None:
            request.method = req.method
            if _origin(req.full_url) != _origin(newurl):
                kept = PLAIN_HEADERS | {"range", "if-match"}
                request.headers = {name: value for name, value in request.headers.items() if name.lower() in kept}
        return request


def private(headers: Mapping[str, Any]) -> list[str]:
    """Those of the user's headers that obstore would take along to another host, though they may say who asks."""
    return [name for name in headers if name.lower() not in PLAIN_HEADERS | _HELD_BACK]


def seconds(value: object) -> float:
    """A time as obstore takes it: a timedelta, or a text such as "20s" or "1m 30s". ValueError for another."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    parts = _TIME.findall(value) if isinstance(value, str) else []
    if not parts or any(unit not in _UNITS for _, unit in parts):
        raise ValueError(f"{value!r} is no time such as '20s'")
    return float(sum(int(count) * _UNITS[unit] for count, unit in parts))


@lru_cache(maxsize=16)  # one for all addresses with the same options: each has a name of its own where it is signed
def _opener(proxy: str | None, certificate: str | bytes | None, insecure: bool) -> tuple[OpenerDirector, _Connections]:
    opener, connections = OpenerDirector(), _Connections(certificate, insecure)
    proxies = ProxyHandler({"http": proxy, "https": proxy} if proxy else None)
    for handler in (connections, _Redirects(), proxies, HTTPDefaultErrorHandler(), HTTPErrorProcessor()):
        opener.add_handler(handler)
    opener.add_handler(UnknownHandler())
    return opener, connections


def _may_pass(status: int) -> bool:
    return status in (408, 429) or status >= 500


def _said(error: OSError | HTTPException) -> str:
    """An error in the words that `RemoteStore` knows."""
    if isinstance(error, HTTPError):
        return f"non-2xx status code: {error.code} {error.reason}"
    reason = getattr(error, "reason", error)
    return str(reason) if type(reason) in (OSError, _ForGoodError) else f"{type(reason).__name__}: {reason}"


def _range_of(status: int, headers: Message, start: int, end: int) -> int:
    """The size of the object, where the answer is of the range that was asked for."""
    match = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", headers["Content-Range"] or "")
    if status != 206 or match is None:
        msg = "non-partial response"
        raise OSError(msg)
    first, last, size = map(int, match.groups())
    if (first, last + 1) != (start, min(end, size)):
        raise OSError(f"Requested {start}..{end}, got {first}..{last + 1}")
    return size


def _meta(headers: Message) -> ObjectMeta:
    """As obstore has it."""
    changed = datetime.fromtimestamp(0, UTC)
    with suppress(TypeError, ValueError):
        changed = parsedate_to_datetime(headers["Last-Modified"])
    size = int(headers["Content-Length"] or 0)
    return {"path": "", "last_modified": changed, "size": size, "e_tag": headers["ETag"], "version": None}


def _origin(url: str) -> tuple[str, str, int]:
    to = urlsplit(url)
    return to.scheme, to.hostname or "", to.port or (443 if to.scheme == "https" else 80)


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
