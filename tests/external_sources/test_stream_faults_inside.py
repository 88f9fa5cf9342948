"""Insides that contract/topics/test_stream_faults.py needs not: they go with what they test."""

from __future__ import annotations

import time

import pytest

from dali_feed.errors import SourceUnreachableError
from dali_feed.external_sources.kafka.cluster import Identity
from dali_feed.external_sources.kafka.connection import Connection
from dali_feed.external_sources.kafka.live_reader import MUCH, LookoutAnswer, Overdue, StreamReader
from dali_feed.external_sources.kafka.rows import Decoding


def test_who_is_late() -> None:
    """A partition is late from when its turn had come, until it moves; a queue that is never empty delays that."""
    overdue, at = Overdue(), {0: 5, 1: 7}
    look = LookoutAnswer(0.0, 2, {0: 5, 1: 9}, {})
    overdue.looked(look, at, 0, 1.0)
    assert overdue.longest(50.0) == (-1, 0.0)
    overdue.empty(at, 50.0)
    overdue.empty(at, 60.0)
    assert overdue.longest(62.0) == (1, 12.0)
    assert [overdue.due(1), overdue.due(1)] == [True, False]
    overdue.looked(look, at | {1: 8}, 0, 63.0)  # it has moved, and has still more
    assert overdue.longest(99.0) == (-1, 0.0)
    overdue.looked(look, at | {1: 8}, MUCH + 1, 100.0)
    assert overdue.longest(103.0) == (1, 3.0)
    overdue.looked(look, at | {1: 9}, MUCH + 1, 104.0)
    assert overdue.longest(200.0) == (-1, 0.0)


def test_a_partition_without_a_leader_is_named() -> None:
    """Others may flow meanwhile: where nobody leads it for `timeout` seconds, the stream cannot go on."""
    options = Connection("t", "nowhere:1", 5.0)
    reader, now = StreamReader(options, Decoding(), Identity(), {0: 3, 1: 7}), time.monotonic()
    reader._looked(LookoutAnswer(now, 2, {0: 3}, {1: now - 4}), {})
    with pytest.raises(SourceUnreachableError, match=r"t\[1\]@7: .*the partition has no leader"):
        reader._looked(LookoutAnswer(now, 2, {0: 3}, {1: now - 6}), {})
    reader.close()
