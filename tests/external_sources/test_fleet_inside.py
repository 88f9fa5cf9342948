"""Insides that contract/topics/test_fleet.py needs not: they go with what they test."""

from __future__ import annotations

from typing import Any

import pytest

from dali_feed.errors import ConfigError
from dali_feed.external_sources.kafka.group import Fleet, fleet_of
from dali_feed.external_sources.kafka.stream import KafkaStream

pytestmark = pytest.mark.slow


def stream(**more: Any) -> KafkaStream:
    """A fleet's."""
    return KafkaStream("t", "nowhere:1", fleet="g", **more)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Fleet(""), "Fleet\\(group=\\): a name is needed"),
        (lambda: Fleet("g", instance=""), "Fleet\\(instance=\\)"),
        (lambda: Fleet("g", "eager"), '"classic" or "consumer"'),  # type: ignore[arg-type]
        (lambda: Fleet("g", session=0), "session=.*at most 3600; found 0"),
        (lambda: Fleet("g", "consumer", session=9), "the broker sets it"),
        (lambda: Fleet("g", drain=-1), "drain=.*found -1"),
        (lambda: fleet_of(3), "a consumer group's name or a Fleet"),  # type: ignore[arg-type]
        (lambda: stream(group="h"), "leave out 'h'"),
        (lambda: stream(start={"topic": "t"}), "cannot be a state"),
        (lambda: stream(start="yesterday"), "start must be"),
        (lambda: stream(config={"group.instance.id": "x"}), "found group.instance.id"),
        (lambda: stream(config={"session.timeout.ms": 6000}), "found session.timeout.ms; Fleet"),
        (lambda: stream(config={"partition.assignment.strategy": "range"}), "partition.assignment.strategy"),
        (lambda: stream(config={"max.poll.interval.ms": 30_000}), "above Fleet\\(drain=\\).*30000 ms and 30 s"),
    ],
)
def test_what_contradicts_is_refused(make: Any, said: str) -> None:
    """A user's value that cannot be is an error that names it."""
    with pytest.raises(ConfigError, match=said):
        make()
