"""Insides that contract/cli/test_lag.py needs not: they go with what they test."""

from __future__ import annotations

import pytest
from kit.broker.handle import Kafka
from kit.command import Cli, assert_one_line, cli
from kit.images import QUICK, jpeg

from dali_feed import DataLoader
from dali_feed.cli.targets import topic_of
from dali_feed.external_sources import KafkaTopic
from dali_feed.testing import Message

__all__ = ["cli"]  # a fixture

LENGTHS = (12, 5, 0, 7)


def fill(kafka: Kafka) -> str:
    """A topic of unequal partitions, the third of them empty; its name for the command line."""
    records = [
        Message(jpeg(n), headers=(("label", b"%d" % n),), partition=p)
        for p, length in enumerate(LENGTHS)
        for n in range(length)
    ]
    kafka.publish(kafka.topic, records, partitions=len(LENGTHS))
    return f"kafka://{kafka.servers}/{kafka.topic}"


def test_as_people_read_it(cli: Cli, embedded: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line per partition; --strict ends with 1 where records are gone; --watch has rates, until Ctrl-C."""
    target = fill(embedded)
    source = KafkaTopic(embedded.topic, embedded.servers, group="training")
    with DataLoader(source, 6, device="cpu", tuning=QUICK) as loader:
        next(iter(loader))
        loader.commit()
    done = cli("lag", target, "--group", "training", "--strict")
    words = " ".join(done.out.split())
    assert (done.code, done.err) == (0, "")
    assert f"kafka topic {embedded.topic} at {embedded.servers}, group 'training'" in words
    assert "lag 18 offsets, " in words
    assert f"{embedded.topic}[2] 0 0 0 0 0 s 0" in words
    assert "read/s" not in words
    embedded.delete_records(embedded.topic, 0, 10)
    assert cli("lag", target, "--group", "training", "--strict").code == 1
    waits = iter((0.1, KeyboardInterrupt))

    def sleep(_: float) -> None:
        if next(waits) is KeyboardInterrupt:
            raise KeyboardInterrupt

    monkeypatch.setattr("dali_feed.cli.kafka.sleep", sleep)
    done = cli("lag", target, "--group", "training", "--watch", 0.1)
    words = " ".join(done.out.split())
    assert (done.code, done.err) == (130, "dali-feed: interrupted\n")
    assert words.count(f"kafka topic {embedded.topic}") == 2
    assert "read/s written/s" in words
    assert f"warning {embedded.topic}[0]: offsets 6..9 are gone" in words


@pytest.mark.parametrize("servers", ["h:abc", "h:70000", "h:1,", "h:1, :2"])
def test_addresses_that_cannot_be(cli: Cli, servers: str) -> None:
    """One line at once, where librdkafka would ask another port until the timeout; a last comma says nothing."""
    if servers != "h:1,":
        assert_one_line(cli("lag", f"kafka://{servers}/t", "--group", "g"), "target: servers must be", "host:port")
    else:
        assert topic_of("kafka://h:1,/t") == ("t", "h:1")
