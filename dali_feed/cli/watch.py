"""`dali-feed watch`: running loaders by their endpoints: a line per rank and one for all, looked at again and again.

The law: what an endpoint says is text from elsewhere. It is taken as numbers where numbers are wanted, and one that is
silent or never ends holds up no other.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import math
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from dali_feed.cli.view import Report, live, size_text, table
from dali_feed.errors import ConfigError
from dali_feed.metrics import VERSION

PATIENCE = 3.0  # seconds for an answer
LARGEST = 64 << 20  # bytes of one
BAD = 5  # last bad records that are shown
WAITS = {"read_wait": "source", "engine_wait": "engine", "trainer_wait": "loop"}
_GROWS = ("samples", "bytes_read", *WAITS)


@dataclass(frozen=True, slots=True)
class LoaderState:
    """A loader at one look.

    rank, epoch  None for all loaders together
    rates        what its counts grew by per second since the look before; {} at the first
    """

    job: str
    loader: str
    rank: int | None
    epoch: int | None
    stats: Mapping[str, Any]
    rates: Mapping[str, float] = field(default_factory=dict)
    gpu: Mapping[str, Any] | None = None
    verdict: str = ""
    error: str = ""

    @property
    def title(self) -> str:
        """Which one it is."""
        return f"rank {self.rank}{' ' if self.loader else ''}{self.loader}"

    def waits(self) -> dict[str, float]:
        """Which share of the feed's waits was for what, 0..1, since the look before; {} where it waited for nothing."""
        spent = {label: self.rates.get(name, number(self.stats, name)) for name, label in WAITS.items()}
        whole = sum(spent.values())
        return {label: each / whole for label, each in spent.items()} if whole > 0 else {}


class WatchedEndpoint:
    """One that is looked at again and again. Raises ConfigError for what is no address.

    Attributes:
        loaders: as the last look saw them; one that is gone keeps those that it had last.
        gone: why there is no answer.
        since: Unix time of the first look without one.
    """

    def __init__(self, address: str) -> None:
        url = address if "://" in address else f"http://{address}"
        scheme, _, rest = url.partition("://")
        if scheme not in ("http", "https") or not _is_address(url) or not rest.strip("/"):
            raise ConfigError(f"URL: must be host:port or http://host:port of an endpoint; found {address!r}")
        self.url = url.rstrip("/")
        for page in ("/metrics", "/stats.json"):
            self.url = self.url.removesuffix(page)
        self._before: dict[tuple[str, str, int], tuple[float, Mapping[str, Any]]] = {}
        self.loaders: tuple[LoaderState, ...] = ()
        self.gone, self.since = "", 0.0

    def look(self) -> WatchedEndpoint:
        """See what it says now."""
        try:
            self.loaders = tuple(self._loader(each) for each in _answer(f"{self.url}/stats.json"))
        except (OSError, http.client.HTTPException, ValueError, TypeError, KeyError, RecursionError) as error:
            self.gone, self.since = _why(error), self.since or time.time()
            self._before.clear()
        else:
            self.gone, self.since = "", 0.0
        return self

    def _loader(self, answer: Mapping[str, Any]) -> LoaderState:
        stats, at = _checked(answer["stats"]), float(answer["at"])
        key = str(answer["job"]), str(answer["loader"]), int(answer["rank"])
        known, self._before[key] = self._before.get(key), (at, stats)
        return LoaderState(
            job=key[0],
            loader=key[1],
            rank=key[2],
            epoch=int(answer["epoch"]),
            stats=stats,
            rates={} if known is None else _rates(*known, at, stats),
            gpu=answer["gpu"] and _mapping(answer["gpu"]),
            verdict=str(answer["verdict"]),
            error=str(answer["error"]),
        )


def watch_endpoints(urls: Sequence[str], every: float, *, once: bool, as_json: bool) -> bool:
    """Show them every so many seconds until Ctrl-C, or `once`, after a second look; whether one is gone then."""
    endpoints = [WatchedEndpoint(url) for url in urls]
    with live(as_json=as_json, watch=not once) as show, ThreadPoolExecutor(min(64, len(urls))) as pool:
        for look in itertools.count():
            list(pool.map(WatchedEndpoint.look, endpoints))  # at once: one that is silent holds up no other
            if not once or look:
                show(report_of(endpoints))
            if once and look:
                break
            time.sleep(every)
    return any(each.gone for each in endpoints)


def number(stats: Mapping[str, Any] | None, name: str) -> float:
    """A number of stats, or what is nested in them; 0 where there is none."""
    value = None if stats is None else stats.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


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


def _checked(stats: Any) -> Mapping[str, Any]:
    """Stats, in which what is looked into has its form. Raises TypeError."""
    checked = _mapping(stats or {})
    for each in (checked.get("kafka"), checked.get("cache"), *(checked.get("storage") or ())):
        _mapping(each or {})
    for where, why in checked.get("recent_bad") or ():
        str(where), str(why)
    return checked


def _mapping(value: Any) -> Mapping[str, Any]:
    if isinstance(value, dict):
        return value
    raise TypeError(f"must be an object; found {type(value).__name__}")


def _answer(url: str) -> Iterable[Mapping[str, Any]]:
    end, text = time.monotonic() + PATIENCE, bytearray()
    with contextlib.closing(urllib.request.urlopen(url, timeout=PATIENCE)) as answer:  # noqa: S310  http(s): see above
        while part := answer.read1(1 << 20):
            text += part
            if time.monotonic() > end or len(text) > LARGEST:
                raise TimeoutError(0, "an answer that did not end")
    page = _mapping(json.loads(text, parse_int=_finite, parse_float=_finite, parse_constant=_finite))
    if page["version"] != VERSION:
        msg = f"must answer in version {VERSION}, which this dali-feed reads; found version {page['version']}"
        raise ConfigError(msg)
    return [_mapping(each) for each in page["loaders"]]


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


