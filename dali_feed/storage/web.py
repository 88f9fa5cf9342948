"""Requests to a web server whose credentials stay with the host that they were given for.

The law: the user's headers, and what signs an address, go to that scheme, host and port, and to no other, wherever a
server sends us. obstore follows redirects by itself, takes all headers along but Authorization and Cookie, and says
where it came from (Referer), signature and all; so requests with anything else to keep go this way.

Threads: a daemon per request, which nobody waits for once the request is given up.
"""

from __future__ import annotations

import asyncio
import random
import re
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.message import Message
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPMessage
from time import monotonic
from typing import IO, TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import (
    BaseHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    build_opener,
)

from dali_feed.secrets import PLAIN_HEADERS

if TYPE_CHECKING:
    from obstore import ObjectMeta

PIECE = 1 << 20  # bytes of a body between looks at the clock

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
        self._opener = _opener(client)

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
        done: asyncio.Future[_Answer] = loop.create_future()

        def settle(result: _Answer | Exception) -> None:
            if done.done():
                return
            if isinstance(result, Exception):
                done.set_exception(result)
            else:
                done.set_result(result)

        def run() -> None:
            result: _Answer | Exception
            try:
                result = self._asked(request, span)
            except HTTPError as error:
                error.close()  # the connection
                result = error
            except Exception as error:  # noqa: BLE001  whatever it is, who waits must hear of it
                result = error
            with suppress(RuntimeError):  # the loop is closed: the process ends
                loop.call_soon_threadsafe(settle, result)

        threading.Thread(target=run, name="dali-feed-web", daemon=True).start()
        return await done

    def _asked(self, request: Request, span: tuple[int, int] | None) -> _Answer:
        """One try: what the address gives, or the one that it leads to."""
        ends = monotonic() + self._limit
        with self._opener.open(request, timeout=self._limit) as answer:
            meta = _meta(answer.headers)
            if span is None:
                return meta, memoryview(b"")
            start, end = span
            meta["size"] = size = _range_of(answer.status, answer.headers, start, end)
            room = memoryview(bytearray(min(end, size) - start))
            done = 0
            while done < len(room) and monotonic() < ends:
                count = answer.readinto(room[done : done + PIECE])
                if not count:
                    raise OSError(f"short answer: {len(room)} bytes were asked for, and it held {done}")
                done += count
            return meta, room[:done]  # who waited for one that took too long has gone


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


def _opener(client: Mapping[str, Any]) -> OpenerDirector:
    tls = ssl.create_default_context()
    if "root_certificate" in client:
        tls.load_verify_locations(cadata=_text(client["root_certificate"]))
    if client.get("allow_invalid_certificates"):
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    proxy = client.get("proxy_url")
    handlers: list[BaseHandler] = [_Redirects(), HTTPSHandler(context=tls)]
    return build_opener(*handlers, ProxyHandler({"http": proxy, "https": proxy} if proxy else None))


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
