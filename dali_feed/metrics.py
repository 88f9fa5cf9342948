"""Numbers of a run for tools: over HTTP for Prometheus and `dali-feed watch`, or as OpenTelemetry's instruments.

What each number is stands at its field in `Stats`. A run that nobody looks at pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dali_feed.endpoint import Endpoint, HasStats, Look, Watched
from dali_feed.errors import ConfigError
from dali_feed.packages import needed
from dali_feed.records.metrics import Metric, metrics

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