def report_of(endpoints: Sequence[WatchedEndpoint]) -> Report:
    """A line per rank, one for all of them, and what is to be said below."""
    here = [loader for each in endpoints if not each.gone for loader in each.loaders]
    count = sum(max(1, len(each.loaders)) if each.gone else len(each.loaders) for each in endpoints)
    jobs = ", ".join(sorted({each.job for each in here if each.job}))
    whole = _whole(here)
    report = Report(f"dali_feed{' ' if jobs else ''}{jobs}, {len(here)} of {count} loaders")
    report.tables.append(table([*here, whole] if len(here) > 1 else here, _COLUMNS, left=["rank", "loader"], most=1000))
    for verdict, titles in _verdicts(here).items():
        report.note(f"  {verdict}" if len(titles) == len(here) else f"  {', '.join(titles)}: {verdict}")
    for loader in here:
        if loader.error:
            report.note(f"  {loader.title}: {loader.error}", "yellow")
    now = time.time()
    for each in endpoints:
        if each.gone:
            since = time.strftime("%H:%M:%S", time.localtime(each.since))
            report.note(f"  {each.url} has been gone since {since} ({now - each.since:,.0f} s): {each.gone}", "red")
    bad = [(loader.title, *pair) for loader in here for pair in (loader.stats.get("recent_bad") or ())[-BAD:]]
    report.notes += [(f"  bad  {title}  {where}: {why}", "dim") for title, where, why in bad[-BAD:]]
    together = {
        "loaders": len(here),
        "samples": int(whole.stats["samples"]),
        "bad": int(whole.stats["bad"]),
        "samples_per_second": whole.rates.get("samples"),
    }
    states = [
        {"url": each.url, "loaders": list(map(asdict, each.loaders)), "gone": each.gone, "since": each.since or None}
        for each in endpoints
    ]
    report.data = {"time": now, "endpoints": states, "all": together}
    return report


def _whole(here: Sequence[LoaderState]) -> LoaderState:
    """All loaders as one: sums of what can be summed, the worst of waits."""
    stats: dict[str, Any] = {name: sum(number(each.stats, name) for each in here) for name in ("samples", "bad")}
    for name in ("step_wait_p50", "step_wait_p99"):
        stats[name] = max((number(each.stats, name) for each in here), default=0.0)
    lags = [kafka["lag"] for each in here if (kafka := each.stats.get("kafka") or {}).get("lag") is not None]
    stats["kafka"] = {"lag": sum(lags)} if lags else None
    known = [each.rates for each in here if each.rates]
    rates = {name: sum(each[name] for each in known) for name in ("samples", "bytes_read")} if known else {}
    return LoaderState("", "", None, None, stats, rates)


def _verdicts(here: Sequence[LoaderState]) -> dict[str, list[str]]:
    """What loaders say of themselves, and which say so."""
    by_verdict: dict[str, list[str]] = {}
    for each in here:
        if each.verdict:
            by_verdict.setdefault(each.verdict, []).append(each.title)
    return by_verdict


def _ms(name: str) -> Callable[[LoaderState], str]:
    return lambda each: f"{1e3 * number(each.stats, name):,.1f} ms" if each.stats else ""


def _wait(label: str) -> Callable[[LoaderState], str]:
    return lambda each: f"{each.waits()[label]:.0%}" if label in each.waits() else ""


def _lag(each: LoaderState) -> str:
    kafka = each.stats.get("kafka") or {}
    if kafka.get("lag") is None:
        return ""
    behind = "" if kafka.get("lag_seconds") is None else f", {number(kafka, 'lag_seconds'):,.0f} s"
    return f"{number(kafka, 'lag'):,.0f}{behind}"


def _storage(each: LoaderState) -> str:
    slow = [number(store, "p99") for store in each.stats.get("storage") or ()]
    return f"{1e3 * max(slow):,.1f} ms" if any(slow) else ""


def _cache(each: LoaderState) -> str:
    """Of records, and of images on the device."""
    cache, parts = each.stats.get("cache"), []
    for of in ("", "device_"):
        hits, size = number(cache, f"{of}hits"), size_text(number(cache, f"{of}held"))
        if looks := hits + number(cache, f"{of}misses"):
            parts.append(f"{hits / looks:.0%} of {size}")
    return ", ".join(parts)


def _memory(each: LoaderState) -> str:
    used, total = number(each.gpu, "used"), number(each.gpu, "total")
    return f"{used / 2**30:,.0f}/{total / 2**30:,.0f} GiB" if total else ""


_COLUMNS: Mapping[str, Callable[[LoaderState], str]] = {
    "rank": lambda each: "all" if each.rank is None else str(each.rank),
    "loader": lambda each: each.loader,
    "epoch": lambda each: "" if each.epoch is None else str(each.epoch),
    "samples": lambda each: f"{number(each.stats, 'samples'):,.0f}",
    "samples/s": lambda each: f"{each.rates['samples']:,.0f}" if "samples" in each.rates else "",
    "read": lambda each: f"{size_text(each.rates['bytes_read'])}/s" if each.rates.get("bytes_read") else "",
    "wait p50": _ms("step_wait_p50"),
    "p99": _ms("step_wait_p99"),
    "source": _wait("source"),
    "engine": _wait("engine"),
    "loop": _wait("loop"),
    "lag": _lag,
    "read p99": _storage,
    "cache": _cache,
    "bad": lambda each: f"{number(each.stats, 'bad'):,.0f}" if each.stats else "",
    "GPU": lambda each: f"{number(each.gpu, 'busy'):.0%}" if each.gpu and each.gpu.get("busy") is not None else "",
    "memory": _memory,
}
