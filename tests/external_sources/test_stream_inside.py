"""Insides that contract/topics/test_stream.py needs not: they go with what they test."""

from __future__ import annotations

import pytest
from kit.broker.handle import Kafka

from dali_feed.errors import ConfigError
from dali_feed.external_sources import KafkaStream
from dali_feed.records.live import Pace, is_live
from dali_feed.testing import Message

INF = float("inf")


def test_columns_of_a_stream(kafka: Kafka) -> None:
    """Members of records, and what a format finds in their values, come as from a topic; without columns it says so."""
    records = [Message(b'{"n": %d, "s": {"t": "x%d"}}' % (n, n), b"k%d" % n) for n in range(6)]
    kafka.publish(kafka.topic, [*records, Message(b"{broken", b"k6")], partitions=1)
    source = KafkaStream(kafka.topic, kafka.servers, start="earliest", format="json", idle_timeout=0.5)
    with pytest.raises(ConfigError, match="is for columns="):
        source.live()
    given = source.giving(None, ("n", "s.t", "key"))
    assert is_live(given)
    assert (given.fields, given.pace) == (("n", "s.t", "key"), Pace(None, None, 0.5))
    reader = given.live(None)
    got = reader.poll(7, INF, 5.0)
    assert got.position == {0: 7}
    assert (got.block.fields["n"][:6], got.block.fields["s.t"][:6]) == ([*range(6)], [f"x{n}" for n in range(6)])
    assert got.block.fields["key"] == [b"k%d" % n for n in range(7)]
    assert list(got.block.faults) == [6]
    reader.close()
    assert {member.name for member in source.members()} >= {"value", "key"}
