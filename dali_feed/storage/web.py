"""Requests to a web server whose credentials stay with the host that they were given for, by aiohttp.

The law: the user's headers, and what signs an address, go to that scheme, host and port, and to no other, wherever a
server sends us. obstore follows redirects by itself, takes all headers along but Authorization and Cookie, and says
where it came from (Referer), signature and all; so requests with anything else to keep go this way.
"""

from __future__ import annotations

import asyncio
import random
import re
import ssl
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import lru_cache
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from dali_feed.packages import needed
from dali_feed.secrets import PLAIN_HEADERS

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession
    from obstore import ObjectMeta

REDIRECTS = 10  # that one try follows
HEADER_BYTES = 64 << 10  # that one header may have: an address that is signed is long
BUFFER_BYTES = 1 << 20  # of a body that has come and was not read yet, after which the server has to wait

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
        with needed():
            import aiohttp  # noqa: F401  here, so that its absence is an error of the caller's
        self._root, self._tries, self._first, self._longest, self._within = root, tries, first, longest, within
        own = {name: _text(value) for name, value in client.get("default_headers", {}).items()}
        self._headers = {"User-Agent": client.get("user_agent", "dali_feed"), "Accept-Encoding": "identity", **own}
        self._limit, self._proxy = seconds(client["timeout"]), _addressed(client.get("proxy_url"))
        self._trust = client.get("root_certificate"), bool(client.get("allow_invalid_certificates"))
        if root.startswith("https:") or self._trust[0]:
            _tls(*self._trust)  # here, where an error is one of the options

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
        from aiohttp import ClientError

        url, begun = f"{self._root}/{quote(key)}" if key else self._root, monotonic()
        for tried in range(1, self._tries + 1):
            try:
                async with asyncio.timeout(self._limit), self._session() as session:
                    return await self._try(session, method, url, self._headers | dict(own), span)
            except TimeoutError:
                problem = OSError(f"no whole answer in {self._limit:g} s")
            except (OSError, ClientError, ValueError) as error:
                problem = OSError(_said(error))
                if isinstance(error, _ForGoodError):
                    break
            if monotonic() - begun > self._within:
                break
            if tried < self._tries:
                await asyncio.sleep(_JITTER.uniform(0, min(self._longest, self._first * 2 ** (tried - 1))))
        raise problem

    def _session(self) -> ClientSession:
        """For one try. Whatever ends it closes its connection."""
        from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

        return ClientSession(
            connector=TCPConnector(force_close=True),
            cookie_jar=DummyCookieJar(),
            timeout=ClientTimeout(total=None),
            auto_decompress=False,
            read_bufsize=BUFFER_BYTES,
            max_line_size=HEADER_BYTES,
            max_field_size=HEADER_BYTES,
        )

    async def _try(
        self, session: ClientSession, method: str, url: str, headers: dict[str, str], span: tuple[int, int] | None
    ) -> _Answer:
        """What the address gives, or the one that it leads to."""
        from yarl import URL

        for _ in range(REDIRECTS + 1):
            proxy, tls = self._proxy or _proxy_of(url), _tls(*self._trust) if url.startswith("https:") else True
            to = URL(url, encoded=True)
            async with session.request(
                method, to, headers=headers, allow_redirects=False, proxy=proxy, ssl=tls
            ) as answer:
                if answer.status not in (301, 302, 303, 307, 308) or "Location" not in answer.headers:
                    return await _read(answer, span)
                url, headers = _redirected(url, answer.headers["Location"], headers)
        raise _ForGoodError(f"more than {REDIRECTS} redirects")


class _ForGoodError(OSError):
    """What another try would not change."""


async def _read(answer: ClientResponse, span: tuple[int, int] | None) -> _Answer:
    if answer.status >= 300:
        msg = f"non-2xx status code: {answer.status} {answer.reason}"
        raise (OSError if answer.status in (408, 429) or answer.status >= 500 else _ForGoodError)(msg)
    meta = _meta(answer.headers)
    if span is None:
        return meta, memoryview(b"")
    start, end = span
    meta["size"] = size = _range_of(answer.status, answer.headers, start, end)
    room = memoryview(bytearray(min(end, size) - start))
    done = 0
    async for came in answer.content.iter_any():
        data = came[: len(room) - done]
        room[done : done + len(data)] = data
        done += len(data)
        if done == len(room):
            return meta, room
    raise OSError(f"short answer: {len(room)} bytes were asked for, and it held {done}")


def _redirected(url: str, location: str, headers: dict[str, str]) -> tuple[str, dict[str, str]]:
    """Where a server sends us; to another scheme, host or port without anything that says who asks."""
    to = urljoin(url, quote(location, safe="%/:=&?~#+!$,;'@()*[]", errors="surrogateescape"))  # bytes, not letters
    came, goes = urlsplit(url).scheme, urlsplit(to).scheme
    if goes not in (came, "https"):
        raise _ForGoodError(f"a redirect from {came} to {goes} is not followed")
    if _origin(url) != _origin(to):
        kept = PLAIN_HEADERS | {"range", "if-match"}
        headers = {name: value for name, value in headers.items() if name.lower() in kept}
    return to, headers


def _proxy_of(url: str) -> str | None:
    """The proxy that the environment names."""
    to = urlsplit(url)
    return None if proxy_bypass(to.netloc) else _addressed(getproxies().get(to.scheme))


def _addressed(proxy: str | None) -> str | None:
    """A proxy's address, which may be named without http://."""
    return proxy if not proxy or "://" in proxy else f"http://{proxy}"


@lru_cache(maxsize=16)  # it costs tens of milliseconds, and each signed address is a store
def _tls(certificate: str | bytes | None, insecure: bool) -> ssl.SSLContext:
    tls = ssl.create_default_context()
    if certificate:
        tls.load_verify_locations(cadata=_text(certificate))
    if insecure:
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    return tls


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


def _said(error: Exception) -> str:
    """An error in a line. Some of aiohttp's have the address in their text, or a line of the answer, with secrets."""
    from aiohttp import ClientResponseError, InvalidURL

    if type(error) in (OSError, _ForGoodError):
        return str(error)
    if isinstance(error, ClientResponseError):
        return f"{type(error).__name__}: {error.status}"
    return type(error).__name__ if isinstance(error, InvalidURL) else f"{type(error).__name__}: {error}"


def _range_of(status: int, headers: Mapping[str, str], start: int, end: int) -> int:
    """The size of the object, where the answer is of the range that was asked for."""
    match = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", headers.get("Content-Range", ""))
    if status != 206 or match is None:
        msg = "non-partial response"
        raise OSError(msg)
    first, last, size = map(int, match.groups())
    if (first, last + 1) != (start, min(end, size)):
        raise OSError(f"Requested {start}..{end}, got {first}..{last + 1}")
    return size


def _meta(headers: Mapping[str, str]) -> ObjectMeta:
    """As obstore has it."""
    changed = datetime.fromtimestamp(0, UTC)
    with suppress(ValueError):
        changed = parsedate_to_datetime(headers.get("Last-Modified", ""))
    size = int(headers.get("Content-Length", 0))
    return {"path": "", "last_modified": changed, "size": size, "e_tag": headers.get("ETag"), "version": None}


def _origin(url: str) -> tuple[str, str, int]:
    to = urlsplit(url)
    return to.scheme, to.hostname or "", to.port or (443 if to.scheme == "https" else 80)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # as it is sent
