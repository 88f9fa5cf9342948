"""The table of numbers, the dashboard that asks for them, and the endpoint of a process by its environment."""

from __future__ import annotations

import itertools
import json
import logging
import re
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from kit.broker.handle import Kafka
from kit.images import QUICK, jpeg, labelled
from kit.watched_run import look, series
from kit.web import Web

from dali_feed import Cache, DataLoader, Tuning
from dali_feed import metrics as module
from dali_feed.external_sources import KafkaTopic, ShardSet
from dali_feed.feed.stats import CpuStats, StageStats, Stats, WaitCause
from dali_feed.metrics import Collector, Look, serve
from dali_feed.packing.sinks import write_shard
from dali_feed.records.gauges import BrokerStats, KafkaStats, PartitionStats, StorageMeter
from dali_feed.records.metrics import counted, counter, derived, gauge, key, merged, metrics, nested, since, text
from dali_feed.testing import Message, ScriptedSource


@dataclass(frozen=True)
class Part:
    """A kind of stats that no file of the product knows."""

    name: str = key("which", "part")
    delay: float = gauge("how late it is", "delay_seconds", default=0.0)
    threads: int | None = gauge("how many", default=None)


@dataclass(frozen=True)
class NewStats:
    """Stats with all that a field can be."""

    novel: int = counter("counted", default=3)
    parts: tuple[Part, ...] = nested(Part, "parts", default=(Part("decode", 1.5, 4), Part("read", 0.5)))
    inner: Part | None = nested(Part, "one of them", default=Part("alone", 2.0))
    state: str = text("of the whole", default="not so fine")
    sentence: str = text("kept from tools", "", default="that is different every time, and so no label")
    kafka: KafkaStats | None = nested(KafkaStats, "none")

    @property
    @derived("twice_records")
    def twice(self) -> int:
        """Two for one."""
        return 2 * self.novel


def test_one_line_makes_a_metric() -> None:
    """Numbers, derived ones, nested stats and texts; what is not known, and what has no name, has no sample."""
    found = {
        (metric.name, metric.labels, each.labels): each.value
        for metric in metrics(NewStats)
        for each in metric.points(NewStats())
    }
    assert found == {
        ("dali_feed_novel_total", (), ()): 3,
        ("dali_feed_part_delay_seconds", ("part",), ("decode",)): 1.5,
        ("dali_feed_part_threads", ("part",), ("decode",)): 4,
        ("dali_feed_part_delay_seconds", ("part",), ("read",)): 0.5,
        ("dali_feed_inner_delay_seconds", ("part",), ("alone",)): 2.0,
        ("dali_feed_state_info", ("state",), ("not so fine",)): 1,
        ("dali_feed_twice_records", (), ()): 6,
    }
    assert next(each.help for each in metrics(NewStats) if each.name == "dali_feed_twice_records") == "Two for one."


def collected(stats: Stats) -> dict[tuple[str, Sequence[str]], float]:
    """What a scrape of it gives: (series, values of its own labels) -> value."""
    families = Collector(lambda: [Look("", "", 0, 0.0, stats=stats)]).collect()
    return {
        (sample.name, tuple(v for k, v in sample.labels.items() if k not in ("job", "loader", "rank"))): sample.value
        for family in families
        for sample in family.samples
    }


def test_reads_are_a_histogram() -> None:
    """Of a store its classes with ascending counts up to all of them, how many reads there were, how long they took."""
    meter = StorageMeter("local")
    for seconds in (1e-6, 0.001, 0.001, 5000.0):
        meter.read(seconds, 10)
    found = collected(Stats(storage=(meter.stats(),)))
    name = "dali_feed_storage_read_duration_seconds"
    assert found[f"{name}_count", ("local",)] == 4
    assert found[f"{name}_sum", ("local",)] == 5000.002001
    rising = [value for (series, _), value in found.items() if series == f"{name}_bucket"]
    assert rising == sorted(rising)
    assert found[f"{name}_bucket", ("local", "2e-06")] == 1
    assert found[f"{name}_bucket", ("local", "0.001024")] == 3
    assert found[f"{name}_bucket", ("local", "+Inf")] == 4


def test_partitions_have_their_lag() -> None:
    """Lag and headroom, which are worked out, with the partition's number; what is not known has no series."""
    kafka = KafkaStats("t", (PartitionStats(7, position=10, end=25, low=4), PartitionStats(8)), at=1.0)
    found = collected(Stats(kafka=kafka))
    assert found["dali_feed_kafka_partition_lag_records", ("7",)] == 15
    assert found["dali_feed_kafka_partition_headroom_records", ("7",)] == 6
    assert found["dali_feed_kafka_lag_records", ()] == 15
    assert ("dali_feed_kafka_partition_lag_records", ("8",)) not in found
    assert found["dali_feed_kafka_topic_info", ("t",)] == 1


def test_a_mean_is_that_of_all_answers_however_readers_are_grouped() -> None:
    """A mean of means of pairs would be 0.5 s here; each reader counts as often as it was answered."""
    parts = [KafkaStats("t", brokers=(BrokerStats("b/1", "UP", 1, seconds),)) for seconds in (0.1, 0.1, 0.1, 0.9)]
    for a, b, c, d in itertools.permutations(parts):
        assert merged([merged([merged([a, b]), c]), d]).brokers[0].latency == pytest.approx(0.3)


