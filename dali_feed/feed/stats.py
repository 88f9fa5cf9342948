"""Stats: where the time of an epoch went, per stage, and which stage waited for which."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, fields

import numpy as np

from dali_feed.records.gauges import KafkaStats
from dali_feed.records.storage_stats import StorageStats

__all__ = ["Meter", "Stats"]

KEPT_WAITS = 4096


@dataclass(frozen=True, slots=True)
class Stats:
    """Since the loader was made. Times in seconds, sizes in bytes.

    samples, batches  handed to the training loop
    absent            records that were absent (an offset without a record) and were replaced
    bad               records found bad, once per epoch each
    bytes_read        bytes of encoded images read, counted some time after they are used; 0 for a mapped table
    slab_peak         most memory that encoded images took at once
    feed_cpu          CPU time of the feed thread: header checks, random numbers, hand-over to the engine
    read_wait         time the feed thread waited for the source; the largest wait: the source is the bottleneck
    engine_wait       time it waited for the engine; the largest wait: decoding is the bottleneck
    trainer_wait      time it waited for the training loop; the largest wait: the model is the bottleneck
    letters_wait      time it waited for dead letters to be taken
    step_wait_p50     what the training loop waits per step: half of the last steps waited at most this
    step_wait_p99     99 of 100 of the last steps waited at most this
    bottleneck        "source", "engine" or "trainer": the largest of these three waits; "" before the first batch.
                      Where torch's own DataLoader runs a dataset, which does not tell source and decoding apart:
                      "torch" or "trainer"; `engine_wait` is the loop's time in next(), `trainer_wait` the time
                      between, and what torch does not count is 0
    recent_bad        the last bad records, (where, reason)
    kafka             what the consumers of a Kafka source measure; None: another source, or nothing yet
    readers           threads that read the source now; 0 before the first batch
    fetch_times       how many times its usual amount a reader fetches at once; a Kafka source's can be more than 1
    decisions         with `Tuning(readers="auto")` the last changes of the two, and why
    storage           what reading files measures, one for each store that was read; () where the source does not
    """

    samples: int
    batches: int
    absent: int
    bad: int
    bytes_read: int
    slab_peak: int
    feed_cpu: float
    read_wait: float
    engine_wait: float
    trainer_wait: float
    letters_wait: float
    step_wait_p50: float
    step_wait_p99: float
    bottleneck: str
    recent_bad: tuple[tuple[str, str], ...]
    kafka: KafkaStats | None = None
    readers: int = 0
    fetch_times: int = 1
    decisions: tuple[str, ...] = ()
    storage: tuple[StorageStats, ...] = ()

    def __str__(self) -> str:
        lists = ("recent_bad", "decisions", "kafka", "storage")
        lines = [f"{f.name:14} {getattr(self, f.name)}" for f in fields(self) if f.name not in lists]
        lines += [] if self.kafka is None else [f"{'kafka':14} {self.kafka}"]
        lines += [f"{'storage':14} {line}" for each in self.storage for line in str(each).splitlines()]
        lines += [f"{'':14} {where}: {reason}" for where, reason in self.recent_bad[-5:]]
        return "\n".join(lines + [f"{'':14} {each}" for each in self.decisions[-5:]])


class _Wait:
    """A class and not a generator, which would be slower: it is entered three times per batch."""

    __slots__ = ("_begun", "_meter", "_name")

    def __init__(self, meter: Meter, name: str) -> None:
        self._meter, self._name = meter, name

    def __enter__(self) -> None:
        self._begun = time.perf_counter()
        self._meter.at = self._name, self._begun

    def __exit__(self, *_: object) -> None:
        self._meter.at = "", time.perf_counter()
        waited = getattr(self._meter, self._name) + time.perf_counter() - self._begun
        setattr(self._meter, self._name, waited)


class Meter:
    """Adds up; the feed thread and the training loop's thread each write numbers of their own."""

    def __init__(self) -> None:
        self.samples = self.batches = self.absent = self.bad = self.bytes_read = 0
        self.feed_cpu = self.read_wait = self.engine_wait = self.trainer_wait = 0.0
        self.letters_wait = 0.0
        self.at = "", time.perf_counter()  # which wait the feed thread is in, and since when
        self.step_waits: deque[float] = deque(maxlen=KEPT_WAITS)
        self.recent_bad: deque[tuple[str, str]] = deque(maxlen=100)

    def waiting(self, name: str) -> _Wait:
        """A context that adds the wall time of its block to the wait of that name."""
        return _Wait(self, name)

    def now(self) -> tuple[str, float]:
        """Which wait the feed thread is in, or "", and for how many seconds."""
        stage, since = self.at
        return stage, time.perf_counter() - since

    def stats(self, slab_peak: int) -> Stats:
        """All of it, as it is now."""
        waits = np.asarray(list(self.step_waits) or [0.0])
        stages = {"source": self.read_wait, "engine": self.engine_wait, "trainer": self.trainer_wait}
        return Stats(
            samples=self.samples,
            batches=self.batches,
            absent=self.absent,
            bad=self.bad,
            bytes_read=self.bytes_read,
            slab_peak=slab_peak,
            feed_cpu=self.feed_cpu,
            read_wait=self.read_wait,
            engine_wait=self.engine_wait,
            trainer_wait=self.trainer_wait,
            letters_wait=self.letters_wait,
            step_wait_p50=float(np.quantile(waits, 0.5)),
            step_wait_p99=float(np.quantile(waits, 0.99)),
            bottleneck=max(stages, key=lambda name: stages[name]) if self.batches else "",
            recent_bad=tuple(self.recent_bad),
        )
