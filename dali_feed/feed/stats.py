"""Stats: where the time of an epoch went, per stage, and which stage waited for which."""

from __future__ import annotations

from dataclasses import dataclass, fields

from dali_feed.feed.stages import CpuStats, Running, StageStats, WaitCause
from dali_feed.feed.verdict import verdict
from dali_feed.records.gauges import CacheStats, KafkaStats
from dali_feed.records.storage_stats import StorageStats

__all__ = ["Stats"]


@dataclass(frozen=True, slots=True)
class Stats:
    """What a loader has counted and measured since it was made. Times are in seconds, sizes in bytes.

    samples, batches  handed to the training loop
    absent            records that were absent (an offset without a record) and were replaced
    bad               records found bad, once per epoch each
    bytes_read        bytes of encoded images read, counted some time after they are used; 0 for a mapped table
    slab_peak         most memory that encoded images took at once
    feed_cpu          CPU time of the feed thread: header checks, random numbers, hand-over to the engine
    read_wait         time the feed thread waited for the source; the largest wait: the source is the bottleneck
    engine_wait       time it waited for the engine; the largest wait: decoding is the bottleneck
    trainer_wait      time it waited for the training loop; the largest wait: the model is the bottleneck
    letters_wait      time it waited until dead letters were written
    step_wait_p50     what the training loop waits per step: half of the last steps waited at most this
    step_wait_p99     99 of 100 of the last steps waited at most this
    bottleneck        "source", "engine" or "trainer": the largest of these three waits; "" before the first batch.
                      Where torch's own DataLoader runs a dataset, which does not separate source and decoding:
                      "torch" or "trainer"; `engine_wait` is the loop's time in next(), `trainer_wait` the time
                      between, and what torch does not count is 0
    recent_bad        the last bad records, (where, reason)
    kafka             what the consumers of a Kafka source measure; None: another source, or nothing yet
    readers           threads that read the source now; 0 before the first batch
    fetch_times       so many times as much as usual a reader fetches at once; only for a Kafka source it can be more
                      than 1
    cache             of `Tuning(cache=...)`: hits and what is kept; None: there is none
    decisions         with `Tuning(readers="auto")` the last changes of `readers` and `fetch_times`, and why
    storage           what was measured of reading files, one for each store that was read; () if the source reads no
                      files
    stages            in order, from the source to the loop; () before the first batch
    cpu               how busy the process's processors were while passes were under way
    step_wait         how long the training loop waited for its batches, in all
    wait_causes       why it waited, the longest first; their sum is `step_wait`
    running           settings that are in use; None before the first batch
    verdict           who holds up the training loop, in a sentence; the last line of the text too
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
    cache: CacheStats | None = None
    stages: tuple[StageStats, ...] = ()
    cpu: CpuStats | None = None
    step_wait: float = 0.0
    wait_causes: tuple[WaitCause, ...] = ()
    running: Running | None = None

    @property
    def verdict(self) -> str:
        """What the training loop waits for, and what may help: `dali_feed.feed.verdict` as a sentence."""
        return verdict(self).sentence

    def __str__(self) -> str:
        lists = (
            *("recent_bad", "decisions", "kafka", "storage", "cache"),
            *("stages", "cpu", "wait_causes", "running"),
        )
        lines = [f"{f.name:14} {getattr(self, f.name)}" for f in fields(self) if f.name not in lists]
        lines += [] if self.kafka is None else [f"{'kafka':14} {self.kafka}"]
        lines += [f"{'storage':14} {line}" for each in self.storage for line in str(each).splitlines()]
        lines += [] if self.cache is None else [f"{'cache':14} {self.cache}"]
        lines += [f"{'':14} {where}: {reason}" for where, reason in self.recent_bad[-5:]]
        lines += [f"{'':14} {each}" for each in self.decisions[-5:]]
        lines += [f"{'stage':14} {each}" for each in self.stages]
        lines += [f"{'wait for':14} {each}" for each in self.wait_causes]
        lines += [] if self.cpu is None else [f"{'cpu':14} {self.cpu}"]
        return "\n".join([*lines, f"{'verdict':14} {self.verdict}"])