def test_what_a_closed_reader_counted_stays() -> None:
    """Nothing of how things are now, but offsets, which are the partition's and not the reader's."""
    partition = PartitionStats(0, 5, 9, 1, 10, 100, 50.0, 1, 2.0)
    left = counted(KafkaStats("t", (partition,), (BrokerStats("b/1", "UP", 2, 0.2, 0.2, 0.1, 4, 1),), 3, 7, 8, 2, 20.0))
    assert left == KafkaStats(
        "t",
        (replace(partition, rate=None, seconds=None),),
        (BrokerStats("b/1", "", fetches=4, disconnects=1),),
        readers=0,
        rebalances=2,
    )


def test_stats_since_a_look_are_those_of_the_time_between() -> None:
    """Counts are differences, also of stages, causes and means; what goes up and down is as at the second look."""
    before = Stats(
        samples=10,
        slab_peak=5,
        stages=(StageStats("read", 2, 10, 1.0, 2.0, 3.0, 4.0),),
        cpu=CpuStats(4, 8.0, 4.0),
        wait_causes=(WaitCause("source", 9.0),),
    )
    after = replace(
        before,
        samples=110,
        slab_peak=7,
        stages=(StageStats("read", 3, 110, 2.0, 4.0, 2.5, 9.0), StageStats("train", 1, 5)),
        cpu=CpuStats(4, 9.0, 6.0),
        wait_causes=(WaitCause("engine", 2.0), WaitCause("source", 9.5)),
    )
    found = since(before, after)
    assert (found.samples, found.slab_peak) == (100, 7)
    assert found.stages == (StageStats("read", 3, 100, 1.0, 2.0, 0.0, 5.0), StageStats("train", 1, 5))
    assert found.stages[0].rate == 60
    assert found.cpu is not None
    assert found.cpu.busy == 0.5
    assert found.wait_causes == (WaitCause("engine", 2.0), WaitCause("source", 0.5))
    assert since(None, after) is after


DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana" / "dali_feed.json"


def expressions() -> list[str]:
    """Every query of the dashboard."""
    found: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return [target["expr"] for panel in found["panels"] for target in panel["targets"]]


def _measured(kafka: KafkaStats | None) -> bool:
    """Whether its consumers have said all that they say."""
    if kafka is None or not kafka.brokers or not kafka.partitions:
        return False
    latencies = [each.latency_p99 for each in kafka.brokers]
    return any(each is not None for each in latencies) and kafka.partitions[0].headroom is not None


def test_every_metric_of_the_dashboard_is_there(embedded: Kafka, tmp_path: Path) -> None:
    """On the endpoint of a run over a topic, and over remote shards with a cache; those of a GPU are there by name."""
    write_shard(tmp_path / "a.tar", [(jpeg(n), 1) for n in range(16)])
    embedded.publish(embedded.topic, [Message(jpeg(n), partition=0) for n in range(16)], partitions=1)
    config = {"statistics.interval.ms": 10}
    topic = KafkaTopic(embedded.topic, embedded.servers, label=None, config=config)
    cached = Tuning(threads=1, readers=1, cache=Cache("10MB"))
    with (
        DataLoader(topic, 4, device="cpu", tuning=QUICK) as streamed,
        Web({"a.tar": (tmp_path / "a.tar").read_bytes()}) as web,
        DataLoader(ShardSet(f"{web.url}/a.tar"), 4, device="cpu", tuning=cached) as read,
        serve({"topic": streamed, "shards": read}) as at,
    ):
        list(read)
        while not _measured(streamed.stats().kafka):
            list(streamed)
        here = {name for name, _ in series(at.url)}
    here |= {metric.name for metric in metrics(Look) if metric.name.startswith("dali_feed_gpu_")}
    asked = {name for each in expressions() for name in re.findall(r"dali_feed_\w+", each)}
    assert len(asked) > 20
    assert asked - here == set()
    assert all("{job=" in each for each in expressions())


def loader_of(items: list[Any], **options: Any) -> DataLoader:
    """Of a source in memory."""
    return DataLoader(ScriptedSource(items), 4, device="cpu", tuning=QUICK, **options)


@pytest.fixture
def _own_endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process's endpoint begins anew, and is closed."""
    shared = module._Shared()
    monkeypatch.setattr(module, "_shared", shared)
    yield
    if shared.endpoint is not None:
        shared.endpoint.close()


@pytest.mark.usefixtures("_own_endpoint")
def test_by_environment(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """DALI_FEED_METRICS serves every DataLoader of the process, numbered; without it no port is opened."""
    loader_of(labelled(4)).close()
    assert module._shared.endpoint is None
    monkeypatch.setenv("DALI_FEED_METRICS", "127.0.0.1:0")
    with caplog.at_level(logging.INFO, "dali_feed"), loader_of(labelled(4)) as train, loader_of(labelled(8)) as val:
        url = re.search(r"metrics at (\S+)/metrics", caplog.text)
        assert url
        list(val)
        assert [(each["loader"], each["stats"]["samples"]) for each in look(url[1])] == [("0", 0), ("1", 8)]
        assert train.rank == 0


@pytest.mark.usefixtures("_own_endpoint")
def test_each_rank_has_a_port_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank is added to the port; one that is taken costs a warning, and the run goes on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("DALI_FEED_METRICS", f"127.0.0.1:{port - 1}")
        with loader_of(labelled(8), rank=1, world_size=2, lanes=2) as loader:
            assert module._shared.endpoint is None
            assert len(list(loader)) == 1
