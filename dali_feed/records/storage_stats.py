"""What reading files measures, wherever they lie: how much and how fast; summed over readers.

The law: each reader counts what it asked for itself, so that sums over readers count nothing twice, not even where
readers share a cache or a target. What is not known is None, never 0. Nothing here is ever read by a run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

__all__ = ["LATENCIES", "StorageMeter", "StorageStats", "Stored", "TargetStats", "in_all", "storage_of"]

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
        stores[part.store] = part if known is None else _both(known, part)
    return tuple(stores[name] for name in sorted(stores))


def _both(a: StorageStats, b: StorageStats) -> StorageStats:
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
