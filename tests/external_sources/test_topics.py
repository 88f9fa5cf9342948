"""Topics made, looked at and deleted; what of a topic would hurt a run."""

from __future__ import annotations

import dataclasses
import json
import time

import pytest
from broker.handle import Kafka
from broker.real import ALICE, PASSWORD, RealBroker, free_ports
from confluent_kafka import Producer

from dali_feed.errors import (
    ConfigError,
    SourceDeniedError,
    SourceError,
    SourceNotFoundError,
    SourceUnreachableError,
)
from dali_feed.external_sources import KafkaTopic, Topics
from dali_feed.external_sources.kafka.topics import PartitionFacts, TopicFacts, span_text, warnings
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


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"partitions": 0}, "partitions"),
        ({"partitions": 2.5}, "partitions"),
        ({"partitions": 1 << 30}, "partitions"),
        ({"replication": 0}, "replication"),
        ({"segment_bytes": -1}, "segment_bytes"),
        ({"max_message_bytes": True}, "max_message_bytes"),
        ({"min_insync_replicas": 0}, "min_insync_replicas"),
        ({"compression": "zip"}, "compression"),
        ({"retention": 0}, "retention"),
    ],
)
def test_arguments_that_cannot_be_are_refused_before_anything_is_asked(arguments: dict[str, object], word: str) -> None:
    """Each names itself; nobody listens at the address."""
    with pytest.raises(ConfigError, match=rf"^t: .*{word}|^t: .*partitions are supported"):
        Topics("127.0.0.1:1").create("t", **arguments)  # type: ignore[arg-type]


def test_wrong_addresses_and_options() -> None:
    """No address, no patience, an option that librdkafka lacks, no name; passwords are not in the repr."""
    with pytest.raises(ConfigError, match="servers"):
        Topics(" ")
    with pytest.raises(ConfigError, match="timeout"):
        Topics("h:1", timeout=0)
    with pytest.raises(ConfigError, match="topic"):
        Topics("h:1").describe("")
    with pytest.raises(ConfigError, match=r"no\.such\.option"):
        Topics("h:1", config={"no.such.option": "x"}).describe("t")
    assert "secret" not in repr(Topics("h:1", config={"sasl.password": "secret"}))


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
