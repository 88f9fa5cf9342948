"""What is said of a topic and of how far its readers are: what will hurt a run, what will cost records."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from kit.broker import real
from kit.broker.handle import Kafka, in_transactions

from dali_feed import DataLoader
from dali_feed.cli.kafka import state_position
from dali_feed.columns import Bytes
from dali_feed.errors import SourceNotFoundError, StateError
from dali_feed.external_sources import KafkaTopic, Topics
from dali_feed.external_sources.kafka.cluster import Cluster as Questions
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.external_sources.kafka.lag import LagFacts, PartitionLag, Stand, lag_warnings, look, since
from dali_feed.external_sources.kafka.topics import PartitionFacts, TopicFacts, warnings
from dali_feed.testing import Message

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
        (dataclasses.replace(_facts(retention_bytes="12000000"), packing=0.01), []),
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


HOUR = 3600.0
NOW = 1_000_000.0


def options(kafka: Kafka) -> Connection:
    """The test's topic."""
    return Connection(kafka.topic, kafka.servers)


def facts(*partitions: PartitionLag, keeps: float | None = None, ends: dict[int, int] | None = None) -> LagFacts:
    """Of a group, or of a state with these ends."""
    stand = Stand("group 'g'", {}, {}, ends, "A")
    return LagFacts("t", "h:1", stand, "A", partitions, keeps, "", NOW)


def at(position: int | None, *, low: int = 0, high: int = 100, age: float = 60, **more: float | None) -> PartitionLag:
    """A partition of a group that stands there, whose next record is so old."""
    made = None if position is None else NOW - age
    one = PartitionLag(0, low, high, high, position, position, made, made)
    return dataclasses.replace(one, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (facts(at(40), keeps=24 * HOUR), []),
        (facts(at(40)), []),  # kept for ever
        (facts(at(None)), ["group 'g' has no position in t[0]"]),
        (facts(at(101)), ["past the end of t[0]", "truncated"]),
        (facts(at(40, low=50)), ["t[0]: offsets 40..49 are gone", "DataLostError"]),
        (facts(at(100, low=101, high=101)), ["t[0]: offsets 100..100 are gone"]),
        (facts(at(100, age=25 * HOUR), keeps=24 * HOUR), []),  # it has had all
        (facts(at(40, age=25 * HOUR), keeps=24 * HOUR), ["t[0]: the records from offset 40 on", "at any time"]),
        (facts(at(40, age=23.5 * HOUR), keeps=24 * HOUR), ["deleted in 30 min", "set retention.ms=-1"]),
        (facts(at(40, age=23.5 * HOUR, read=60.0), keeps=24 * HOUR), []),  # it will be through before
        (facts(at(40, age=20 * HOUR, read=0.001), keeps=24 * HOUR), ["takes 16 h 40 min", "deleted in 4 h"]),
        (facts(at(40, read=5.0, written=7.0)), ["falls behind: 7 records/s are written and 5 read"]),
        (facts(at(40, read=7.0, written=7.0)), []),
        (facts(at(100, need=0, oldest=NOW - 25 * HOUR), keeps=24 * HOUR, ends={0: 100}), ["offset 0 on", "any time"]),
        (facts(at(100, low=1, need=0), ends={0: 100}), ["offsets 0..0 are gone"]),  # a resume wants its whole snapshot
        (dataclasses.replace(facts(at(40)), topic_id="B"), ["whose id is A; found one of id B"]),
    ],
)
def test_what_will_cost_records(found: LagFacts, words: list[str]) -> None:
    """A warning says where, and what cures it; what is well, or not known, is none."""
    said = lag_warnings(found)
    assert len(said) == bool(words)
    assert all(word in said[0] for word in words)


def test_rates_are_of_two_looks() -> None:
    """Records per second; none of a position that went back, as at the beginning of an epoch."""
    first = facts(at(40), dataclasses.replace(at(40), partition=1))
    later = dataclasses.replace(
        facts(at(60, high=110), dataclasses.replace(at(0), partition=1), dataclasses.replace(at(0), partition=2)),
        at=NOW + 10,
    )
    rated = since(first, later)
    assert [(each.read, each.written) for each in rated.partitions] == [(2.0, 1.0), (None, 0.0), (None, None)]
    assert (rated.rate("read"), rated.rate("written")) == (2.0, 1.0)
    assert since(first, first).rate("read") is None


