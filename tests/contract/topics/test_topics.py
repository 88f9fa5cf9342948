"""Topics made, looked at and deleted; what of a topic would hurt a run."""

from __future__ import annotations

import json
import time

import pytest
from confluent_kafka import Producer
from kit.broker.handle import Kafka
from kit.broker.real import ALICE, PASSWORD, RealBroker, free_ports

from dali_feed.errors import (
    ConfigError,
    SourceDeniedError,
    SourceError,
    SourceNotFoundError,
    SourceUnreachableError,
)
from dali_feed.external_sources import KafkaTopic, Topics
from dali_feed.testing import Message

DAY = 86_400.0


def test_a_topic_is_made_as_asked_described_and_deleted(real_kafka: Kafka) -> None:
    """The settings that were asked for are the topic's; sizes, ends and times those of its records."""
    topics, topic = Topics(real_kafka.servers), real_kafka.topic
    topics.create(
        topic, 4, replication=1, retention=2 * DAY, segment_bytes=64 << 20, compression="zstd", min_insync_replicas=1
    )
    empty = topics.describe(topic)
    assert (empty.offsets, empty.size, empty.span, empty.headroom) == (0, 0, None, 2 * DAY)
    assert len(empty.partitions) == 4
    wanted = {
        "cleanup.policy": "delete",
        "compression.type": "zstd",
        "max.message.bytes": str(8 << 20),
        "min.insync.replicas": "1",
        "retention.ms": str(round(2 * DAY * 1000)),
        "segment.bytes": str(64 << 20),
    }
    assert {name: empty.settings[name] for name in wanted} == wanted
    begun = time.time()
    producer = Producer({"bootstrap.servers": real_kafka.servers})
    for n in range(60):
        producer.produce(topic, bytes(1000), partition=n % 3, timestamp=round((begun - DAY + n) * 1000))
    assert producer.flush(60) == 0
    facts = topics.describe(topic)
    assert [(each.start, each.end) for each in facts.partitions] == [(0, 20), (0, 20), (0, 20), (0, 0)]
    assert (facts.record_bytes, facts.absent, facts.size) == (1000, 0.0, 60_000)
    assert [each.first is None for each in facts.partitions] == [False, False, False, True]
    assert facts.span == pytest.approx((begun - DAY, begun - DAY + 59), abs=0.01)
    assert facts.headroom == pytest.approx(DAY, abs=60)
    assert json.loads(json.dumps(facts.to_json()))["partitions"][2]["end"] == 20
    assert facts.topic_id == KafkaTopic(topic, real_kafka.servers, label=None).snapshot().pin["id"]  # type: ignore[index]
    topics.delete(topic)
    with pytest.raises(SourceNotFoundError, match=f"^{topic}: "):
        topics.describe(topic)


def test_what_a_cluster_refuses_is_said_in_our_words(real_kafka: Kafka) -> None:
    """A name that is taken or cannot be, too many replicas, a setting that cannot be, no topic."""
    topics, topic = Topics(real_kafka.servers), real_kafka.topic
    topics.create(topic, 2)
    with pytest.raises(ConfigError, match=f"^{topic}: a new topic needs a new name"):
        topics.create(topic, 2)
    with pytest.raises(ConfigError, match=r"^a b: "):
        topics.create("a b", 2)
    with pytest.raises(ConfigError, match=rf"^{topic}2: creating it: .*refuses: .*[Rr]eplication factor.*take fewer"):
        topics.create(topic + "2", 2, replication=9)
    with pytest.raises(ConfigError, match=rf"^{topic}3: creating it: .*segment\.bytes"):
        topics.create(topic + "3", 2, segment_bytes=1)
    for act in (topics.delete, topics.describe):
        with pytest.raises(SourceNotFoundError, match=f"did you mean {topic}"):
            act(topic + "x")
    topics.delete(topic)


def test_a_cluster_that_is_not_there_is_named() -> None:
    """After the timeout each says the address and what the connection said."""
    servers = f"127.0.0.1:{free_ports(1)[0]}"
    topics = Topics(servers, timeout=0.7)
    for act in (topics.describe, topics.create, topics.delete):
        with pytest.raises(SourceUnreachableError, match=f"{servers} did not answer for .*Connection refused"):
            act("t")


def test_rights_that_are_missing_are_named(real_broker: RealBroker) -> None:
    """A wrong password, and a user who may do nothing: SourceDeniedError."""
    if not isinstance(real_broker, RealBroker):
        pytest.skip("the given broker has users of its own")
    wrong = Topics(real_broker.sasl_servers, config={**ALICE, "sasl.password": "wrong"}, timeout=10)
    alice = Topics(real_broker.sasl_servers, config={**ALICE, "sasl.password": PASSWORD}, timeout=10)
    for act in (wrong.create, wrong.describe):
        with pytest.raises(SourceDeniedError, match="Authentication"):
            act("forbidden")
    with pytest.raises(SourceDeniedError, match=r"^forbidden: creating it needs the right Create"):
        alice.create("forbidden")
    with pytest.raises(SourceDeniedError, match="^forbidden: "):
        alice.describe("forbidden")


def test_the_embedded_broker_is_described_and_makes_no_topics(embedded: Kafka) -> None:
    """It knows partitions, ends and sizes; it has no settings to tell, and an admin client is not answered."""
    embedded.publish(embedded.topic, [Message(bytes(500), partition=1)] * 10, partitions=2)
    topics = Topics(embedded.servers, timeout=10)
    facts = topics.describe(embedded.topic)
    assert [(each.start, each.end) for each in facts.partitions] == [(0, 0), (0, 10)]
    assert (facts.record_bytes, facts.topic_id, dict(facts.settings), facts.span) == (500, "", {}, None)
    assert "does not answer questions about settings" in facts.unknown
    with pytest.raises(SourceError, match=r"Broker\.create"):
        topics.create("other")


@pytest.mark.parametrize("codec", ["zstd", "gzip", "none"])
def test_what_lies_on_disk_is_what_was_packed(kafka: Kafka, codec: str) -> None:
    """Two megabytes in some kilobytes are called that, and how they were compressed."""
    topic = kafka.create(kafka.topic, 2)
    producer = Producer({"bootstrap.servers": kafka.servers, "compression.codec": codec, "linger.ms": 1000})
    for n in range(2000):
        producer.produce(topic, b'{"name": "x%05d", "value": "aaaaaaaa"}' % n * 30, partition=n % 2)
    assert producer.flush(60) == 0
    facts = Topics(kafka.servers).describe(topic)
    assert facts.codecs == (codec if codec != "none" else "uncompressed",)
    assert facts.size == pytest.approx(2_280_000, rel=0.1)
    assert facts.stored == pytest.approx(facts.size, rel=0.1) if codec == "none" else facts.stored < facts.size / 20
