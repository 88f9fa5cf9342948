"""What sources, stores and caches measure, as plain figures: per partition, broker, store and target.

The law: each reader counts what it asked for itself, so that sums over readers count nothing twice, not even where
readers share a cache or a target. Nothing here asks a cluster or a disk, and nothing here is ever read by a run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dali_feed.records.metrics import (
    counter,
    derived,
    each_in_order,
    each_merged,
    gauge,
    histogram,
    key,
    merged,
    nested,
    text,
)

LATENCIES = 32  # classes of a histogram: the first up to 2 microseconds, each twice the one before, the last open


@dataclass(frozen=True, slots=True)
class TargetStats:
    """One place that a store reads from: a folder, a disk, a server."""

    name: str = key("its name, as people write it", "target")
    reads: int = counter("reads that came to an end, well or not")
    bytes: int = counter("bytes that these reads gave", "read_bytes")
    seconds: float = counter("sum of the times of these reads; two at once count twice", "read_seconds", default=0.0)
    queued: int = gauge("reads that wait or are under way now", "queued_reads")

    @property
    def rate(self) -> float | None:
        """Bytes per second while one read is under way; None before the first."""
        return self.bytes / self.seconds if self.seconds else None


@dataclass(frozen=True, slots=True)
class StorageStats:
    """What the readers of one loader measured of one store, since they began."""

    store: str = key('its name: "local", "s3://bucket"')
    reads: int = counter("reads that ended, well or with an error; one that was tried again counts once")
    bytes: int = counter("bytes that these reads gave", "read_bytes")
    seconds: float = counter(
        "sum of the times of these reads, from the request to the last byte; two at once count twice",
        "read_seconds",
        default=0.0,
    )
    latency: tuple[int, ...] = histogram(
        "how many reads took how long: class 0 is below 2 microseconds, class k from 2**k microseconds to twice that,"
        " the last one has no end; there are LATENCIES classes",
        "read_duration_seconds",
        classes=LATENCIES,
    )
    queued: int = gauge("reads that wait or are under way now", "queued_reads")
    failures: int = counter("reads that ended with an error")
    targets: tuple[TargetStats, ...] = nested(
        TargetStats, "figures of each target, if a store has several", default=(), merge=each_merged
    )

    def __str__(self) -> str:
        rate = "" if self.rate is None else f" at {self.rate / 1e6:,.1f} MB/s each"
        slow = "" if self.p50 is None or self.p99 is None else f", p50 {_ms(self.p50)}, p99 {_ms(self.p99)}"
        text = f"{self.store}: {self.reads:,} reads, {self.bytes / 1e6:,.1f} MB{rate}{slow}, {self.queued} queued"
        lines = [f"{text}, {self.failures} failures"]
        for each in self.targets:
            rate = "" if each.rate is None else f" at {each.rate / 1e6:,.1f} MB/s each"
            lines.append(f"  {each.name}: {each.reads:,} reads, {each.bytes / 1e6:,.1f} MB{rate}, {each.queued} queued")
        return "\n".join(lines)

    @property
    def rate(self) -> float | None:
        """Bytes per second while one read is under way; None before the first."""
        return self.bytes / self.seconds if self.seconds else None

    @property
    @derived("read_p50_seconds")
    def p50(self) -> float | None:
        """Half of the reads took at most so many seconds: the upper border of a class. None before the first."""
        return self.within(0.5)

    @property
    @derived("read_p99_seconds")
    def p99(self) -> float | None:
        """99 of 100 reads took at most so many seconds: the upper border of a class. None before the first."""
        return self.within(0.99)

    def within(self, share: float) -> float | None:
        """Seconds that this share of the reads, 0..1, took at most: the upper border of a class."""
        total, seen = sum(self.latency), 0
        for k, count in enumerate(self.latency):
            seen += count
            if count and seen >= share * total:
                return float(1 << (k + 1)) / 1e6
        return None


def _class_of(seconds: float) -> int:
    """The class of a histogram that a read's time is counted in."""
    return min(max(int(seconds * 1e6).bit_length() - 1, 0), LATENCIES - 1)


