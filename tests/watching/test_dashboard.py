"""The dashboard of docs/grafana asks for what an endpoint has, so that no panel of it is empty for ever."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from kit.broker.handle import Kafka
from kit.images import QUICK, jpeg
from kit.watched_run import series
from kit.web import Web

from dali_feed import Cache, DataLoader, Tuning
from dali_feed.endpoint import Look
from dali_feed.external_sources import KafkaTopic, ShardSet
from dali_feed.metrics import serve
from dali_feed.records.gauges import KafkaStats
from dali_feed.records.metrics import metrics
from dali_feed.testing import Message
from dali_feed.testing.shards import write_shard

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
