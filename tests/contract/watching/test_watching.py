"""The endpoint of a run, and its numbers in other tools: what it says, what it costs, and that it harms no run."""

from __future__ import annotations

import gc
import re
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from kit.images import QUICK, labelled
from kit.inside import Corrupt
from kit.watched_run import Counting, get, look, series
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families

from dali_feed import BadRecords, DataLoader, metrics
from dali_feed.errors import ConfigError
from dali_feed.external_sources import KafkaStream
from dali_feed.testing import ScriptedSource

RANK = (("rank", "0"),)


def loader_of(items: list[Any], **options: Any) -> DataLoader:
    """Of a source in memory."""
    return DataLoader(ScriptedSource(items), 4, device="cpu", tuning=QUICK, **options)


def test_a_scrape_says_what_stats_say() -> None:
    """At the moment of the request, under the loader's rank; of a stream before its first batch too."""
    bad = [*labelled(30), Corrupt(), Corrupt()]
    with loader_of(bad, bad=BadRecords()) as loader, metrics.serve(loader) as at:
        assert series(at.url)["dali_feed_samples_total", RANK] == 0
        assert sum(1 for _ in loader) == 8
        found, stats = series(at.url), loader.stats()
    assert found["dali_feed_samples_total", RANK] == stats.samples == 32
    assert found["dali_feed_bad_records_total", RANK] == stats.bad == 2
    assert found["dali_feed_up", RANK] == 1
    assert found["dali_feed_bottleneck_info", (("bottleneck", stats.bottleneck), *RANK)] == 1
    stream = KafkaStream("t", "127.0.0.1:9", timeout=1)
    with DataLoader(stream, 4, device="cpu") as live, metrics.serve(live) as at:
        assert series(at.url)["dali_feed_samples_total", RANK] == 0


def test_names_are_as_prometheus_wants_them() -> None:
    """Counters alone end in _total, units are whole words at the end, each metric has its line of help."""
    with Counting() as feed, metrics.serve(feed) as at:
        list(feed)
        _, text = get(f"{at.url}/metrics")
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    for family in families:
        assert re.fullmatch(r"dali_feed_[a-z][a-z0-9_]*", family.name)
        assert family.documentation.endswith(".")
        assert (family.type == "counter") == family.samples[0].name.endswith("_total")
        assert not re.search(r"_(ms|s|mb|kb|percent)(_|$)", family.name)


def test_nothing_is_done_between_two_requests() -> None:
    """A run of several epochs is not looked at once; a request looks once, at each page."""
    with Counting() as feed, metrics.serve(feed) as at:
        for _ in range(3):
            list(feed)
        assert feed.looks == 0
        get(f"{at.url}/metrics")
        assert feed.looks == 1
        get(f"{at.url}/")
        assert feed.looks == 1
        get(f"{at.url}/stats.json")
        assert feed.looks == 2


def test_requests_while_the_loader_runs_and_closes() -> None:
    """Several who ask without a pause get whole answers; the run gets its batches, and its end."""
    feed, stop, answers = Counting(64), threading.Event(), list[int]()
    with metrics.serve(feed) as at:

        def ask() -> None:
            while not stop.is_set():
                answers.append(get(f"{at.url}/metrics")[0])

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for each in threads:
            each.start()
        for _ in range(4):
            assert len(list(feed)) == 16
        feed.close()
        assert series(at.url)["dali_feed_batches_total", RANK] == 64
        stop.set()
        for each in threads:
            each.join()
    assert set(answers) == {200}


def test_a_look_that_fails_is_the_askers_business() -> None:
    """The answer says that the loader could not be looked at, and why; nothing is raised anywhere."""

    class Failing(Counting):
        def stats(self) -> Any:
            msg = "no figures today"
            raise RuntimeError(msg)

    with Failing() as feed, metrics.serve(feed) as at:
        assert series(at.url) == {("dali_feed_up", RANK): 0}
        assert look(at.url)[0]["error"] == "RuntimeError: no figures today"
        assert len(list(feed)) == 4


def test_a_loader_that_is_gone() -> None:
    """The endpoint keeps no loader alive, and says that it has none."""
    loader = loader_of(labelled(4))
    with metrics.serve(loader) as at:
        assert get(f"{at.url}/metrics")[0] == 200
        del loader
        gc.collect()
        assert series(at.url) == {}
        assert get(f"{at.url}/elsewhere")[0] == 404


def test_several_loaders_are_told_apart() -> None:
    """By the names that they are given, under the job's."""
    with Counting() as a, Counting() as b, metrics.serve({"train": a, "val": b}, job="r50") as at:
        list(b)
        found = series(at.url)
    labels = [("job", "r50"), ("rank", "0")]
    assert found["dali_feed_samples_total", tuple(sorted([*labels, ("loader", "train")]))] == 0
    assert found["dali_feed_samples_total", tuple(sorted([*labels, ("loader", "val")]))] == 16


@pytest.mark.parametrize("text", ['a"b\nc\\d', "\udcff", "é"])
def test_any_text_may_be_a_label(text: str) -> None:
    """Quotes, ends of lines, and a name that is no UTF-8, in which alone a letter is replaced."""
    with Counting() as feed, metrics.serve({text: feed}, job=text) as at:
        (labels,) = [dict(labels) for name, labels in series(at.url) if name == "dali_feed_up"]
    assert labels == {"job": text.replace("\udcff", "?"), "loader": text.replace("\udcff", "?"), "rank": "0"}


@pytest.mark.parametrize("version", ["abc", '"2.0.0"', "1.0.0"])
def test_any_header_is_answered(version: str) -> None:
    """A version of the text that nobody has is answered with the plain one."""
    with Counting() as feed, metrics.serve(feed) as at:
        asked = {"Accept": f"application/openmetrics-text; version={version}"}
        request = urllib.request.Request(f"{at.url}/metrics", headers=asked)  # noqa: S310  our own endpoint
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            assert b"dali_feed_up{" in answer.read()


def test_what_cannot_be_served_is_refused() -> None:
    """An object without stats, no object, a name that is no text, and ports and addresses that are none."""
    for wrong in ({}, {1: Counting()}):
        with pytest.raises(ConfigError, match="must be"):
            metrics.serve(wrong)  # type: ignore[arg-type]
    for address in ("", None):
        with pytest.raises(ConfigError, match="address: must be the address of a network interface"):
            metrics.serve(Counting(), address=address)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="loader: must be a DataLoader or a Feed; found int"):
        metrics.serve(3)  # type: ignore[arg-type]
    with Counting() as feed, metrics.serve(feed) as at:
        with pytest.raises(ConfigError, match=r"port: must be an int in 0\.\.65535; found 70000"):
            metrics.serve(feed, 70_000)
        with pytest.raises(ConfigError, match=f"127.0.0.1:{at.port}: must be an address of this machine"):
            metrics.serve(feed, at.port)
    at.close()


def test_an_address_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an error where the loader is made, as any option is."""
    monkeypatch.setenv("DALI_FEED_METRICS", "yes")
    with pytest.raises(ConfigError, match="DALI_FEED_METRICS: must be host:port, such as 127.0.0.1:9400; found 'yes'"):
        loader_of(labelled(4))


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
