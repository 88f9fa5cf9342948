"""Options and beginnings that people give by mistake are refused by name, or mean what they say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kit.broker.handle import Kafka

from dali_feed.errors import ConfigError
from dali_feed.external_sources import KafkaTopic, Producer, Secret
from dali_feed.external_sources.kafka.stream import checked_start

PEM = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQ\n-----END PRIVATE KEY-----\n"


def test_a_time_before_all_records_begins_with_the_first() -> None:
    """As milliseconds -1 is the end of a partition to Kafka, and -2 its beginning."""
    first = datetime(1970, 1, 1, tzinfo=UTC)
    for start in (
        first,
        first - timedelta(milliseconds=1),
        first - timedelta(days=9),
        datetime.min.replace(tzinfo=UTC),
    ):
        assert checked_start("t", start, None) == 0


@pytest.mark.parametrize("name", ["ssl.key.location", "ssl.keystore.location"])
@pytest.mark.parametrize("times", [1, 20])
@pytest.mark.parametrize("secret", [False, True])
def test_a_key_in_the_place_of_its_path_is_not_shown(tmp_path: Path, name: str, times: int, secret: bool) -> None:
    """However long it is."""
    text = PEM * times
    (tmp_path / "key").write_text(text)
    config = {"security.protocol": "SSL", name: Secret(file=tmp_path / "key") if secret else text}
    with pytest.raises(ConfigError, match=rf"{name} in config= must name a file.*ssl\.key\.pem") as wrong:
        KafkaTopic("t", "127.0.0.1:1", config=config).snapshot()
    assert "MIIE" not in str(wrong.value)


def test_a_producer_keeps_what_makes_a_delivery_safe() -> None:
    """The older way to set a topic's options is no way around it."""
    config = {"default.topic.config": {"partitioner": "random", "acks": "1"}}
    with pytest.raises(ConfigError, match=r"must not set the options that make a delivery safe; found default\.topic"):
        Producer("t", "127.0.0.1:1", config=config)


def test_what_is_sent_is_bytes_or_a_text(embedded: Kafka) -> None:
    """Any bytes are; headers may be a dict."""
    topic = embedded.create(embedded.topic)
    sent: list[Any] = ["text", bytearray(b"array"), memoryview(b"view"), b"bytes", None]
    for first in sent:  # it says how all are compressed
        with Producer(topic, embedded.servers) as producer:
            producer.send(first, "key", {"label": b"1"})
    source = KafkaTopic(topic, embedded.servers)
    found = [source.original(0, n) for n in range(len(sent))]
    assert [each and each.value for each in found] == [b"text", b"array", b"view", b"bytes", None]
    assert all(each and (each.key, each.headers) == (b"key", (("label", b"1"),)) for each in found)


@pytest.mark.parametrize(
    "odd",
    [
        {"value": 5},
        {"key": 7},
        {"headers": [("label", 1)]},
        {"headers": 1},
        {"partition": "1"},
        {"timestamp": 1.5},
        {"value": "\ud800"},
    ],
)
def test_what_cannot_be_sent_is_an_error_of_ours(embedded: Kafka, odd: dict[str, Any]) -> None:
    """It was Python's or the client's own, and the next record goes on."""
    with Producer(embedded.create(embedded.topic), embedded.servers) as producer:
        with pytest.raises(ConfigError, match=r"value, key and headers' values must be bytes or texts"):
            producer.send(**{"value": b"a"} | odd)
        assert producer.send(b"next").result(60).offset == 0
