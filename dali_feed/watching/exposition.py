"""Looks as Prometheus wants them, and as JSON.

The law: values are made when somebody asks. Of a loader that cannot be looked at `dali_feed_up` is 0 and there is
nothing else; no error gets out.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from dali_feed.watching.figures import BORDERS, PREFIX, Metric
from dali_feed.watching.names import DERIVED
from dali_feed.watching.watched import LABELS, Look

__all__ = ["VERSION", "Collector", "as_json", "exposed"]

VERSION = 1  # of the JSON


class Collector:
    """For a registry of prometheus_client: `collect` looks at every loader."""

    def __init__(self, looks: Callable[[], Sequence[Look]]) -> None:
        self._looks = looks

    def describe(self) -> Iterable[Any]:
        """Nothing: a registry would otherwise look when it is made."""
        return []

    def collect(self) -> Iterator[Any]:
        """A family for each metric that some loader has now."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        looks = self._looks()
        up = GaugeMetricFamily(f"{PREFIX}up", "1: the loader could be looked at.", labels=LABELS)
        families: dict[str, Any] = {}
        for look in looks:
            own = _encodable(look.labels.values())
            up.add_metric(own, float(look.error == ""))
            for figure in look.figures():
                metric = figure.metric
                family: Any = families.get(metric.name)
                if family is None:
                    kind: Any = CounterMetricFamily if metric.form.sort == "counter" else GaugeMetricFamily
                    kind = HistogramMetricFamily if metric.classes else kind
                    family = kind(metric.name, metric.form.about, labels=(*LABELS, *metric.labels))
                    families[metric.name] = family
                labels = (*own, *_encodable(figure.values))
                if metric.classes:
                    family.add_metric(labels, buckets=_buckets(figure.counts), sum_value=figure.value)
                else:
                    family.add_metric(labels, figure.value)
        yield up
        yield from families.values()


def _encodable(labels: Iterable[str]) -> tuple[str, ...]:
    """Names of folders, and variables of the environment, may be no UTF-8: what is not becomes a "?"."""
    return tuple(each.encode(errors="replace").decode() for each in labels)


def _buckets(counts: Sequence[int]) -> list[tuple[str, float]]:
    """Upper border and how many are at most so large, the last without a border."""
    found, seen = [], 0
    for k, count in enumerate(counts):
        seen += count
        found.append((repr(BORDERS[k]) if k < len(counts) - 1 else "+Inf", float(seen)))
    return found


def exposed(metric: Metric) -> tuple[str, ...]:
    """The names of the series that a metric has at the endpoint."""
    return tuple(f"{metric.name}_{end}" for end in ("bucket", "count", "sum")) if metric.classes else (metric.name,)


def as_json(looks: Sequence[Look]) -> str:
    """What `dali-feed watch` reads: a version, Unix seconds, and each loader with its stats as they are."""
    return json.dumps({"version": VERSION, "time": time.time(), "loaders": [_told(look) for look in looks]})


def _told(look: Look) -> dict[str, Any]:
    told = {name: getattr(look, name) for name in ("job", "loader", "rank", "at", "epoch", "error")}
    stats = look.stats
    if stats is None:
        return told | {"stats": None, "gpu": None, "verdict": ""}
    verdict = getattr(stats, "verdict", "")
    return told | {
        "stats": _plain(stats),
        "gpu": None if look.gpu is None else _plain(look.gpu),
        "verdict": str(getattr(verdict, "sentence", verdict) or ""),
    }


def _plain(value: Any) -> Any:
    """Dataclasses as dicts, with what is derived from their fields; numbers that JSON has not as null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        names = [each.name for each in dataclasses.fields(kind)] + list(DERIVED.get(kind.__name__, ()))
        return {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
