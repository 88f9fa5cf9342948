"""Numbers of a run for tools: over HTTP for Prometheus and `dali-feed watch`, or as OpenTelemetry's instruments.

What each number is stands at its field in `Stats`. A run that nobody looks at pays nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import logging
import math
import os
import re
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from socketserver import ThreadingMixIn
from typing import Any, Protocol, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from dali_feed.errors import ConfigError, MissingPackageError
from dali_feed.feed.stats import Stats
from dali_feed.packages import needed
from dali_feed.records.gauges import LATENCIES, GpuStats
from dali_feed.records.metrics import PREFIX, Metric, Point, declarations, gauge, metrics, nested

__all__ = ["Endpoint", "otel", "serve"]

FRESH = 0.2  # seconds that a look serves for: an export asks each instrument, and they are one moment
_UNITS = {"seconds": "s", "bytes": "By", "ratio": "1"}


def serve(
    loader: HasStats | Mapping[str, HasStats], port: int = 0, address: str = "127.0.0.1", *, job: str | None = None
) -> Endpoint:
    """Report over HTTP what a loader does, until the endpoint is closed: `with metrics.serve(loader) as at: ...`.

    `/metrics` is Prometheus text, `/stats.json` what `dali-feed watch` reads. Values are read when a request comes.
    There is no password: think before you give another address.

    Args:
        loader: a `DataLoader` or a `Feed`; or a dict of several, each by a name of its own.
        port: to listen at; 0: a free one, which `url` of the endpoint names.
        address: of the interface; "0.0.0.0" for every one.
        job: what the run is called; None: DALI_FEED_JOB or SLURM_JOB_ID.

    Raises:
        ConfigError: what is given cannot be watched, or the port cannot be used.
        MissingPackageError: prometheus-client is not installed.
    """
    loaders = loader if isinstance(loader, Mapping) else {"": loader}
    if not loaders:
        msg = "loader: must be a loader, or a dict of loaders by name; found none"
        raise ConfigError(msg)
    watched = [Watched(each, name, job) for name, each in loaders.items()]
    endpoint = Endpoint(address, port)
    for each in watched:
        endpoint.add(each)
    return endpoint


def otel(loader: HasStats, meter: Any, *, name: str = "", job: str | None = None) -> None:
    """Make an observable instrument of each number of a loader: `dali_feed_samples`, `dali_feed_read_wait_seconds`, ...

    A reader of the meter's provider asks them when it exports; nothing is done in between. They are counters for what
    only grows, gauges for the rest, in seconds and bytes, with attributes `job`, `loader`, `rank` and, where there are
    several, `partition`, `broker`, `store`, `target`, `stage`, `cause`.

    Args:
        loader: a `DataLoader` or a `Feed`; it is not kept alive.
        meter: of OpenTelemetry, as `opentelemetry.metrics.get_meter("training")` gives it.
        name: what the loader is called.
        job: what the run is called; None: DALI_FEED_JOB or SLURM_JOB_ID.

    Raises:
        ConfigError: what is given has no stats.
        MissingPackageError: opentelemetry-api is not installed.
    """
    with needed():
        from opentelemetry.metrics import Observation
    watched = Watched(loader, name, job)

    def observing(metric: Metric) -> Callable[[Any], Iterator[Any]]:
        def observe(_: Any) -> Iterator[Any]:
            look = watched.look(FRESH)
            for each in look.points(metric):
                yield Observation(each.value, look.labels | dict(zip(metric.labels, each.labels, strict=True)))

        return observe

    for metric in metrics(Look):
        if metric.kind == "histogram":
            continue  # an observable histogram is none of its instruments; the count and the sum are counters
        make = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
        plain = metric.name.removesuffix("_total")  # it keeps its unit, as two may differ by that alone
        unit = _UNITS.get(plain.rpartition("_")[2], "")
        make(plain, callbacks=[observing(metric)], unit=unit, description=metric.help)


# A run over HTTP: a look at its loaders, as Prometheus wants it and as JSON.
#
# The laws: no port is opened unasked, and none but on this machine unless an address says so. Between two requests the
# endpoint's thread sleeps in the kernel. A request is answered in a thread of its own, which is all that a look costs;
# what goes wrong in it is the asker's to hear, and never reaches the run.
#
# DALI_FEED_METRICS=host:port opens an endpoint for every loader of a process, without a line of code. A run is not
# ended by a port that somebody else has: one line in the log says so. A value that is no address is an error, as any
# option.


VARIABLE = "DALI_FEED_METRICS"
VERSION = 1  # of the JSON
SILENCE = 10.0  # seconds that a connection may say nothing
LABELS = ("job", "loader", "rank")
_BORDERS = (*(repr(float(1 << (k + 1)) / 1e6) for k in range(LATENCIES - 1)), "+Inf")  # of a store's latency, seconds
_FORM = re.compile(r"(?:(?P<address>\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]*):)?(?P<port>\d{1,5})")

log = logging.getLogger("dali_feed")


class HasStats(Protocol):
    """What can be looked at: a `DataLoader`, a `Feed`."""

    def stats(self) -> Stats:
        """Counts and waits since it was made."""
        ...


@dataclass(frozen=True, slots=True)
class Look:
    """A loader at one moment.

    Attributes:
        at: on a clock that never goes back, seconds: differences of two looks at one loader are times between them.
        error: why there are no stats, where there are none.
    """

    job: str
    loader: str
    rank: int
    at: float = -math.inf
    epoch: int = gauge("the epoch that the loop is in")
    stats: Stats | None = nested(Stats, "counts and waits since the loader was made", name="")
    gpu: GpuStats | None = nested(GpuStats, "that the loader's batches are on")
    error: str = ""

    @property
    def labels(self) -> dict[str, str]:
        """What separates it from other loaders."""
        return {"job": self.job, "loader": self.loader, "rank": str(self.rank)}

    def points(self, metric: Metric) -> list[Point]:
        """What is known of a metric, without the loader's own labels; nothing where there was an error."""
        return [] if self.error else metric.points(self)