def test_a_record_waits_since_its_own_time(real_kafka: Kafka) -> None:
    """Behind by the time of the first record that was not read, holes in between or not; nothing of what has none."""
    topic, servers = real_kafka.topic, real_kafka.servers
    assert isinstance(real_kafka.cluster, real.Cluster)
    real_kafka.cluster.create(topic, 4, {"retention.ms": f"{7 * 24 * HOUR * 1000:.0f}"})
    producer, now = Producer({"bootstrap.servers": servers}), time.time()
    for partition in (0, 1):
        for n in range(10):
            producer.produce(topic, b"x", partition=partition, timestamp=int((now - 1000 + 10 * n) * 1000))
    producer.flush()
    in_transactions(real_kafka, topic, [Message(b"x", partition=2)] * 6, 3, lambda _: True)  # nothing to read
    real_kafka.delete_records(topic, 1, 5)
    Questions(options(real_kafka), group="g").commit({0: 4, 1: 2, 2: 0, 3: 0})
    found = look(options(real_kafka), "g")
    zero, one, two, three = found.partitions
    assert [each.lag for each in found.partitions] == [6, 8, 8, 0]
    assert found.seconds(zero) == pytest.approx(960, abs=30)
    assert found.seconds(one) == pytest.approx(950, abs=30)  # what is left of it
    assert (found.seconds(two), found.seconds(three)) == (None, 0.0)
    assert [each.headroom for each in (zero, one, three)] == [4, -3, 0]
    assert found.left(zero) == pytest.approx((found.keeps or 0) - 960, abs=30)
    assert (found.keeps, found.unknown) == (7 * 24 * HOUR, "")
    assert found.stand.state == "empty"
    assert len(found.topic_id) > 10
    (said,) = lag_warnings(found)
    assert f"{topic}[1]: offsets 2..4 are gone" in said
    with pytest.raises(SourceNotFoundError, match="did you mean"):
        look(options(real_kafka), "gg")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_state_of_a_group(real_kafka: Kafka, protocol: str) -> None:
    """Of either kind of group."""
    topic, group = real_kafka.create(real_kafka.topic, 2), f"g-{real_kafka.topic}"
    consumer = Consumer(
        {"bootstrap.servers": real_kafka.servers, "group.id": group, "log_level": 0}
        | {"group.protocol": protocol, "auto.offset.reset": "earliest"}
    )
    try:
        consumer.subscribe([topic])
        deadline = time.monotonic() + 60
        while not consumer.assignment() and time.monotonic() < deadline:
            consumer.poll(0.1)
        found = look(options(real_kafka), group)
        assert found.stand.state == "stable"
        assert found.lag is None
        assert "has no position" in lag_warnings(found)[0]
    finally:
        consumer.close()


@pytest.mark.parametrize("odd", [{"extent": -1}, {"extent": 1 << 100}, {"seed": -1}, {"window": 0}, {"lanes": "x"}])
def test_a_state_that_was_changed_has_no_lag(embedded: Kafka, tmp_path: Path, odd: dict[str, Any]) -> None:
    """Where its order is none that could be: a StateError of the file."""
    embedded.publish(embedded.topic, [(b"%d" % n, n) for n in range(40)], partitions=2)
    source = KafkaTopic(embedded.topic, embedded.servers, label=None)
    with DataLoader(source, 4, shuffle=True, columns={"value": Bytes("value")}, seed=1) as loader:
        next(iter(loader))
        state = json.loads(json.dumps(loader.state_dict()))
    file = tmp_path / "state.json"
    file.write_text(json.dumps(state))
    assert not isinstance(state_position(file, embedded.topic, embedded.servers), str)
    file.write_text(json.dumps(state | {"made_for": state["made_for"] | odd}))
    with pytest.raises(StateError, match="^state: must be the dict that"):
        state_position(file, embedded.topic, embedded.servers)