class StorageMeter:
    """Adds up the reads of one reader. One thread writes, or several that hold a lock of theirs; any may look."""

    def __init__(self, store: str, targets: Sequence[str] = ()) -> None:
        self.store, self.targets = store, tuple(targets)
        self.failures = self.queued = 0
        self.queues = [0] * len(self.targets)
        self._latency = [0] * LATENCIES
        self._bytes, self._seconds = 0, 0.0
        self._of: list[tuple[int, int, float]] = [(0, 0, 0.0)] * len(self.targets)

    def read(self, seconds: float, size: int, target: int | None = None) -> None:
        """A read came to its end: it took so long and gave so many bytes, of that target where there are several."""
        self._latency[_class_of(seconds)] += 1
        self._bytes += size
        self._seconds += seconds
        if target is not None:
            reads, known, spent = self._of[target]
            self._of[target] = reads + 1, known + size, spent + seconds

    def alike(self, reads: int, seconds: float, size: int) -> None:
        """So many reads came to their end, which took so long and gave so many bytes together."""
        if reads:
            self._latency[_class_of(seconds / reads)] += reads
            self._bytes += size
            self._seconds += seconds

    def many(self, seconds: Sequence[float], size: int) -> None:
        """As many reads came to their end, and gave so many bytes together."""
        times = np.asarray(seconds)
        classes = np.frexp(np.maximum(times * 1e6, 1.0))[1] - 1
        for k, count in enumerate(np.bincount(classes.clip(max=LATENCIES - 1)).tolist()):
            self._latency[k] += count
        self._bytes += size
        self._seconds += float(times.sum())

    def stats(self) -> StorageStats:
        """All of it, as it is now."""
        latency = tuple(self._latency)
        return StorageStats(
            store=self.store,
            reads=sum(latency),
            bytes=self._bytes,
            seconds=self._seconds,
            latency=latency,
            queued=self.queued,
            failures=self.failures,
            targets=tuple(
                TargetStats(name, *figures, queued=queued)
                for name, figures, queued in zip(self.targets, self._of, self.queues, strict=True)
            ),
        )


def storage_of(readers: Iterable[object], *more: tuple[StorageStats, ...]) -> tuple[StorageStats, ...]:
    """What the readers have measured that have a method `storage`, and `more`: one for each store, by their names."""
    return each_in_order([*(each.storage() for each in readers if hasattr(each, "storage")), *more])


def _ms(seconds: float) -> str:
    """A time as text: microseconds below one millisecond."""
    return f"{1e6 * seconds:,.0f} us" if seconds < 1e-3 else f"{1e3 * seconds:,.0f} ms"


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """One partition. What is not known is None."""

    partition: int = key("number of the partition")
    position: int | None = gauge(
        "offset of the next record for the training loop; of a shuffled topic its first offset plus the records that"
        " the loop got of it, as `loader.commit()` counts",
        default=None,
        merge=max,
        stays=True,
    )
    end: int | None = gauge(
        "offset where it ends: for a topic the end in the snapshot, for a stream the offset after the last stable"
        " record",
        default=None,
        merge=max,
        stays=True,
    )
    low: int | None = gauge("first offset that the broker keeps", default=None, merge=max, stays=True)
    records: int = counter(
        "records that the brokers sent since its readers began: a fetch brings more than is needed, and some records"
        " twice",
        "received_records",
    )
    size: int = counter("bytes of these records' keys and values", "received_bytes")
    rate: float | None = gauge(
        "bytes of these per second, between the last two statistics", "receive_bytes_per_second", default=None
    )
    leader: int | None = gauge("id of the broker that gives them", default=None, merge=max, stays=True)
    seconds: float | None = gauge(
        "of a stream: the age of the last record that was read, by the record's own time; 0 if no record is left to"
        " read",
        "lag_seconds",
        default=None,
        merge=min,
    )

    @property
    @derived("lag_records")
    def lag(self) -> int | None:
        """Offsets that are still to come."""
        return None if self.position is None or self.end is None else max(0, self.end - self.position)

    @property
    @derived("headroom_records")
    def headroom(self) -> int | None:
        """Offsets between the first that is kept and the position; below 0, records are gone that were not read yet.

        For a stream, and for a topic that is read in order; a shuffled one needs all offsets from its snapshot's start
        on.
        """
        return None if self.position is None or self.low is None else self.position - self.low


