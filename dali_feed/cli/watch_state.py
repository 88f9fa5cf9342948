"""What is known of endpoints that are looked at again and again: their loaders, rates, and since when one is gone.

The law: what an endpoint says is text from elsewhere. It is taken as numbers where numbers are wanted, and printed
without what a terminal would obey.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from dali_feed.errors import ConfigError
from dali_feed.watching.exposition import VERSION

__all__ = ["WAITS", "Loader", "Seen", "Site", "look_at", "number", "plain"]

PATIENCE = 3.0  # seconds for an answer
LARGEST = 64 << 20  # bytes of one
WAITS = {"read_wait": "source", "engine_wait": "engine", "trainer_wait": "loop"}
_GROWS = ("samples", "bytes_read", *WAITS)


@dataclass(frozen=True, slots=True)
class Loader:
    """A loader at one look.

    rates  what its counts grew by per second since the look before; {} at the first
    """

    job: str
    loader: str
    rank: int
    epoch: int
    stats: Mapping[str, Any]
    rates: Mapping[str, float] = field(default_factory=dict)
    gpu: Mapping[str, Any] | None = None
    verdict: str = ""
    error: str = ""

    def waits(self) -> dict[str, float]:
        """Which share of the feed's waits was for what, 0..1, since the look before; {} where it waited for nothing."""
        spent = {label: self.rates.get(name, number(self.stats, name)) for name, label in WAITS.items()}
        whole = sum(spent.values())
        return {label: each / whole for label, each in spent.items()} if whole > 0 else {}


@dataclass(frozen=True, slots=True)
class Seen:
    """An endpoint at one look; `gone` says why there is no answer, `since` the Unix time of the first without one."""

    url: str
    loaders: tuple[Loader, ...] = ()
    gone: str = ""
    since: float | None = None

    def told(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class Site:
    """One endpoint. Raises ConfigError for what is no address."""

    def __init__(self, address: str) -> None:
        url = address if "://" in address else f"http://{address}"
        scheme, _, rest = url.partition("://")
        if scheme not in ("http", "https") or not _is_address(url) or not rest.strip("/"):
            msg = f"URL: must be host:port or http://host:port of an endpoint; found {address!r}"
            raise ConfigError(msg)
        self.url = url.rstrip("/")
        for page in ("/metrics", "/stats.json"):
            self.url = self.url.removesuffix(page)
        self._before: dict[tuple[str, str, int], tuple[float, Mapping[str, Any]]] = {}
        self._seen = Seen(self.url)

    def look(self) -> Seen:
        """What it says now. One that is gone keeps the loaders that it had last."""
        try:
            loaders = tuple(self._loader(each) for each in _asked(f"{self.url}/stats.json"))
        except (OSError, http.client.HTTPException, ValueError, TypeError, KeyError, RecursionError) as error:
            since = self._seen.since or time.time()
            self._seen = Seen(self.url, self._seen.loaders, plain(_why(error)), since)
            self._before.clear()
        else:
            self._seen = Seen(self.url, loaders)
        return self._seen

    def _loader(self, said: Mapping[str, Any]) -> Loader:
        stats, at = _whole(said["stats"]), float(said["at"])
        key = str(said["job"]), str(said["loader"]), int(said["rank"])
        known, self._before[key] = self._before.get(key), (at, stats)
        return Loader(
            job=plain(key[0]),
            loader=plain(key[1]),
            rank=key[2],
            epoch=int(said["epoch"]),
            stats=stats,
            rates={} if known is None else _rates(*known, at, stats),
            gpu=said["gpu"] and _mapping(said["gpu"]),
            verdict=plain(said["verdict"]),
            error=plain(said["error"]),
        )


def look_at(sites: Sequence[Site]) -> Iterator[Seen]:
    """All of them, at once: one that is silent holds up no other."""
    with ThreadPoolExecutor(max_workers=min(64, len(sites))) as pool:
        yield from pool.map(Site.look, sites)


def number(stats: Mapping[str, Any] | None, name: str) -> float:
    """A number of stats, or what is nested in them; 0 where there is none."""
    value = None if stats is None else stats.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def plain(text: object) -> str:
    """In one line, with nothing that a terminal would obey."""
    return "".join(letter if letter.isprintable() else " " for letter in str(text))


def _rates(then: float, old: Mapping[str, Any], now: float, new: Mapping[str, Any]) -> dict[str, float]:
    grown = {name: number(new, name) - number(old, name) for name in _GROWS}
    if now <= then or min(grown.values()) < 0:  # another process has the port now
        return {}
    return {name: each / (now - then) for name, each in grown.items()}


def _is_address(url: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(url)
        return bool(parts.hostname) and parts.port != 0 and url.isprintable() and " " not in url
    except ValueError:  # of the port, or of brackets
        return False


def _whole(stats: Any) -> Mapping[str, Any]:
    """Stats, in which what is looked into has its form. Raises TypeError."""
    held = _mapping(stats or {})
    for each in (held.get("kafka"), held.get("cache"), *(held.get("storage") or ())):
        _mapping(each or {})
    for where, why in held.get("recent_bad") or ():
        str(where), str(why)
    return held


def _mapping(value: Any) -> Mapping[str, Any]:
    if isinstance(value, dict):
        return value
    msg = f"must be an object; found {type(value).__name__}"
    raise TypeError(msg)


def _asked(url: str) -> Iterable[Mapping[str, Any]]:
    end, held = time.monotonic() + PATIENCE, bytearray()
    with contextlib.closing(urllib.request.urlopen(url, timeout=PATIENCE)) as answer:  # noqa: S310  http(s) by Site
        while part := answer.read1(1 << 20):
            held += part
            if time.monotonic() > end or len(held) > LARGEST:  # one that never ends would hold up the other sites too
                msg = "an answer that did not end"
                raise TimeoutError(0, msg)
    said = _mapping(json.loads(held, parse_int=_finite, parse_float=_finite, parse_constant=_finite))
    if said["version"] != VERSION:
        msg = f"must answer in version {VERSION}, which this dali-feed reads; found version {plain(said['version'])}"
        raise ConfigError(msg)
    return [_mapping(each) for each in said["loaders"]]


def _finite(text: str) -> float:
    """A number that can be added up and shown. Raises ValueError."""
    value = int(text) if text.isdecimal() and len(text) < 20 else float(text)  # of 64 bits
    if math.isfinite(value):
        return value
    raise ValueError(text)


def _why(error: Exception) -> str:
    if isinstance(error, ConfigError):
        return str(error)
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code}"
    if isinstance(error, urllib.error.URLError):
        reason = error.reason
        return str(getattr(reason, "strerror", None) or reason)
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return "an answer that is not from an endpoint of dali_feed"
