"""Tuning(memory): held where a source's sample says nothing of most records, and where records are large."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from typing import Any

import pytest
from broker.handle import Kafka
from images import jpeg, padded

from dali_feed.errors import ConfigError
from dali_feed.external_sources import KafkaTopic
from dali_feed.feed import Feed
from dali_feed.options import Tuning
from dali_feed.plan.order import Shuffle
from dali_feed.testing import Message, ScriptedSource

KIB, MIB = 1 << 10, 1 << 20


def misled(count: int, size: int, memory: int, told: int = 10, **options: Any) -> Feed:
    """A feed of records of `size` bytes whose source says that they have `told`."""
    source = ScriptedSource([(padded(jpeg(0), size), n) for n in range(count)], extent=16)
    feed = Feed(
        source, options.pop("batch", 8), tuning=Tuning(threads=1, readers=2, prefetch=6, memory=memory), **options
    )
    feed._planning._snapshot = dataclasses.replace(feed.snapshot, record_bytes=told)
    return feed


def epoch(feed: Feed) -> int:
    """Records of an epoch whose trainer is slower than the source: it waits for all that was asked for."""
    count = 0
    for batch in feed:
        count += len(batch)
        assert feed._machine.pool is not None
        with feed._machine.pool._idle:
            feed._machine.pool._idle.wait_for(lambda: not feed._machine.pool._asked, 10)  # type: ignore[union-attr]
    return count


@pytest.mark.parametrize("lanes", [1, 2])
def test_reads_ahead_keep_to_the_memory_by_what_was_read(lanes: int) -> None:
    """Records 128 times as large as the sample says: windows of 7 MiB pass through what holds two of them a lane."""
    options: dict[str, Any] = {"told": KIB, "shuffle": Shuffle(1, 56), "lanes": lanes}
    with misled(448, 128 * KIB, 16 * MIB * lanes, **options) as feed:
        for _ in range(2):
            assert epoch(feed) == 448
            assert feed.stats().slab_peak <= feed.tuning.memory_bytes
    assert feed._slabs.leased == 0


def test_a_window_that_does_not_fit_is_an_error_with_its_size() -> None:
    """No order is changed to make room: the run ends, and says which records, their size and what would do."""
    with misled(96, 128 * KIB, 4 * MIB, 8 * KIB, shuffle=Shuffle(16, 3)) as feed:
        with pytest.raises(
            ConfigError,
            match=r"memory=4194304.* the window of 48 .*from scripted\[0\]@\d+, .* take \d+ bytes, .* 8192 bytes per",
        ):
            list(feed)
        assert feed._slabs.leased == 0


def test_a_read_that_does_not_fit_ends_before_it_is_whole() -> None:
    """One read of more than all the memory stops at the limit, and is named."""
    with misled(64, 128 * KIB, 1 * MIB, shuffle=Shuffle(64, 1)) as feed:
        with pytest.raises(ConfigError, match=r"memory=1048576.* each read") as caught:
            list(feed)
        assert any("Read: 64 records from scripted[0]@0" in note for note in caught.value.__notes__)
        assert feed.stats().slab_peak <= 2 * feed.tuning.memory_bytes  # of two readers
        assert feed._slabs.leased == 0


@pytest.mark.parametrize("told", [10, 3 * MIB])
def test_records_larger_than_a_slab(told: int) -> None:
    """Records of 3 MiB and slabs of 2.5 MiB: the memory holds as many as it has room for, whatever the sample says."""
    with misled(48, 3 * MIB, 80 * MIB, told, shuffle=Shuffle(1, 2), batch=2) as feed:
        assert sum(len(batch) for batch in feed) == 48
        assert feed.stats().slab_peak <= 80 * MIB
    assert feed._slabs.leased == 0


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

        def counted(extents: Any) -> Any:
            if next(self.begun) == 4:
                self.fourth.set()
            return read(extents)

        reader.read = counted  # type: ignore[method-assign]
        return reader


def test_every_reader_has_a_read_where_windows_are_one_read_each() -> None:
    """A trainer that stands in the first window has as many of the next ones read as there are readers."""
    source = _Counting([(jpeg(0), n) for n in range(96)], extent=16)
    with Feed(source, 1, shuffle=Shuffle(16, 1), tuning=Tuning(threads=1, readers=3, prefetch=1)) as feed:
        batches = iter(feed)  # held, as a pass that is dropped ends its reads
        next(batches)
        assert source.fourth.wait(20)