def _worst(states: list[str]) -> str:
    return max(states, key=lambda state: (state not in {"UP", ""}, state))


@dataclass(frozen=True, slots=True)
class BrokerStats:
    """The connections to one broker. Times in seconds, over the last statistics' interval; None if there was none."""

    broker: str = key("its address and id, `host:9092/1`")
    state: str = text(
        'state of the link: "UP", or what else librdkafka calls it; of several readers the worst. "": there is none',
        merge=_worst,
        stays=False,
    )
    answers: int = gauge("answers that came in the interval", "")
    waited: float = gauge("sum of the times from a request to its whole answer", "", default=0.0)
    latency_p99: float | None = gauge(
        "99 of 100 answers came within this time; of several readers the longest",
        "latency_p99_seconds",
        default=None,
        merge=max,
    )
    throttle: float | None = gauge(
        "mean time that the broker held an answer back (quotas); of several readers the longest",
        "throttle_seconds",
        default=None,
        merge=max,
    )
    fetches: int = counter("fetch requests, since the readers began")
    disconnects: int = counter("connections that were lost or closed, since the readers began")

    @property
    @derived("latency_seconds")
    def latency(self) -> float | None:
        """Mean time from a request to its whole answer, with the `fetch.wait.max.ms` that an idle fetch waits."""
        return self.waited / self.answers if self.answers else None


