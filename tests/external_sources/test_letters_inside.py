"""Dead letters in a topic that cannot be kept there as they are: what is still written, and what is refused before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kit.broker.handle import Kafka

from dali_feed import BadRecords, DataLoader
from dali_feed.bad_records import Letter
from dali_feed.errors import ConfigError
from dali_feed.external_sources import Claim, KafkaStream, Producer
from dali_feed.records.source import Original
from dali_feed.testing import ScriptedSource


def letter(reason: str, payload: bytes) -> Letter:
    """One of a topic."""
    return Letter("t[0]@3", "s", 0, 3, 3, "decode", reason, payload, Original(b"key", payload, ()))


def test_a_letter_that_is_too_large_is_written_without_its_record(embedded: Kafka) -> None:
    """Beside one that is not; the reason says what is missing."""
    producer = Producer(embedded.create(embedded.topic), embedded.servers, queue_bytes=20_000)
    writer = producer.writer()
    writer.write([letter("why", bytes(50_000))])
    writer.write([letter("why", b"small")])
    writer.close()
    (last,) = producer.read()
    assert (last.payload, last.gone) == (b"small", False)
    writer.write([letter("why", bytes(50_000))])
    writer.close()
    (last,) = producer.read()
    assert (last.where, last.payload, last.original, last.gone) == ("t[0]@3", b"", None, True)
    assert last.reason == "why; without the record, which is larger than queue_bytes, 20000"


def test_half_of_a_surrogate_pair_in_a_reason_ends_nothing(embedded: Kafka) -> None:
    """Somebody's own error has quoted it; what stands for a byte of a path stays that byte."""
    producer = Producer(embedded.create(embedded.topic), embedded.servers)
    writer = producer.writer()
    writer.write([letter("class \ud83d", b"1")])
    assert [each.reason for each in producer.read()] == ["class \\ud83d"]
    writer.write([letter("file \udcff", b"1")])
    writer.close()
    assert [each.reason for each in producer.read()] == ["file \udcff"]


@pytest.mark.parametrize("option", ["claim", "by", "transactional_id"])
def test_what_letters_have_not_is_refused(tmp_path: Path, option: str) -> None:
    """When the loader is made."""
    values: dict[str, Any] = {"claim": Claim(tmp_path, above=1000), "by": "turn", "transactional_id": "x"}
    letters = Producer("dead", "h:1", **{option: values[option]})
    with pytest.raises(ConfigError, match=rf"dead: a producer of dead letters .*found {option}=; leave it out"):
        DataLoader(ScriptedSource([b""]), 1, bad=BadRecords(dead_letter=letters))


def test_letters_into_the_stream_that_they_are_of_are_refused() -> None:
    """They would come again for ever; a bounded topic ends, and another cluster's is another topic."""
    letters = BadRecords(dead_letter=Producer("t", "a:1,b:1"))
    with pytest.raises(ConfigError, match="t: dead letters must go into another topic than the stream reads"):
        DataLoader(KafkaStream("t", "b:1"), 1, bad=letters)
    DataLoader(KafkaStream("t", "c:1"), 1, bad=letters).close()
    DataLoader(KafkaStream("t2", "b:1"), 1, bad=letters).close()
