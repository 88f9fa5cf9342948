"""What an error of a remote store means: whether it may pass, and else which error of ours it is.

The law: what may pass is tried again, and nothing else is: a missing object, a refused credential and an object that
changed are told at once. No message holds an option.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Iterator
from dataclasses import dataclass

from dali_feed.errors import (
    DaliFeedError,
    SourceChangedError,
    SourceDeniedError,
    SourceError,
    SourceNotFoundError,
    SourceUnreachableError,
)
from dali_feed.secrets import hidden
from dali_feed.storage.signed import shown

__all__ = ["Patience", "ShortBodyError", "told", "wait_before"]

_CHANGED, _TOO_FAR = 412, 416
_PASSING = {408, 425, 429, 500, 502, 503, 504, 509}
_SAID = 300  # letters of a message of others
_JITTER = random.SystemRandom()  # of its own, so that no draw of data depends on it


class ShortBodyError(OSError):
    """A server's answer holds other bytes than were asked for: too few, too many, or another range."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How often a request is made, and how long is waited.

    tries    of one request in all
    base     seconds: before try k + 1 a random time up to base * 2**(k - 1) passes ("full jitter")
    cap      seconds that it is at most
    longest  seconds that are waited at most where a server says how long (Retry-After)
    limit    seconds that one try may take
    """

    tries: int = 5
    base: float = 0.1
    cap: float = 5.0
    longest: float = 60.0
    limit: float = 60.0


def wait_before(error: BaseException, tried: int, patience: Patience) -> float | None:
    """Seconds to wait after try number `tried` failed with `error`; None where no further try is made."""
    if tried >= patience.tries or not _may_pass(error):
        return None
    asked = _retry_after(error)
    if asked is not None:
        return min(asked, patience.longest)
    return _JITTER.uniform(0, min(patience.cap, patience.base * 2 ** (tried - 1)))


def told(path: str, error: BaseException, tried: int) -> DaliFeedError:
    """The error of ours for one that was not, or not any more, tried again."""
    if isinstance(error, DaliFeedError):
        return error
    status = _status(error)
    said = shown(hidden(" ".join(f"{type(error).__name__}: {error}".split())))[:_SAID]
    if status in (401, 403) or (status is None and _is_denied(error)):
        cure = "check the credentials in storage_options= or in the environment, and the rights of their owner"
        return SourceDeniedError(f"{path}: a shard must be readable; the store refuses ({said}); {cure}")
    if status in (404, 410) or (status is None and isinstance(error, FileNotFoundError)):
        return SourceNotFoundError(f"{path}: no such shard file; check the path or the pattern")
    if status in (_CHANGED, _TOO_FAR):
        msg = (
            f"{path}: a shard must not change after it was indexed; another object is in its place; make a new ShardSet"
        )
        return SourceChangedError(f"{msg} to read it as it is")
    if _may_pass(error):
        cure = "check the network and the server, or try again later"
        return SourceUnreachableError(
            f"{path}: a shard must be readable; {tried} tries failed, the last with: {said}; {cure}"
        )
    return SourceError(f"{path}: a shard must be readable; found {said}; check the path and storage_options=")


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it came from: file systems put their own in the place of a server's answer."""
    seen: BaseException | None = error
    for _ in range(8):
        if seen is None:
            return
        yield seen
        seen = seen.__cause__ or seen.__context__


def _status(error: BaseException) -> int | None:
    """The status of HTTP that an error is about, as aiohttp, botocore, Google, Azure or requests says it."""
    for each in _chain(error):
        response = getattr(each, "response", None)
        meta = response.get("ResponseMetadata", {}) if isinstance(response, dict) else {}
        found = meta.get("HTTPStatusCode") or getattr(response, "status_code", None)
        ours = type(each).__module__.startswith("aiohttp")  # whose `code` is another thing, and warns
        for name in ("status",) if ours else ("status", "status_code", "code"):
            found = found or getattr(each, name, None)
        if isinstance(found, int) and 100 <= found < 600:
            return found
    return None


def _retry_after(error: BaseException) -> float | None:
    """Seconds that a server asks for; a date in their place is not read."""
    for each in _chain(error):
        response = getattr(each, "response", None)
        meta = response.get("ResponseMetadata", {}) if isinstance(response, dict) else {}
        headers = getattr(each, "headers", None) or meta.get("HTTPHeaders") or getattr(response, "headers", None) or {}
        text = next((str(v) for k, v in dict(headers).items() if str(k).lower() == "retry-after"), "")
        if text.isdecimal():
            return float(text)
    return None


def _is_denied(error: BaseException) -> bool:
    return any(isinstance(each, PermissionError) or "Credential" in type(each).__name__ for each in _chain(error))


def _may_pass(error: BaseException) -> bool:
    status = _status(error)
    if status is not None and status >= 300:
        return status in _PASSING
    if _is_denied(error) or any(isinstance(each, ssl.SSLCertVerificationError) for each in _chain(error)):
        return False
    if isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError | DaliFeedError):
        return False
    net = type(error).__module__.partition(".")[0] in ("aiohttp", "botocore", "aiobotocore", "requests", "urllib3")
    invalid = "Invalid" in type(error).__name__ or isinstance(error, ValueError)
    return isinstance(error, OSError | TimeoutError | asyncio.TimeoutError | EOFError) or (net and not invalid)
