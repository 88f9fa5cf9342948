"""Tuning(memory): held where a source's sample says nothing of most records, and where records are large."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest
from kit.broker.handle import Kafka
from kit.images import jpeg, padded
from kit.inside import Feed

from dali_feed import Shuffle, Tuning
from dali_feed.errors import ConfigError
from dali_feed.external_sources import KafkaTopic
from dali_feed.testing import Message, ScriptedSource

KIB, MIB = 1 << 10, 1 << 20


def test_a_topic_whose_first_records_say_nothing(real_kafka: Kafka) -> None:
    """Sixteen small records, then 600 of 100 kB: extents and windows are of those, and fit into the memory."""
    topic = real_kafka.create(real_kafka.topic)
    sizes = [500] * 16 + [100_000] * 600
    label = (("label", b"1"),)
    real_kafka.publish(topic, [Message(padded(jpeg(n % 9), size), headers=label) for n, size in enumerate(sizes)])
    source = KafkaTopic(topic, real_kafka.servers)
    snapshot = source.snapshot()
    assert 90_000 <= snapshot.record_bytes <= 100_000
    assert snapshot.extent == 256
    with Feed(source, 8, shuffle=Shuffle(window=1), tuning=Tuning(threads=1, readers=2, memory=80 * MIB)) as feed:
        assert sum(len(batch) for batch in feed) == 616
        assert feed.stats().slab_peak <= feed.tuning.memory_bytes
    with (
        Feed(source, 8, shuffle=True, tuning=Tuning(memory=16 * MIB)) as feed,
        pytest.raises(ConfigError, match=r"memory=16777216\): must hold the windows"),
    ):
        iter(feed)


def test_a_topic_of_a_few_large_records(real_kafka: Kafka) -> None:
    """Records of 0.6 MB where slabs have 0.25: windows of them fit into the memory that is told."""
    topic = real_kafka.create(real_kafka.topic, 2)
    label = (("label", b"1"),)
    real_kafka.publish(topic, [Message(padded(jpeg(n), 600_000 + n), headers=label) for n in range(40)])
    source = KafkaTopic(topic, real_kafka.servers)
    assert abs(source.snapshot().record_bytes - 600_020) <= 20
    with Feed(source, 2, shuffle=Shuffle(2, 2), tuning=Tuning(threads=1, readers=2, memory=8 * MIB)) as feed:
        assert sum(len(batch) for batch in feed) == 40
        assert feed.stats().slab_peak <= feed.tuning.memory_bytes


class _Counting(ScriptedSource):
    """Says when a fourth read begins."""

    def __init__(self, records: Any, **options: Any) -> None:
        super().__init__(records, **options)
        self.begun, self.fourth = itertools.count(1), threading.Event()

    def reader(self, *given: Any) -> Any:
        reader = super().reader(*given)
        read = reader.read

        def counted(extents: Any, lease: Any) -> Any:
            if next(self.begun) == 4:
                self.fourth.set()
            return read(extents, lease)

        reader.read = counted  # type: ignore[method-assign]
        return reader


def test_every_reader_has_a_read_where_windows_are_one_read_each() -> None:
    """A trainer that stands in the first window has as many of the next ones read as there are readers."""
    source = _Counting([(jpeg(0), n) for n in range(96)], extent=16)
    with Feed(source, 1, shuffle=Shuffle(16, 1), tuning=Tuning(threads=1, readers=3, prefetch=1)) as feed:
        batches = iter(feed)  # held, as a pass that is dropped ends its reads
        next(batches)
        assert source.fourth.wait(20)
