"""OpenTelemetry: a loader's figures as observable instruments of a meter that the caller has."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from dali_feed.packages import needed
from dali_feed.watching.figures import Metric
from dali_feed.watching.watched import ALL, Gives, Look, Watched

__all__ = ["otel"]

FRESH = 0.2  # seconds that a look serves for: an export asks each instrument, and they are one moment
_UNITS = {"seconds": "s", "bytes": "By", "ratio": "1"}


def otel(loader: Gives, meter: Any, *, name: str = "", job: str | None = None) -> None:
    """Make an observable instrument of each figure of a loader: `dali_feed_samples`, `dali_feed_read_wait_seconds`, ...

    A reader of the meter's provider asks them when it exports; nothing is done in between. They are counters for what
    only grows, gauges for the rest, in seconds and bytes, with attributes `job`, `loader`, `rank` and, where there are
    several, `partition`, `broker`, `store`, `target`, `stage`.

    Args:
        loader: a `DataLoader`, a `Feed` or a `LiveFeed`; it is not kept alive.
        meter: of OpenTelemetry, as `opentelemetry.metrics.get_meter("training")` gives it.
        name: what the loader is called.
        job: what the run is called; None: DALI_FEED_JOB or SLURM_JOB_ID.

    Raises:
        ConfigError: what is given has no stats.
        MissingPackageError: opentelemetry-api is not installed.
    """
    with needed():
        from opentelemetry.metrics import Observation
    moment = _Moment(Watched(loader, name, job))

    def observing(metric: Metric) -> Callable[[Any], Iterator[Any]]:
        def observe(_: Any) -> Iterator[Any]:
            look = moment.now()
            for figure in look.figures():
                if figure.metric.name == metric.name:
                    labels = dict(zip(figure.metric.labels, figure.values, strict=True))
                    yield Observation(figure.value, {**look.labels, **labels})

        return observe

    for metric in ALL:
        if metric.classes:
            continue  # an observable histogram is none of its instruments; the count and the sum are counters
        called, unit = _called(metric)
        make = meter.create_observable_counter if metric.form.sort == "counter" else meter.create_observable_gauge
        make(called, callbacks=[observing(metric)], unit=unit, description=metric.form.about)


def _called(metric: Metric) -> tuple[str, str]:
    """Name, which keeps its unit as two may differ by that alone, and unit as OpenTelemetry has them."""
    name = metric.name.removesuffix("_total")
    return name, _UNITS.get(name.rpartition("_")[2], "")


class _Moment:
    """A look that several instruments share."""

    def __init__(self, watched: Watched) -> None:
        self._watched, self._lock = watched, threading.Lock()
        self._look: Look | None = None

    def now(self) -> Look:
        with self._lock:
            if self._look is None or time.monotonic() - self._look.at > FRESH:
                self._look = self._watched.look()
            return self._look