class Watched:
    """One loader; `look` may be called from any thread, whatever the loader is doing, and after its end too.

    It does not keep the loader alive. Raises ConfigError for what has no stats.
    """

    def __init__(self, loader: HasStats, name: str = "", job: str | None = None) -> None:
        if not callable(getattr(loader, "stats", None)):
            raise ConfigError(f"loader: must be a DataLoader or a Feed; found {type(loader).__name__}")
        for what, value in (("a loader's name", name), ("job", "" if job is None else job)):
            if not isinstance(value, str):
                raise ConfigError(f"{what}: must be a str; found {value!r}")
        if job is None:
            job = os.environ.get("DALI_FEED_JOB") or os.environ.get("SLURM_JOB_ID") or ""
        self._loader, self._pid = weakref.ref(loader), os.getpid()
        self.last = Look(job, name, _rank(loader))

    @property
    def there(self) -> bool:
        """Whether anybody still has the loader."""
        return self._loader() is not None

    def look(self, fresh: float = 0.0) -> Look:
        """How it is now, or was at the last look, if that is at most `fresh` seconds ago."""
        now, last, loader = time.monotonic(), self.last, self._loader()
        if now - last.at <= fresh:
            return last
        look = Look(last.job, last.loader, last.rank, now)
        if loader is None:
            look = replace(look, error="the loader does not exist any more")
        elif os.getpid() != self._pid:
            look = replace(look, error="the loader belongs to another process")
        else:
            try:
                gpu = _gpu_of(getattr(loader, "device", None))
                look = replace(look, epoch=int(getattr(loader, "epoch", 0)), stats=loader.stats(), gpu=gpu)
            except Exception as error:  # noqa: BLE001  a look must not end a run
                look = replace(look, error=f"{type(error).__name__}: {error}")
        self.last = look
        return look


def _rank(loader: HasStats) -> int:
    """Which of the run's processes this is: by the loader, or where a sampler has dealt to ranks, by who started it."""
    if getattr(loader, "world_size", 1) > 1:
        return int(getattr(loader, "rank", 0))
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_rank())
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdecimal() else int(getattr(loader, "rank", 0))


