"""Numbers of a run beside the loss, and as OpenTelemetry's instruments."""

from __future__ import annotations

import re
from pathlib import Path

from kit.watched_run import Counting
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from dali_feed import metrics

PAGE = Path(__file__).parents[3] / "docs" / "watching.md"


def test_scalars_are_flat() -> None:
    """Totals, what they grew by per second since the stats before, and gauges; no partitions, no texts."""
    with Counting() as feed:
        before = feed.stats()
        list(feed)
        first = feed.stats().scalars()
        last = feed.stats().scalars(before)
    assert (first["samples"], last["samples"], last["batches"]) == (16, 16, 4)
    assert "samples_per_second" not in first
    assert last["samples_per_second"] > 0
    assert last["step_wait_p99_seconds"] >= last["step_wait_p50_seconds"] > 0
    assert last["stage_working_seconds/engine"] > 0
    assert all(isinstance(value, float) for value in last.values())
    assert not [name for name in last if "partition" in name or "info" in name or "total" in name]


class Writer:
    """Takes scalars as a SummaryWriter does."""

    def __init__(self) -> None:
        self.scalars: dict[str, list[tuple[int, float]]] = {}

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        """Keep one."""
        self.scalars.setdefault(tag, []).append((step, value))


def test_the_lines_of_the_page_write_scalars() -> None:
    """What docs/watching.md shows: a scalar for each number, at its step."""
    (code,) = [each for each in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "scalars(" in each]
    writer = Writer()
    with Counting() as feed:
        exec(code, {"loader": feed, "writer": writer, "every": 2})  # noqa: S102  our own page
    assert writer.scalars["dali_feed/samples"] == [(2, 8), (4, 16)]
    assert [step for step, _ in writer.scalars["dali_feed/samples_per_second"]] == [2, 4]


def test_opentelemetry() -> None:
    """Instruments are asked when a reader collects, all at one look, and have the loader's labels."""
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    with Counting() as feed:
        metrics.otel(feed, provider.get_meter("training"), name="train", job="r50")
        list(feed)
        assert feed.looks == 0
        data = reader.get_metrics_data()
        assert feed.looks == 1
    assert data is not None
    found = {m.name: m for m in data.resource_metrics[0].scope_metrics[0].metrics}
    (point,) = found["dali_feed_samples"].data.data_points
    assert point.value == 16  # type: ignore[union-attr]
    assert dict(point.attributes or {}) == {"job": "r50", "loader": "train", "rank": "0"}
    assert (found["dali_feed_engine_wait_seconds"].unit, found["dali_feed_slab_peak_bytes"].unit) == ("s", "By")
    provider.shutdown()
