"""Stats as figures: fields that nobody has named appear by themselves, with the labels of what they are in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from dali_feed.feed.stats import Stats
from dali_feed.records.gauges import KafkaStats, PartitionStats, StorageMeter
from dali_feed.watching.exposition import Collector, exposed
from dali_feed.watching.figures import figures, metrics
from dali_feed.watching.watched import ALL, Look


@dataclass(frozen=True)
class StageStats:
    """A new kind of stats."""

    name: str
    delay: float
    threads: int | None = None


@dataclass(frozen=True)
class Event:
    """What happened once."""

    seconds: float
    cause: str = "no name"


@dataclass(frozen=True)
class NewStats:
    """Stats with what no file of the room knows."""

    novel: int = 3
    stages: tuple[StageStats, ...] = (StageStats("decode", 1.5, 4), StageStats("read", 0.5))
    inner: StageStats | None = field(default_factory=lambda: StageStats("alone", 2.0))
    events: tuple[Event, ...] = (Event(1.0),)
    state: str = "fine"
    sentence: str = "that is different every time, and so no label"
    absent: KafkaStats | None = None


def test_a_new_field_appears_by_itself() -> None:
    """Numbers, nested stats and short texts; what is None has no figure, events and sentences are none."""
    found = {(f.metric.name, f.metric.labels, f.values): f.value for f in figures(NewStats())}
    assert found == {
        ("dali_feed_novel", (), ()): 3,
        ("dali_feed_stage_delay", ("stage",), ("decode",)): 1.5,
        ("dali_feed_stage_threads", ("stage",), ("decode",)): 4,
        ("dali_feed_stage_delay", ("stage",), ("read",)): 0.5,
        ("dali_feed_inner_name_info", ("name",), ("alone",)): 1,
        ("dali_feed_inner_delay", (), ()): 2.0,
        ("dali_feed_state_info", ("state",), ("fine",)): 1,
    }


def test_what_can_come_is_known_before_it_comes() -> None:
    """Every figure is of a metric that the types alone give, so instruments can be made beforehand."""
    assert {f.metric for f in figures(NewStats())} <= set(metrics(NewStats))
    names = [metric.name for metric in ALL]
    assert len(names) == len(set(names))
    assert all(metric.name.endswith("_total") == (metric.form.sort == "counter") for metric in ALL)


def stats_of(**given: object) -> Stats:
    """Stats with zeros but for what is given."""
    zeros = {name: 0 for name, kind in Stats.__annotations__.items() if kind in ("int", "float")}
    return Stats(**{**zeros, "bottleneck": "", "recent_bad": (), **given})  # type: ignore[arg-type]


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
    found = collected(stats_of(storage=(meter.stats(),)))
    name = "dali_feed_storage_read_duration_seconds"
    assert found[f"{name}_count", ("local",)] == 4
    assert found[f"{name}_sum", ("local",)] == 5000.002001
    rising = [value for (series, _), value in found.items() if series == f"{name}_bucket"]
    assert rising == sorted(rising)
    assert found[f"{name}_bucket", ("local", "2e-06")] == 1
    assert found[f"{name}_bucket", ("local", "0.001024")] == 3
    assert found[f"{name}_bucket", ("local", "+Inf")] == 4
    whole = next(metric for metric in ALL if metric.classes)
    assert {re.sub(r"_(bucket|count|sum)$", "", series) for series in exposed(whole)} == {name}


def test_partitions_have_their_lag() -> None:
    """Lag and headroom, which are worked out, with the partition's number; what is not known has no series."""
    kafka = KafkaStats("t", (PartitionStats(7, position=10, end=25, low=4), PartitionStats(8)), at=1.0)
    found = collected(stats_of(kafka=kafka))
    assert found["dali_feed_kafka_partition_lag_records", ("7",)] == 15
    assert found["dali_feed_kafka_partition_headroom_records", ("7",)] == 6
    assert found["dali_feed_kafka_lag_records", ()] == 15
    assert ("dali_feed_kafka_partition_lag_records", ("8",)) not in found
    assert found["dali_feed_kafka_topic_info", ("t",)] == 1
