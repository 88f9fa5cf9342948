"""What readers measure of their reads: sums over readers, those that left too, and how stats show them."""

from __future__ import annotations

import threading

from kit.images import jpeg, labelled
from torchvision.transforms import v2

from dali_feed.feed import Feed
from dali_feed.feed.adapting import Reading
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
from dali_feed.records.source import Block, Extents, Slabs
from dali_feed.testing.scripted import ScriptedReader, ScriptedSource, Stall


class Measuring(ScriptedReader):
    """Measures each read, as from a store and as from a topic; one more is always queued."""

    _reads = 0

    def read(self, extents: Extents) -> Block:
        """As it was."""
        block = super().read(extents)
        self._reads += len(block.ids)
        return block

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
    """Its readers measure."""

    def reader(self, slabs: Slabs | None = None, stop: threading.Event | None = None) -> ScriptedReader:
        """One that measures."""
        return Measuring(self, slabs or SlabPool(), stop or threading.Event())


def test_what_a_reader_measured_outlasts_it() -> None:
    """When three of four readers leave, sums do not fall; what is so now (rates, queues) is of those that stay."""
    go = threading.Event()
    source = Measured([*(Stall(go, then=(jpeg(n), n)) for n in range(4)), *labelled(4)], extent=1)
    line = canonical(source.snapshot(), 1)
    tasks = [ReadTask(line[n : n + 1], lambda: 0) for n in range(8)]
    pool = ReadPool(source, SlabPool(), 4)
    for task in tasks:
        pool.request(task)
    pool.choose(Reading(1))
    go.set()
    for task in tasks:
        task.take()
    pool.close()
    (storage,), kafka = pool.storage(), pool.gauges()
    assert kafka is not None
    assert (storage.reads, storage.bytes, storage.queued) == (8, 800, 1)
    assert (kafka.partitions[0].records, kafka.partitions[0].size, kafka.brokers[0].fetches) == (8, 80, 8)
    assert (kafka.readers, kafka.rate, kafka.queue_records, kafka.brokers[0].state) == (1, 5.0, 1, "UP")
    assert kafka.lag_seconds == 1.0


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
    assert (found.reads, found.bytes, found.latency[:3], found.latency[18], found.latency[31]) == (
        100,
        1000,
        (50, 48, 0),
        1,
        1,
    )
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
