"""`dali-feed topic`: what people read, and how it ends."""

from __future__ import annotations

import json
import re

from kit.broker.handle import Kafka
from kit.command import Cli, assert_one_line, cli

from dali_feed.testing import Message

__all__ = ["cli"]  # a fixture


def test_a_topic_from_the_command_line(cli: Cli, real_kafka: Kafka) -> None:
    """Made with the advice, described with its warnings."""
    target = f"kafka://{real_kafka.servers}/{real_kafka.topic}"
    done = cli("topic", "create", target, "--partitions", 3, "--retention", "2h", "--max-message", "1MB")
    assert (done.code, done.err) == (0, "")
    assert f"{real_kafka.topic}: made, with 3 partitions\n  2 to 4 partitions per GPU" in done.out
    real_kafka.publish(real_kafka.topic, [Message(bytes(1000), partition=k % 3) for k in range(30)])
    done = cli("topic", "describe", target, "--gpus", 2)
    assert done.code == 0
    words = " ".join(done.out.split())
    for text in (
        f"kafka topic {real_kafka.topic} at {real_kafka.servers}",
        "partitions 3, replication 1, 1 broker",
        "records 30 offsets, about 30.0 kB (1,000 bytes each)",
        "compression producer",
        "largest record 1.0 MB (1000000)",
        f"{real_kafka.topic}[2] 0 10 10 10.0 kB 1 1 of 1",
        "warning retention.ms=7200000: ",
        "warning replication 1: ",
        "warning max.message.bytes=1000000: ",
        "warning 3 partitions for 2 GPUs: ",
    ):
        assert text in words
    assert re.search(
        "retention 2 h; the oldest may be deleted in (2 h|1 h 5. min)", words
    )  # they are as old as the test
    assert "warning retention" not in cli("topic", "describe", target, "--run", "30m").out
    assert cli("topic", "describe", target, "--strict").code == 1
    told = json.loads(cli("topic", "describe", target, "--json").out)
    assert (told["offsets"], told["bytes"], len(told["warnings"])) == (30, 30_000, 3)


def test_a_broker_that_makes_no_topics_is_told(cli: Cli, embedded: Kafka) -> None:
    """And so is a topic that is not there."""
    assert_one_line(cli("topic", "create", f"kafka://{embedded.servers}/x"), "x: an admin client needs a controller")
    missing = f"kafka://{embedded.servers}/{embedded.topic}-missing"
    assert_one_line(cli("topic", "describe", missing), embedded.topic, "there is none")


def test_the_embedded_broker_is_described(cli: Cli, embedded: Kafka) -> None:
    """What it knows is shown, and why the rest is not."""
    embedded.publish(embedded.topic, [Message(bytes(500))] * 10, partitions=2)
    done = cli("topic", "describe", f"kafka://{embedded.servers}/{embedded.topic}")
    words = " ".join(done.out.split())
    assert done.code == 0
    assert "records 10 offsets, about 5,000 bytes (500 bytes each)" in words
    assert "settings not known: this broker does not answer questions about settings" in words
