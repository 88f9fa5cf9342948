"""Insides that contract/topics/test_topics.py needs not: they go with what they test."""

from __future__ import annotations

import dataclasses

import pytest
from kit.broker.handle import Kafka

from dali_feed.external_sources import Topics
from dali_feed.external_sources.kafka.topics import PartitionFacts, TopicFacts, span_text, warnings

DAY = 86_400.0
GOOD = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "max.message.bytes": "8388608",
    "min.insync.replicas": "2",
    "retention.bytes": "-1",
    "retention.ms": "-1",
    "segment.bytes": "1073741824",
    "unclean.leader.election.enable": "false",
}


def _facts(lengths: tuple[int, ...] = (100, 100), replicas: int = 3, **settings: str) -> TopicFacts:
    """A topic written in the last hour, with good settings but for these ('_' for '.')."""
    now, nodes = 1_000_000.0, tuple(range(1, replicas + 1))
    return TopicFacts(
        "t", "id", "h:1", 3,
        tuple(PartitionFacts(p, 1, nodes, nodes, 0, n, now - 3600, now) for p, n in enumerate(lengths)),
        GOOD | {name.replace("_", "."): value for name, value in settings.items()}, "", 100_000, 0.0, now,
    )  # fmt: skip


def test_a_topic_is_kept_for_ever_and_takes_8_mb_unless_told(real_kafka: Kafka) -> None:
    """The defaults: 32 partitions, no retention, 8 MB records, as producers send them."""
    topics = Topics([real_kafka.servers])
    topics.create(real_kafka.topic)
    facts = topics.describe(real_kafka.topic)
    assert len(facts.partitions) == 32
    found = {name: facts.settings[name] for name in ("retention.ms", "max.message.bytes", "compression.type")}
    assert found == {"retention.ms": "-1", "max.message.bytes": "8388608", "compression.type": "producer"}
    assert facts.headroom is None
    assert [each.split(":")[0] for each in warnings(facts)] == ["replication 1"]
    topics.delete(real_kafka.topic)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (_facts(), []),
        (_facts(cleanup_policy="compact,delete"), ["cleanup.policy=compact"]),
        (_facts(retention_ms="7200000"), ["retention.ms=7200000: its oldest records may be deleted in 1 h"]),
        (_facts(retention_ms="60000"), ["retention.ms=60000: its oldest records may be deleted at any time"]),
        (_facts(retention_ms="60000", cleanup_policy="compact"), ["cleanup.policy=compact"]),
        (_facts(retention_ms="172800000"), []),
        (_facts(retention_bytes="12000000"), ["retention.bytes=12000000: its largest partition has about 1e+07"]),
        (_facts(retention_bytes="20000000"), []),
        (_facts(max_message_bytes="1048588"), ["max.message.bytes=1048588: larger records"]),
        (_facts(max_message_bytes="200000000"), ["max.message.bytes=200000000: a reader accepts"]),
        (_facts(compression_type="gzip"), ["compression.type=gzip"]),
        (_facts(replicas=1, min_insync_replicas="1"), ["replication 1"]),
        (_facts(min_insync_replicas="1"), ["min.insync.replicas=1: a record counts"]),
        (_facts(min_insync_replicas="3"), ["min.insync.replicas=3 of 3 replicas: one broker that is down"]),
        (_facts(min_insync_replicas="4"), ["min.insync.replicas=4 of 3 replicas: nothing can be written"]),
        (_facts(unclean_leader_election_enable="true"), ["unclean.leader.election.enable"]),
        (_facts((1000, 100, 0, 0)), ["skewed partitions: t[0] has 1,000 offsets, 3.6 times the mean, and 2 have none"]),
        (_facts((150, 100, 100)), []),
        (_facts((3, 0)), []),
        (dataclasses.replace(_facts(), settings={}, unknown="no rights"), []),
    ],
)
def test_what_would_hurt_a_run_is_said(facts: TopicFacts, said: list[str]) -> None:
    """One sentence per fault, with the setting first; nothing of what is well, or not known."""
    found = warnings(facts, run=DAY)
    assert len(found) == len(said), found
    assert all(text.startswith(begin) for text, begin in zip(found, said, strict=True)), found


def test_brokers_that_are_missing_are_said() -> None:
    """A partition without a leader, and one with a replica behind."""
    facts = _facts()
    first, second = facts.partitions
    parts = (dataclasses.replace(first, leader=-1), dataclasses.replace(second, in_sync=(1, 2)))
    leaderless, behind = warnings(dataclasses.replace(facts, partitions=parts))
    assert leaderless.startswith("partition 0 without a leader")
    assert behind.startswith("partition 1 with fewer replicas in sync")


def test_partitions_are_counted_against_gpus() -> None:
    """Fewer than two per GPU are too few, where the number of GPUs is said."""
    assert not warnings(_facts((9,) * 16), gpus=8)
    (said,) = warnings(_facts((9,) * 15), gpus=8)
    assert said.startswith("15 partitions for 8 GPUs: 2 to 4 per GPU")


def test_lengths_of_time() -> None:
    """Two units at most, none of them zero."""
    told = [span_text(seconds) for seconds in (0.2, 45, 60, 3661, 12_000, 86_400, 533_000)]
    assert told == ["0 s", "45 s", "1 min", "1 h 1 min", "3 h 20 min", "1 day", "6 days 4 h"]