@dataclass(frozen=True, slots=True)
class KafkaStats:
    """What the consumers of one loader measured. Each measures every `statistics.interval.ms` (5,000)."""

    topic: str = text("name of the topic")
    partitions: tuple[PartitionStats, ...] = nested(
        PartitionStats,
        "in the order of their numbers: those that were read, or that the run is known to read",
        default=(),
        merge=each_in_order,
    )
    brokers: tuple[BrokerStats, ...] = nested(
        BrokerStats, "brokers that the consumers have connected to", default=(), merge=each_in_order
    )
    readers: int = gauge("consumers that have given statistics", "consumers", default=1)
    queue_records: int = gauge(
        "records (and a few events) that came and were not read yet, in the queues of all consumers"
    )
    queue_bytes: int = gauge("bytes of the payloads in these queues")
    rebalances: int = counter(
        "how often the partitions of a group were assigned again; 0 for a topic, which joins no group"
    )
    at: float | None = gauge(
        "time of the oldest of these figures, in Unix seconds; None: no consumer is left",
        "statistics_timestamp_seconds",
        default=None,
        merge=min,
    )

    def __str__(self) -> str:
        lag = "" if self.lag is None else f"{self.lag:,} to come, "
        rate = "" if self.rate is None else f"{self.rate / 1e6:,.1f} MB/s, "
        waits = [each.latency for each in self.brokers if each.latency is not None]
        slow = f"fetches of {1e3 * max(waits):,.0f} ms, " if waits else ""
        return f"{lag}{rate}{slow}{self.queue_records:,} queued, {self.readers} readers, {self.rebalances} rebalances"

    @property
    @derived("lag_records")
    def lag(self) -> int | None:
        """Offsets that are still to be read; None if no partition knows."""
        known = [each.lag for each in self.partitions if each.lag is not None]
        return sum(known) if known else None

    @property
    @derived()
    def lag_seconds(self) -> float | None:
        """The largest of the partitions' `seconds`; None if none is known."""
        return max((each.seconds for each in self.partitions if each.seconds is not None), default=None)

    @property
    @derived("receive_bytes_per_second")
    def rate(self) -> float | None:
        """Bytes per second; None before the second statistics."""
        known = [each.rate for each in self.partitions if each.rate is not None]
        return sum(known) if known else None

    def at_positions(self, positions: Mapping[int, int], ends: Mapping[int, int] | None = None) -> KafkaStats:
        """The same, with where the training loop stands, and where its source ends (None: what the brokers say)."""
        known = {each.partition: each for each in self.partitions}
        numbers = sorted({*known, *positions})
        placed = []
        for number in numbers:
            found = known.get(number) or PartitionStats(number)
            end = found.end if ends is None else ends.get(number, found.end)
            at = dataclasses.replace(found, position=positions.get(number, found.position), end=end)
            placed.append(dataclasses.replace(at, seconds=0.0) if at.lag == 0 and at.seconds is not None else at)
        return dataclasses.replace(self, partitions=tuple(placed))


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Of a loader's `Cache`, since it was made; sizes in bytes."""

    hits: int = counter("records that were given from memory or from the disk")
    misses: int = counter("records that were read from the source")
    records: int = gauge("records that are kept in memory now")
    held: int = gauge("memory that kept records take", "held_bytes")
    limit: int = gauge("memory that kept records may take", "limit_bytes")
    disk_records: int = gauge("records that are kept on the disk, by whichever process")
    disk_held: int = gauge("bytes of the disk that they take", "disk_held_bytes")
    disk_limit: int = gauge("bytes of the disk that records of all kinds may take", "disk_limit_bytes")
    damaged: int = counter("records on the disk that were not what was kept")
    device_hits: int = counter("images of batches that were on the device")
    device_misses: int = counter("images of batches that the engine made, beside those on the device")
    device_records: int = gauge("images that are kept on the device")
    device_held: int = gauge("the device's memory that they take, with room for more", "device_held_bytes")
    device_limit: int = gauge("the device's memory that they may take", "device_limit_bytes")

    @property
    def rate(self) -> float:
        """Share of the records that came from memory or the disk, 0..1."""
        return self.hits / max(1, self.hits + self.misses)

    @property
    def device_rate(self) -> float:
        """Share of the images that came from the device's memory, 0..1."""
        return self.device_hits / max(1, self.device_hits + self.device_misses)

    def __str__(self) -> str:
        parts = []
        if self.limit or self.disk_limit or not self.device_limit:
            parts.append(f"{self.rate:.0%} hits, {_kept(self.records, self.held, self.limit)}")
        if self.disk_limit:
            damaged = f", {self.damaged} damaged" if self.damaged else ""
            parts.append(f"on the disk {_kept(self.disk_records, self.disk_held, self.disk_limit)}{damaged}")
        if self.device_limit:
            held = _kept(self.device_records, self.device_held, self.device_limit)
            parts.append(f"on the device {self.device_rate:.0%} hits, {held}")
        return "; ".join(parts)


def _kept(records: int, held: int, limit: int) -> str:
    return f"{records:,} records, {held / 1e6:,.0f} of {limit / 1e6:,.0f} MB"


@dataclass(frozen=True, slots=True)
class GpuStats:
    """One GPU now."""

    gpu: str = key("its UUID, the same for every process of a machine")
    name: str = text("name of its model")
    busy: float | None = gauge(
        "share of the last second or less, 0..1, in which a kernel ran; None: NVML does not say", "busy_ratio"
    )
    used: int = gauge("bytes of the GPU's memory that are in use, by any process", "memory_used_bytes")
    total: int = gauge("bytes of the GPU's memory", "memory_total_bytes")


def summed(readers: Iterable[object], *more: KafkaStats | None) -> KafkaStats | None:
    """What the readers have measured that have a method `gauges`, and `more`, as one; None where none has yet."""
    parts = (*(each.gauges() for each in readers if hasattr(each, "gauges")), *more)
    known = [part for part in parts if part is not None]
    return merged(known) if known else None
