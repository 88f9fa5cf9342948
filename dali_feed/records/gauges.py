"""What the clients of a cluster measure, as plain figures: per partition and per broker, summed over readers.

The law: what is not known is None, never 0. Nothing here asks a cluster, and nothing here is ever read by a run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np

__all__ = [
    "LATENCIES",
    "BrokerStats",
    "CacheStats",
    "Gauged",
    "KafkaStats",
    "PartitionStats",
    "StorageMeter",
    "StorageStats",
    "Stored",
    "TargetStats",
    "in_all",
    "merged",
    "storage_of",
    "summed",
]


# What reading files measures, wherever they lie: how much and how fast; summed over readers.
#
# The law: each reader counts what it asked for itself, so that sums over readers count nothing twice, not even where
# readers share a cache or a target. What is not known is None, never 0. Nothing here is ever read by a run.


LATENCIES = 32  # classes of a histogram: the first up to 2 microseconds, each twice the one before, the last open


@dataclass(frozen=True, slots=True)
class TargetStats:
    """One place that a store reads from: a folder, a disk, a server.

    name     as people write it
    reads    that came to an end, well or not
    bytes    that they gave
    seconds  sum of their times; two at once count twice
    queued   reads that wait or are under way now
    """

    name: str
    reads: int = 0
    bytes: int = 0
    seconds: float = 0.0
    queued: int = 0

    @property
    def rate(self) -> float | None:
        """Bytes per second while one read is under way; None before the first."""
        return self.bytes / self.seconds if self.seconds else None


@dataclass(frozen=True, slots=True)
class StorageStats:
    """What the readers of one loader measured of one store, since they began.

    store         its name: "local", "s3://bucket"
    reads         that ended, well or with an error; one that was tried again counts once
    bytes         that they gave
    seconds       sum of their times, from the request to the last byte; two at once count twice
    latency       how many reads took how long: class 0 is below 2 microseconds, class k from 2**k microseconds to twice
                  that, the last one has no end; there are LATENCIES classes
    queued        reads that wait or are under way now
    failures      reads that ended with an error; for a cache, those that found a damaged piece
    hits, misses  reads that a cache had, and that it had not; None where there is none
    targets       figures of each target, if a store has several
    """

    store: str
    reads: int = 0
    bytes: int = 0
    seconds: float = 0.0
    latency: tuple[int, ...] = (0,) * LATENCIES
    queued: int = 0
    failures: int = 0
    hits: int | None = None
    misses: int | None = None
    targets: tuple[TargetStats, ...] = ()

    def __str__(self) -> str:
        rate = "" if self.rate is None else f" at {self.rate / 1e6:,.1f} MB/s each"
        slow = "" if self.p50 is None or self.p99 is None else f", p50 {_ms(self.p50)}, p99 {_ms(self.p99)}"
        share = "" if self.hit_rate is None else f", {self.hit_rate:.1%} from the cache"
        text = f"{self.store}: {self.reads:,} reads, {self.bytes / 1e6:,.1f} MB{rate}{slow}, {self.queued} queued"
        lines = [f"{text}, {self.failures} failures{share}"]
        for each in self.targets:
            rate = "" if each.rate is None else f" at {each.rate / 1e6:,.1f} MB/s each"
            lines.append(f"  {each.name}: {each.reads:,} reads, {each.bytes / 1e6:,.1f} MB{rate}, {each.queued} queued")
        return "\n".join(lines)

    @property
    def rate(self) -> float | None:
        """Bytes per second while one read is under way; None before the first."""
        return self.bytes / self.seconds if self.seconds else None

    @property
    def p50(self) -> float | None:
        """Half of the reads took at most so many seconds: the upper border of a class. None before the first."""
        return self.within(0.5)

    @property
    def p99(self) -> float | None:
        """99 of 100 reads took at most so many seconds: the upper border of a class. None before the first."""
        return self.within(0.99)

    @property
    def hit_rate(self) -> float | None:
        """Share of the reads that a cache had, 0..1; None if there is no cache, or before the first read."""
        asked = (self.hits or 0) + (self.misses or 0)
        return (self.hits or 0) / asked if asked else None

    def within(self, share: float) -> float | None:
        """Seconds that this share of the reads, 0..1, took at most: the upper border of a class."""
        total, seen = sum(self.latency), 0
        for k, count in enumerate(self.latency):
            seen += count
            if count and seen >= share * total:
                return float(1 << (k + 1)) / 1e6
        return None

    def left(self) -> StorageStats:
        """What stays of the figures when their reader is closed: nothing of it is queued."""
        targets = tuple(dataclasses.replace(each, queued=0) for each in self.targets)
        return dataclasses.replace(self, queued=0, targets=targets)


@runtime_checkable
class Stored(Protocol):
    """A reader that measures its reads. Many do not."""

    def storage(self) -> tuple[StorageStats, ...]:
        """What it has measured by now, per store. Called from any thread, while the reader reads."""
        ...


class StorageMeter:
    """Adds up the reads of one reader. One thread writes, or several that hold a lock of theirs; any may look."""

    def __init__(self, store: str, targets: Sequence[str] = (), *, cached: bool = False) -> None:
        self.store, self.targets = store, tuple(targets)
        self.failures = self.hits = self.misses = self.queued = 0
        self.queues = [0] * len(self.targets)
        self._cached = cached
        self._latency = [0] * LATENCIES
        self._bytes, self._seconds = 0, 0.0
        self._of: list[tuple[int, int, float]] = [(0, 0, 0.0)] * len(self.targets)

    def read(self, seconds: float, size: int, target: int | None = None) -> None:
        """A read came to its end: it took so long and gave so many bytes, of that target where there are several."""
        self._latency[min(max(int(seconds * 1e6).bit_length() - 1, 0), LATENCIES - 1)] += 1
        self._bytes += size
        self._seconds += seconds
        if target is not None:
            reads, known, spent = self._of[target]
            self._of[target] = reads + 1, known + size, spent + seconds

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
            hits=self.hits if self._cached else None,
            misses=self.misses if self._cached else None,
            targets=tuple(
                TargetStats(name, *figures, queued=queued)
                for name, figures, queued in zip(self.targets, self._of, self.queues, strict=True)
            ),
        )


def storage_of(readers: Iterable[object]) -> tuple[StorageStats, ...]:
    """What the readers that measure have measured, one for each store, in the order of their names."""
    return in_all([each for reader in readers if isinstance(reader, Stored) for each in reader.storage()])


def in_all(parts: Iterable[StorageStats]) -> tuple[StorageStats, ...]:
    """The same with one for each store, in the order of their names."""
    stores: dict[str, StorageStats] = {}
    for part in parts:
        known = stores.get(part.store)
        stores[part.store] = part if known is None else _both_stores(known, part)
    return tuple(stores[name] for name in sorted(stores))


def _both_stores(a: StorageStats, b: StorageStats) -> StorageStats:
    """One store by two readers."""
    targets: dict[str, TargetStats] = {}
    for each in (*a.targets, *b.targets):
        known = targets.get(each.name, TargetStats(each.name))
        targets[each.name] = TargetStats(
            each.name,
            known.reads + each.reads,
            known.bytes + each.bytes,
            known.seconds + each.seconds,
            known.queued + each.queued,
        )
    return StorageStats(
        store=a.store,
        reads=a.reads + b.reads,
        bytes=a.bytes + b.bytes,
        seconds=a.seconds + b.seconds,
        latency=tuple(x + y for x, y in zip(a.latency, b.latency, strict=True)),
        queued=a.queued + b.queued,
        failures=a.failures + b.failures,
        hits=_known(a.hits, b.hits),
        misses=_known(a.misses, b.misses),
        targets=tuple(targets.values()),
    )


def _known(a: int | None, b: int | None) -> int | None:
    return a if b is None else b if a is None else a + b


def _ms(seconds: float) -> str:
    """A time as text: microseconds below one millisecond."""
    return f"{1e6 * seconds:,.0f} us" if seconds < 1e-3 else f"{1e3 * seconds:,.0f} ms"


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """One partition. What is not known is None.

    partition   its number
    position    offset of the next record for the training loop; of a shuffled topic its first offset plus the records
                that the loop got of it, as `loader.commit()` counts
    end         offset where it ends: for a topic the end in the snapshot, for a stream the offset after the last stable
                record
    low         first offset that the broker keeps
    records     records that the brokers sent since its readers began: a fetch brings more than is needed, and some
                records twice
    size        bytes of these records' keys and values
    rate        bytes of these per second, between the last two statistics
    leader      id of the broker that gives them
    seconds     of a stream: the age of the last record that was read, by the record's own time; 0 if no record is left
                to read
    """

    partition: int
    position: int | None = None
    end: int | None = None
    low: int | None = None
    records: int = 0
    size: int = 0
    rate: float | None = None
    leader: int | None = None
    seconds: float | None = None

    @property
    def lag(self) -> int | None:
        """Offsets that are still to come."""
        return None if self.position is None or self.end is None else max(0, self.end - self.position)

    @property
    def headroom(self) -> int | None:
        """Offsets between the first that is kept and the position; below 0, records are gone that were not read yet.

        For a stream, and for a topic that is read in order; a shuffled one needs all offsets from its snapshot's start
        on.
        """
        return None if self.position is None or self.low is None else self.position - self.low


@dataclass(frozen=True, slots=True)
class BrokerStats:
    """The connections to one broker. Times in seconds, over the last statistics' interval; None if there was none.

    broker       its address and id, `host:9092/1`
    state        "UP", or what else librdkafka calls it; of several readers the worst. "": there is no connection now
    latency      mean time from a request to its whole answer; it includes the `fetch.wait.max.ms` that an idle fetch
                 waits
    latency_p99  99 of 100 answers came within this time; of several readers the longest
    throttle     mean time that the broker held an answer back (quotas)
    fetches      fetch requests, since the readers began
    disconnects  connections that were lost or closed, since the readers began
    """

    broker: str
    state: str
    latency: float | None = None
    latency_p99: float | None = None
    throttle: float | None = None
    fetches: int = 0
    disconnects: int = 0


@dataclass(frozen=True, slots=True)
class KafkaStats:
    """What the consumers of one loader measured. Each measures every `statistics.interval.ms` (5,000).

    topic          its name
    partitions     in the order of their numbers: those that were read, or that the run is known to read
    brokers        brokers that the consumers have connected to
    readers        consumers that have given statistics
    queue_records  records (and a few events) that came and were not read yet, in the queues of all consumers
    queue_bytes    bytes of their payloads
    rebalances     how often the partitions of a group were assigned again; 0 for a topic, which joins no group
    at             time of the oldest of these figures, in Unix seconds
    """

    topic: str
    partitions: tuple[PartitionStats, ...] = ()
    brokers: tuple[BrokerStats, ...] = ()
    readers: int = 1
    queue_records: int = 0
    queue_bytes: int = 0
    rebalances: int = 0
    at: float = 0.0

    def __str__(self) -> str:
        lag = "" if self.lag is None else f"{self.lag:,} to come, "
        rate = "" if self.rate is None else f"{self.rate / 1e6:,.1f} MB/s, "
        waits = [each.latency for each in self.brokers if each.latency is not None]
        slow = f"fetches of {1e3 * max(waits):,.0f} ms, " if waits else ""
        return f"{lag}{rate}{slow}{self.queue_records:,} queued, {self.readers} readers, {self.rebalances} rebalances"

    @property
    def lag(self) -> int | None:
        """Offsets that are still to be read; None if no partition knows."""
        known = [each.lag for each in self.partitions if each.lag is not None]
        return sum(known) if known else None

    @property
    def lag_seconds(self) -> float | None:
        """The largest of the partitions' `seconds`; None if none is known."""
        return max((each.seconds for each in self.partitions if each.seconds is not None), default=None)

    @property
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

    def left(self) -> KafkaStats:
        """What stays of the figures when their consumer is closed: what it received, nothing of how things are now."""
        return dataclasses.replace(
            self,
            partitions=tuple(dataclasses.replace(each, rate=None, seconds=None) for each in self.partitions),
            brokers=tuple(
                BrokerStats(each.broker, "", fetches=each.fetches, disconnects=each.disconnects)
                for each in self.brokers
            ),
            readers=0,
            queue_records=0,
            queue_bytes=0,
        )


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Of a loader's `Cache`, since it was made; sizes in bytes.

    hits, misses  records that were given from memory or from the disk, and that were read from the source
    records       that are kept in memory now
    held, limit   what they take, and may take
    disk_records  that are kept on the disk, by whichever process
    disk_held     what they take there
    disk_limit    what records of all kinds may take there
    damaged       records on the disk that were not what was kept
    device_hits, device_misses
                  images of batches that were on the device, and that the engine made
    device_records
                  images that are kept on the device
    device_held   what they take there, with room for more
    device_limit  what they may take there
    """

    hits: int = 0
    misses: int = 0
    records: int = 0
    held: int = 0
    limit: int = 0
    disk_records: int = 0
    disk_held: int = 0
    disk_limit: int = 0
    damaged: int = 0
    device_hits: int = 0
    device_misses: int = 0
    device_records: int = 0
    device_held: int = 0
    device_limit: int = 0

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


@runtime_checkable
class Gauged(Protocol):
    """A reader whose client measures. Most do not."""

    def gauges(self) -> KafkaStats | None:
        """What it has measured by now; None: nothing yet. Called from any thread, while the reader reads."""
        ...


def summed(readers: Iterable[object]) -> KafkaStats | None:
    """What the readers that measure have measured, as one; None where none has yet."""
    parts = [found for each in readers if isinstance(each, Gauged) and (found := each.gauges()) is not None]
    return merged(parts) if parts else None


def merged(parts: Sequence[KafkaStats]) -> KafkaStats:
    """What several consumers of one topic have measured, as one."""
    partitions: dict[int, PartitionStats] = {}
    brokers: dict[str, BrokerStats] = {}
    for part in parts:
        for one in part.partitions:
            partitions[one.partition] = _both(partitions[one.partition], one) if one.partition in partitions else one
        for broker in part.brokers:
            brokers[broker.broker] = _links(brokers[broker.broker], broker) if broker.broker in brokers else broker
    return KafkaStats(
        topic=parts[0].topic,
        partitions=tuple(partitions[number] for number in sorted(partitions)),
        brokers=tuple(brokers[name] for name in sorted(brokers)),
        readers=sum(part.readers for part in parts),
        queue_records=sum(part.queue_records for part in parts),
        queue_bytes=sum(part.queue_bytes for part in parts),
        rebalances=sum(part.rebalances for part in parts),
        at=min(part.at for part in [part for part in parts if part.readers] or parts),  # not of those that have left
    )


def _both(a: PartitionStats, b: PartitionStats) -> PartitionStats:
    """One partition by two readers: what they received together, and what the one that knows more knows."""
    return PartitionStats(
        a.partition,
        position=_of(max, a.position, b.position),
        end=_of(max, a.end, b.end),
        low=_of(max, a.low, b.low),
        records=a.records + b.records,
        size=a.size + b.size,
        rate=_of(lambda x, y: x + y, a.rate, b.rate),
        leader=a.leader if a.leader is not None else b.leader,
        seconds=_of(min, a.seconds, b.seconds),
    )


def _links(a: BrokerStats, b: BrokerStats) -> BrokerStats:
    return BrokerStats(
        a.broker,
        a.state if a.state not in ("UP", "") else b.state or a.state,
        latency=_of(lambda x, y: (x + y) / 2, a.latency, b.latency),
        latency_p99=_of(max, a.latency_p99, b.latency_p99),
        throttle=_of(max, a.throttle, b.throttle),
        fetches=a.fetches + b.fetches,
        disconnects=a.disconnects + b.disconnects,
    )


def _of(both: Callable[[_T, _T], _T], a: _T | None, b: _T | None) -> _T | None:
    if a is None or b is None:
        return b if a is None else a
    return both(a, b)
