"""Reader threads: how many there are, what they measure, and how far their reads fill a window."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from kit.images import jpeg, labelled
from torchvision.transforms import v2

from dali_feed.errors import ClosedError
from dali_feed.feed import Feed
from dali_feed.feed.reading import ReadPool, ReadTask
from dali_feed.options import Tuning
from dali_feed.plan.order import canonical
from dali_feed.records.gauges import (
    BrokerStats,
    KafkaStats,
    PartitionStats,
    StorageMeter,
    StorageStats,
    TargetStats,
    storage_of,
)
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import Block, Extents, Lease
from dali_feed.testing.scripted import ScriptedReader, ScriptedSource, Stall


class Measuring(ScriptedReader):
    """Measures each read, as from a store and as from a topic; one more is always queued."""

    _reads = 0

    def read(self, extents: Extents, lease: Lease) -> Block:
        """As it was."""
        self._source.begun.release()  # type: ignore[attr-defined]
        block = super().read(extents, lease)
        self._reads += len(block.ids)
        return block

    def close(self) -> None:
        """Counted."""
        super().close()
        self._source.closed.release()  # type: ignore[attr-defined]

    def storage(self) -> tuple[StorageStats, ...]:
        """A millisecond and 100 bytes per record."""
        meter = StorageMeter("local")
        for _ in range(self._reads):
            meter.read(0.001, 100)
        meter.queued = 1
        return (meter.stats(),)

    def gauges(self) -> KafkaStats:
        """10 bytes per record; always one queued."""
        partitions = (PartitionStats(0, records=self._reads, size=10 * self._reads, rate=5.0, seconds=1.0),)
        brokers = (BrokerStats("b/1", "UP", 1, 0.1, fetches=self._reads),)
        return KafkaStats("t", partitions, brokers, queue_records=1, queue_bytes=10, at=float(100 + self._reads))


class Measured(ScriptedSource):
    """Its readers measure; counts the reads that were begun and the readers that were closed."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.begun, self.closed = threading.Semaphore(0), threading.Semaphore(0)

    def reader(self, members: Sequence[str], stop: threading.Event | None = None) -> ScriptedReader:
        """One that measures."""
        return Measuring(self, tuple(members), stop or threading.Event())


def pool_of(source: ScriptedSource, count: int) -> ReadPool:
    """Threads that read its values."""
    return ReadPool(source, partial(source.reader, ("value",)), SlabPool(), count)


def test_readers_come_at_once_and_leave_when_their_read_is_done() -> None:
    """Four read with four; with one, three close what they have open, and what they measured stays in the sums."""
    go = threading.Event()
    source = Measured([*(Stall(go, then=(jpeg(n), n)) for n in range(4)), *labelled(4)], extent=1)
    line = canonical(source.snapshot(), 1)
    tasks = [ReadTask(line[n : n + 1], lambda: 0) for n in range(8)]
    pool = pool_of(source, 1)
    for task in tasks:
        pool.request(task)
    pool.choose(4)
    for _ in range(4):
        assert source.begun.acquire(timeout=10)
    pool.choose(1)
    assert len(pool.doing()) == 4
    go.set()
    for _ in range(3):
        assert source.closed.acquire(timeout=10)
    assert np.concatenate([task.take().ids for task in tasks]).tolist() == list(range(8))
    assert not source.closed.acquire(blocking=False)
    pool.close()
    assert source.closed.acquire(timeout=10)
    (storage,), kafka = pool.storage(), pool.gauges()
    assert kafka is not None
    assert (storage.reads, storage.bytes, storage.queued) == (8, 800, 1)
    assert (kafka.partitions[0].records, kafka.partitions[0].size, kafka.brokers[0].fetches) == (8, 80, 8)
    assert (kafka.readers, kafka.rate, kafka.queue_records, kafka.brokers[0].state) == (1, 5.0, 1, "UP")
    assert kafka.lag_seconds == 1.0
    pool.choose(4)
    assert pool.count == 1, "closed"
    late = ReadTask(line, lambda: 0)
    pool.request(late)
    with pytest.raises(ClosedError, match="after close"):  # and no wait
        late.take()


def test_a_system_without_threads_to_give_leaves_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers that cannot be begun are not counted, and what is read goes on."""
    source = ScriptedSource(labelled(4))
    pool = pool_of(source, 1)
    pool.choose(1)

    def refuse(thread: threading.Thread) -> None:
        msg = "can't start new thread"
        raise RuntimeError(msg)

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        pool.choose(3)
    assert pool.count == 1
    task = ReadTask(canonical(source.snapshot(), 4), lambda: 0)
    pool.request(task)
    assert len(task.take().ids) == 4
    pool.close()


def test_stats_show_what_reading_files_measures() -> None:
    """`stats().storage` is summed over readers, and the text has a line of it, past the columns too."""
    source = Measured(labelled(8), extent=2)
    tuning = Tuning(threads=1, readers=2, next_epoch=False)
    with Feed(source, 4, transform=v2.CenterCrop(8), tuning=tuning) as feed:
        assert feed.stats().storage == ()
        assert len(list(feed)) == 2
        found = feed.stats()
    assert [(each.store, each.bytes) for each in found.storage] == [("local", 800)]
    assert "storage        local: 8 reads, 0.0 MB at 0.1 MB/s each, p50 1 ms, p99 1 ms" in str(found)


def test_reads_are_counted_by_their_time() -> None:
    """A class of the histogram is twice the one before; the quantiles are its upper border; a read of ages is in it."""
    meter = StorageMeter("s3://b", ("one", "two"))
    assert (meter.stats().p50, meter.stats().rate) == (None, None)
    for seconds in (*[0.0] * 50, *[3e-6] * 48, 0.5, 1e6):
        meter.read(seconds, 10, target=1)
    meter.queues[0] = 2
    found = meter.stats()
    assert (found.reads, found.bytes, found.latency[:3]) == (100, 1000, (50, 48, 0))
    assert (found.latency[18], found.latency[31]) == (1, 1)
    assert (found.p50, found.p99) == (2e-6, 2**19 / 1e6)
    assert found.targets == (TargetStats("one", queued=2), TargetStats("two", 100, 1000, found.seconds))
    assert "p50 2 us, p99 524 ms" in str(found)
    assert "\n  one: 0 reads, 0.0 MB, 2 queued\n  two: 100 reads" in str(found)


def test_stores_are_summed_by_name() -> None:
    """Figures of a store add up, per target too; those of another stay apart."""
    a, b, c = StorageMeter("x", ("d",)), StorageMeter("x", ("d", "e")), StorageMeter("a")
    a.read(0.25, 7, 0)
    b.read(0.5, 8, 1)
    b.read(0.5, 9, 0)
    c.failures = 2
    first, second = storage_of((), (a.stats(),), (b.stats(),), (c.stats(),))
    assert (first.store, first.failures) == ("a", 2)
    assert (second.reads, second.bytes, second.seconds) == (3, 24, 1.25)
    assert second.targets == (TargetStats("d", 2, 16, 0.75), TargetStats("e", 1, 8, 0.5))
