"""Reporters: numbers of a run beside the loss, wherever people keep it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from kit.watched_run import Counting
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from dali_feed import watching
from dali_feed.errors import ConfigError


class Kept:
    """A reporter that keeps what it got."""

    def __init__(self) -> None:
        self.got: list[tuple[int, dict[str, float]]] = []

    def report(self, step: int, values: Mapping[str, float]) -> None:
        """Keep it."""
        self.got.append((step, dict(values)))


def test_a_report_every_so_many_batches() -> None:
    """Through epochs, from where a resume says; in between nobody looks. Batches pass as they are."""
    with Counting() as feed:
        kept = Kept()
        reporting = watching.Reporting(feed, kept, every=3, step=10)
        ids = [batch.ids.tolist() for _ in range(2) for batch in reporting]
        assert (len(reporting), len(ids), reporting.step) == (4, 8, 18)
        assert [step for step, _ in kept.got] == [12, 15, 18]
        assert feed.looks == 3
    with Counting() as plain:
        assert ids == [batch.ids.tolist() for _ in range(2) for batch in plain]


def test_what_is_reported() -> None:
    """Flat floats: totals, what they grew per second since the report before, and gauges; no partitions, no texts."""
    with Counting() as feed:
        kept = Kept()
        list(watching.Reporting(feed, kept, every=2))
    (_, first), (_, last) = kept.got
    assert (first["samples"], last["samples"]) == (8, 16)
    assert last["samples_per_second"] > 0
    assert last["step_wait_p99_seconds"] >= last["step_wait_p50_seconds"] > 0
    assert all(isinstance(value, float) for value in last.values())
    assert not [name for name in last if "partition" in name or "info" in name or "total" in name]


def test_a_reporter_that_raises_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """It is warned about once; the run and the other reporters go on."""

    class Full:
        def report(self, step: int, values: Mapping[str, float]) -> None:
            msg = f"no space at step {step}"
            raise OSError(msg)

    with Counting() as feed:
        kept = Kept()
        assert len(list(watching.Reporting(feed, [Full(), kept], every=1))) == 4
    assert len(kept.got) == 4
    assert [r.getMessage() for r in caplog.records] == [
        "Full: OSError: no space at step 1. It gets no more reports; the run goes on"
    ]


def test_what_is_no_reporter_is_refused(tmp_path: Path) -> None:
    """Where it is made, not at the first report."""
    with Counting() as feed:
        with pytest.raises(ConfigError, match=r"reporter: must have report\(step, values\); found int"):
            watching.Reporting(feed, 3)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=r"every=...\): must be an int of at least 1; found 0"):
            watching.Reporting(feed, Kept(), every=0)
    with pytest.raises(ConfigError, match=r"must write to something that has add_scalar\(\); found list"):
        watching.TensorBoard([])
    with pytest.raises(ConfigError, match="JsonLines: must be a file in a folder that exists"):
        watching.JsonLines(tmp_path / "none" / "a.jsonl")


def test_tensorboard(tmp_path: Path) -> None:
    """Scalars of a writer of TensorBoard can be read back from its file."""
    tensorboard = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from torch.utils.tensorboard import SummaryWriter

    with Counting() as feed, SummaryWriter(str(tmp_path)) as writer:
        list(watching.Reporting(feed, watching.TensorBoard(writer), every=2))
    events = tensorboard.EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("dali_feed/samples")] == [(2, 8), (4, 16)]


def test_wandb_like() -> None:
    """One `log` per report, with the step."""

    class Run:
        rows: list[tuple[int, dict[str, Any]]] = []  # noqa: RUF012  one run

        def log(self, values: dict[str, Any], step: int) -> None:
            self.rows.append((step, values))

    with Counting() as feed:
        list(watching.Reporting(feed, watching.Wandb(Run()), every=4))
    assert [(step, values["dali_feed/samples"]) for step, values in Run.rows] == [(4, 16)]


def test_json_lines_and_a_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A line of JSON and a line of a log per report; a file that is there grows."""
    path = tmp_path / "run.jsonl"
    for _ in range(2):
        with Counting() as feed, caplog.at_level(logging.INFO, "dali_feed"):
            list(watching.Reporting(feed, [watching.JsonLines(path), watching.Logging()], every=2))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["step"], row["samples"]) for row in rows] == [(2, 8), (4, 16)] * 2
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("step ")]
    assert len(lines) == 4
    assert lines[0].startswith("step 2: samples_per_second ")


def test_opentelemetry() -> None:
    """Instruments are asked when a reader collects, all at one look, and have the loader's labels."""
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    with Counting() as feed:
        watching.otel(feed, provider.get_meter("training"), name="train", job="r50")
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


class Writer:
    """Takes scalars as a SummaryWriter does."""

    def __init__(self) -> None:
        self.scalars: list[tuple[str, float, int]] = []

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        """Keep one."""
        self.scalars.append((tag, value, step))


def test_anything_with_add_scalar_is_a_tensorboard() -> None:
    """A scalar for each number, its name behind the prefix, at its step."""
    writer = Writer()
    watching.TensorBoard(writer, "mine/").report(7, {"wait": 0.5, "rate": 2.0})
    assert writer.scalars == [("mine/wait", 0.5, 7), ("mine/rate", 2.0, 7)]
