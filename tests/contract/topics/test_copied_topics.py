"""A topic that is copied: every record is there as it was, also one that is hardly one."""

from __future__ import annotations

from typing import Any

import pytest
from kit.broker.handle import Kafka

from dali_feed.errors import ConfigError
from dali_feed.external_sources import Claim, KafkaTopic, Producer
from dali_feed.testing import Message

ODD = [
    Message(b"value", b"k", (("a", b"1"),), 0),
    Message(None, b"k", (("why", b"\xff"),), 0),  # deletes k where the topic is compacted
    Message(b"", None, (), 0),
    Message(None, None, (), 0),
    Message(b"\x00", b"\xff\xfe", (("", b""), ("a", b"1"), ("a", b"2")), 0),
]


def records_of(kafka: Kafka, topic: str) -> list[tuple[Any, ...]]:
    """Value, key and headers of a topic's records."""
    source = KafkaTopic(topic, kafka.servers)
    found = [source.original(0, n) for n in range(len(ODD))]
    return [(each.value, each.key, tuple(each.headers)) for each in found if each]


@pytest.mark.parametrize("options", [{}, {"compression": "lz4"}, {"map": lambda value: value}, {"claim": 1}])
def test_tombstones_are_copied(embedded: Kafka, tmp_path: Any, options: dict[str, Any]) -> None:
    """A record without a value is not one of no bytes: a copy that left it out would bring its key back."""
    embedded.publish(embedded.topic, ODD, 1)
    to = embedded.create(f"{embedded.topic}-to")
    options = {"claim": Claim(tmp_path, 100)} if "claim" in options else options
    mapped = {"map": options.pop("map")} if "map" in options else {}
    source = KafkaTopic(embedded.topic, embedded.servers)
    done = Producer(to, embedded.servers, **options).run(source, copy=True, **mapped)
    assert (done.tally.records, done.tally.failed) == (len(ODD), 0)
    assert sorted(records_of(embedded, to), key=repr) == sorted(records_of(embedded, embedded.topic), key=repr)
    assert sorted((m.value, m.key, m.headers) for m in ODD if m.value) == sorted(
        each for each in records_of(embedded, to) if each[0]
    )
    assert [each[0] for each in records_of(embedded, to)].count(None) == 2


def test_a_copy_maps_no_tombstone(embedded: Kafka) -> None:
    """`map=` is of values; where there is none it is not called."""
    embedded.publish(embedded.topic, ODD, 1)
    to = embedded.create(f"{embedded.topic}-to")
    source = KafkaTopic(embedded.topic, embedded.servers)
    Producer(to, embedded.servers).run(source, copy=True, map=lambda value: b"<" + value + b">")
    found = [each[0] for each in records_of(embedded, to)]
    assert sorted(value for value in found if value is not None) == [b"<\x00>", b"<>", b"<value>"]
    assert found.count(None) == 2


def test_images_alone_have_no_tombstones(embedded: Kafka) -> None:
    """Where payloads are written anew a record without one is a failure, with its coordinates."""
    embedded.publish(embedded.topic, ODD[:2], 1)
    to = embedded.create(f"{embedded.topic}-to")
    source = KafkaTopic(embedded.topic, embedded.servers, label=None)
    done = Producer(to, embedded.servers).run(source, label=None)
    ((reason, failure),) = done.tally.failures.items()
    assert "tombstone" in reason
    assert "[0]@1: " in failure.first[0]


@pytest.mark.parametrize(
    ("option", "value", "found"),
    [
        ("headers", 5, "headers: must be different names of members"),
        ("claim", "/folder", "claim: must be a Claim or None"),
        ("map", 5, "map must be a function of bytes"),
        ("journal", 5, "journal: must be a path"),
    ],
)
def test_options_of_another_kind(option: str, value: Any, found: str) -> None:
    """An error that names the option, before anything is asked of a broker."""
    with pytest.raises(ConfigError, match=found):
        Producer("to", "localhost:1", **({option: value} if option == "claim" else {})).run(
            KafkaTopic("t", "localhost:1"), **({} if option == "claim" else {option: value})
        )