def _gpu_of(device: Any) -> GpuStats | None:
    """Of a torch.device or a CUDA device's number; None for a CPU."""
    if not isinstance(device, int) and getattr(device, "type", None) != "cuda":
        return None
    from dali_feed.engines.device.cuda import gpu_stats  # torch

    return gpu_stats(device if isinstance(device, int) else device.index or 0)


class Collector:
    """For a registry of prometheus_client: `collect` looks at every loader.

    Of a loader that cannot be looked at `dali_feed_up` is 0 and there is nothing else; no error gets out.
    """

    def __init__(self, looks: Callable[[], Sequence[Look]]) -> None:
        self._looks = looks

    def collect(self) -> Iterator[Any]:
        """A family for each metric that some loader has now."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        kinds: dict[str, Any]
        kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
        looks = [(look, _encodable(look.labels.values())) for look in self._looks()]
        up = GaugeMetricFamily(f"{PREFIX}up", "1: the loader could be looked at.", labels=LABELS)
        for look, own in looks:
            up.add_metric(own, float(not look.error))
        yield up
        for metric in metrics(Look):
            family = kinds[metric.kind](metric.name, metric.help, labels=(*LABELS, *metric.labels))
            for look, own in looks:
                for each in look.points(metric):
                    labels = (*own, *_encodable(each.labels))
                    if metric.kind == "histogram":
                        family.add_metric(labels, buckets=_buckets(each.counts), sum_value=each.value)
                    else:
                        family.add_metric(labels, each.value)
            if family.samples:
                yield family


def _encodable(labels: Iterable[str]) -> list[str]:
    """Names of folders, and variables of the environment, may be no UTF-8: what is not becomes a "?"."""
    return [each.encode(errors="replace").decode() for each in labels]


def _buckets(counts: Sequence[int]) -> list[tuple[str, float]]:
    """Upper border and how many are at most so large."""
    return [(border, float(sum(counts[: k + 1]))) for k, border in enumerate(_BORDERS)]


def as_json(looks: Sequence[Look]) -> str:
    """What `dali-feed watch` reads: a version, Unix seconds, and each loader with its stats as they are."""
    loaders = [_plain(look) | {"verdict": "" if look.stats is None else look.stats.verdict} for look in looks]
    return json.dumps({"version": VERSION, "time": time.time(), "loaders": loaders}, default=_plain)


def _plain(stats: Any) -> dict[str, Any]:
    """Stats as a dict, with what is derived from their fields."""
    names = (*(each.name for each in dataclasses.fields(stats)), *declarations(type(stats)))
    return {name: getattr(stats, name) for name in names}


class Endpoint:
    """Answers until it is closed. A context manager.

    Args:
        address: of the interface that it listens at; "127.0.0.1" is this machine alone, "0.0.0.0" is every interface.
        port: 0 for one that is free.

    Attributes:
        url: where it is, `http://127.0.0.1:9400`.
        port: that it listens at.

    Raises:
        ConfigError: the address or the port cannot be used.
        MissingPackageError: prometheus-client is not installed.
    """

    def __init__(self, address: str = "127.0.0.1", port: int = 0) -> None:
        with needed():
            from prometheus_client import CollectorRegistry, make_wsgi_app
        self._watched: list[Watched] = []
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Collector(self.looks))
        self._metrics: Any = make_wsgi_app(registry, disable_compression=True)
        self._server = _server(address, port)
        self._server.set_app(self._answer)
        self._at = str(self._server.server_address[0]), int(self._server.server_address[1])
        self.port = self._at[1]
        self.url = f"http://{f'[{address}]' if ':' in address else address}:{self.port}"
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="dali_feed-metrics", daemon=True)
        _open.add(self)
        try:
            self._thread.start()
        except BaseException:  # Ctrl-C, or a system without threads to give: the port is free again
            self.close()
            raise

    def add(self, watched: Watched) -> None:
        """Report a further loader too; one that is gone is not reported any more."""
        self._watched = [*(each for each in self._watched if each.there), watched]

    def looks(self) -> list[Look]:
        """Every loader as it is now."""
        return [each.look() for each in self._watched if each.there]

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """A request's answer, as a WSGI application gives it."""
        path = environ.get("PATH_INFO")
        status, kind, body = "404 Not Found", "text/plain", "dali_feed: the paths here are /metrics, /stats.json\n"
        try:
            if path == "/metrics":
                return self._prometheus(environ, start)
            if path == "/stats.json":
                status, kind, body = "200 OK", "application/json", as_json(self.looks())
        except Exception as error:  # noqa: BLE001  whatever it is, who sent the request hears of it
            status, kind, body = "500 Internal Server Error", "text/plain", f"{type(error).__name__}: {error}\n"
        data = body.encode(errors="replace")
        start(status, [("Content-Type", f"{kind}; charset=utf-8"), ("Content-Length", str(len(data)))])
        return [data]

    def _prometheus(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        with contextlib.suppress(Exception):  # of a version that is none; any other error is met again
            return list(self._metrics(environ, start))
        return list(self._metrics({**environ, "HTTP_ACCEPT": ""}, start))

    def _run(self) -> None:
        while not self._closed:
            self._server.handle_request()  # sleeps until there is one

    def close(self) -> None:
        """Stop listening. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError), socket.create_connection(self._at, 1.0):
            pass  # which wakes the thread
        if self._thread.is_alive():
            self._thread.join(SILENCE)
        self._server.server_close()

    def forget(self) -> None:
        """In a process that was forked off: this one does not listen."""
        self._closed = True
        self._server.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_open: weakref.WeakSet[Endpoint] = weakref.WeakSet()


def _forget_all() -> None:
    for each in list(_open):
        each.forget()


os.register_at_fork(after_in_child=_forget_all)


class _Handler(WSGIRequestHandler):
    timeout = SILENCE

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  its name in the base
        """Say nothing: a line per scrape would fill the run's log."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True  # of a run before this one whose connections are not over

    def server_bind(self) -> None:
        """Without a look at what this machine is called, which may wait for a name server."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def handle_error(self, *_: object) -> None:
        """Say nothing: a client that gives up is its own business."""


class _Server6(_Server):
    address_family = socket.AF_INET6


def _server(address: str, port: int) -> _Server:
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port < 1 << 16:
        raise ConfigError(f"port: must be an int in 0..65535; found {port!r}")
    if not isinstance(address, str) or not address:
        msg = f"address: must be the address of a network interface, such as 127.0.0.1 or 0.0.0.0; found {address!r}"
        raise ConfigError(msg)
    family = _Server6 if ":" in address else _Server
    try:
        return family((address, port), _Handler)
    except OSError as error:
        msg = f"{address}:{port}: must be an address of this machine with a free port; found: {error.strerror or error}"
        raise ConfigError(msg) from error


class _Shared:
    """The endpoint of this process: started by its first loader; the others are added."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # guards all of it: loaders may be made in several threads
        self.endpoint: Endpoint | None = None
        self.of: tuple[int, str] | None = None  # process and value that it was begun, or tried, for
        self.count = 0


_shared = _Shared()


def serve_if_asked(loader: HasStats) -> None:
    """Let the process's endpoint report `loader` too, where DALI_FEED_METRICS asks for one; it does nothing else."""
    value = os.environ.get(VARIABLE, "")
    if not value:
        return
    form = _FORM.fullmatch(value)
    if form is None or int(form["port"]) >= 1 << 16:
        raise ConfigError(f"{VARIABLE}: must be host:port, such as 127.0.0.1:9400; found {value!r}")
    address, port = (form["address"] or "127.0.0.1").strip("[]"), int(form["port"])
    with _shared.lock:
        if _shared.of != (os.getpid(), value):
            if _shared.endpoint is not None:
                _shared.endpoint.close()
            _shared.of, _shared.count = (os.getpid(), value), 0
            _shared.endpoint = _begun(address, port + _rank(loader) if port else 0)
        if _shared.endpoint is not None:
            _shared.endpoint.add(Watched(loader, str(_shared.count)))
            _shared.count += 1


def _begun(address: str, port: int) -> Endpoint | None:
    try:
        endpoint = Endpoint(address, port)
    except (ConfigError, MissingPackageError) as error:
        reason = str(error)
        log.warning("%s: %s. The run goes on without metrics", VARIABLE, reason)
        return None
    atexit.register(endpoint.close)
    log.info("%s: metrics at %s/metrics", VARIABLE, endpoint.url)
    return endpoint
