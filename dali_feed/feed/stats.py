"""Stats: where the time of an epoch went, per stage, and which stage waited for which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol

from dali_feed.records.gauges import CacheStats, KafkaStats, StorageStats

__all__ = ["CpuStats", "Running", "StageStats", "Stats", "WaitCause", "verdict"]


# What is measured of a running loader beside its counts: stages, processors, and waits of the training loop.
#
# Plain numbers and text, so that they can be written, sent and drawn as they are.


@dataclass(frozen=True, slots=True)
class StageStats:
    """What one stage between the source and the training loop did, in seconds of its threads.

    name      "read": readers of the source; "screen": header checks; "deal": slots, random numbers, inputs of the
              engine; "engine": decode and transform; "finish": columns, and copies to a GPU; "handover": what makes
              tensors of a batch; "train": the training loop between two batches. screen, deal and finish share the feed
              thread, handover and train the loop's
    threads   how many threads it has
    samples   samples that it worked on; for an engine that does not report on its threads, those that the feed thread
              waited for
    waited    time that it waited for input: a reader for its disk, network or broker; deal for records, finish for the
              engine, train for batches
    worked    time that it worked. A reader: its CPU time. An engine that does not report on its threads: seconds that
              it took as a whole
    blocked   time that it waited for room: a reader without a request, finish until the loop takes a batch. The idle
              time of an engine's threads is divided between `waited` and `blocked` as the feed thread's own waits are
    rate      samples/s that it could give alone with these threads; None if too little is known
    """

    name: str
    threads: int
    samples: int
    waited: float
    worked: float
    blocked: float
    rate: float | None

    def __str__(self) -> str:
        alone = "" if self.rate is None else f"; alone {self.rate:,.0f} samples/s"
        spent = f"waited {self.waited:.1f} s, worked {self.worked:.1f} s, blocked {self.blocked:.1f} s"
        return f"{self.name:8} {self.threads} thread{'s' if self.threads > 1 else ''}: {spent}{alone}"


@dataclass(frozen=True, slots=True)
class CpuStats:
    """The process's CPU time while passes were under way.

    cores    cores that the process may use, by its affinity and the limit of its cgroup; such a limit need not be a
             whole number
    busy     how many of them worked, on average
    seconds  how long passes were under way
    """

    cores: float
    busy: float
    seconds: float

    def __str__(self) -> str:
        return f"{self.busy:.1f} of {self.cores:g} cores busy"


@dataclass(frozen=True, slots=True)
class WaitCause:
    """One reason why the training loop waited, and for how many seconds.

    cause    "source", "engine", "feed" (the feed thread was at work), "dead letters", "repair" (of a bad record),
             "hand-over" (the batch was ready, and the loop's thread waited for a processor or for Python's lock),
             "garbage" (Python's collector), "first batch" (of a pass, whatever the reason), "torch" (its own
             DataLoader) or "unknown"
    seconds  sum of these waits
    """

    cause: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.cause}: {self.seconds:.2f} s"


@dataclass(frozen=True, slots=True)
class Running:
    """Settings of the running loader that a user can change.

    engine    "host", "dali" or "torch"
    on_gpu    whether batches are made on a GPU
    prefetch  as in `Tuning`
    memory    as in `Tuning`, bytes
    """

    engine: str
    on_gpu: bool
    prefetch: int
    memory: int


# The verdict: which stage the training loop waits for, in a sentence, and what may help. Pure.
#
# The law: it says only what the numbers show. Advice never changes a batch without saying so, and none is given where a
# stage has already what it would ask for: more threads only where cores are free for them.


LITTLE = 0.05  # share of the loop's time: who waits less is not held up by the loader
FREE = 0.9  # of the cores: above it none is free
TAKEN = 0.6  # of what busy threads could use: below it something else uses the cores
IDLE = 0.5  # of the readers' time without a request: more readers would have none either
LATENT = 0.7  # of a read's time off the processor: it waits for a disk, a network or a broker
FULL = 0.8  # of the memory: more reads have no room

_BOUND = {
    "source": ("source-bound", "reading"),
    "engine": ("decode-bound", "the decoder"),
    "feed": ("feed-bound", "the loader's own thread: header checks, random numbers, making batches"),
    "dead letters": ("dead-letter-bound", "writing dead letters"),
    "repair": ("repair-bound", "running batches with bad records again"),
    "garbage": ("garbage-bound", "Python's garbage collector"),
    "first batch": ("start-bound", "the first batches of passes"),
    "torch": ("torch-bound", "torch's own DataLoader, whose stages cannot be measured"),
    "hand-over": (
        "processor-bound",
        "taking batches that are ready: its thread waits for a processor or for Python's lock",
    ),
    "unknown": ("unclear", "nothing that was measured"),
}

_ALWAYS = {
    "feed": ("a larger batch_size: its fixed costs per sample are smaller", "fewer columns, if some are not used"),
    "dead letters": ("a dead-letter sink that is faster: a folder on a local disk",),
    "repair": ("leaving out the records in recent_bad: each one makes a batch run again",),
    "garbage": ("gc.freeze() after the model is made, so that a collection has fewer objects to check",),
    "first batch": ("longer passes: each begins with a wait for its first batch",),
    "torch": ("num_workers, or a source of ours in place of the dataset",),
}


class HasFigures(Protocol):
    """What of a loader's `Stats` it is made of."""

    @property
    def batches(self) -> int:
        """Handed to the loop."""
        ...

    @property
    def slab_peak(self) -> int:
        """Bytes that encoded images took at most."""
        ...

    @property
    def step_wait(self) -> float:
        """Seconds that the loop waited."""
        ...

    @property
    def wait_causes(self) -> tuple[WaitCause, ...]:
        """What for, most first."""
        ...

    @property
    def stages(self) -> tuple[StageStats, ...]:
        """On the way."""
        ...

    @property
    def cpu(self) -> CpuStats | None:
        """Of the process."""
        ...

    @property
    def running(self) -> Running | None:
        """What runs."""
        ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the training loop waits for, and what may help.

    bottleneck  a cause of `WaitCause`, or "trainer": the loop waits for almost nothing; "" before the first batch
    share       0..1: its part of the loop's wait; for "trainer" the part of the time that the loop does not wait
    sentence    the whole verdict in words
    advice      what may help, the best first; () if the numbers do not show it
    """

    bottleneck: str
    share: float
    sentence: str
    advice: tuple[str, ...]


def verdict(stats: HasFigures) -> Verdict:
    """What the numbers say.

    Args:
        stats: of a loader or feed, `stats()`.
    """
    stages = {stage.name: stage for stage in stats.stages}
    train, handover = stages.get("train"), stages.get("handover")
    if not stats.batches or train is None:
        return Verdict("", 0.0, "nothing is known yet: no batch was taken", ())
    works = train.worked + (0.0 if handover is None else handover.worked)
    whole = works + stats.step_wait
    cores = "" if stats.cpu is None or stats.cpu.seconds <= 0 else f"; {stats.cpu}"
    waits = stats.step_wait / whole if whole > 0 else 0.0
    if waits < LITTLE or not stats.wait_causes:
        rate = _alone(stages)
        could = "" if rate is None else f"; the loader alone could give {rate:,.0f} samples/s"
        said = f"training-bound: the loop waits {waits:.0%} of its time for batches{cores}{could}"
        return Verdict("trainer", 1 - waits, said, ())
    most = stats.wait_causes[0]
    share = min(1.0, most.seconds / stats.step_wait) if stats.step_wait > 0 else 0.0
    bound, who = _BOUND[most.cause]
    advice = _advice(most.cause, stats, stages)
    tried = f"; try {advice[0]}" if advice else ""
    said = f"{bound}: {share:.0%} of the step wait is {who}{cores}{_could(train, whole)}{tried}"
    return Verdict(most.cause, share, said, advice)


def _alone(stages: dict[str, StageStats]) -> float | None:
    """Samples/s of the slowest part of the loader, where all are known: readers, engine, and the feed thread."""
    parts = [stages[name].rate for name in ("read", "engine") if name in stages]
    mine = [stages[name] for name in ("screen", "deal", "finish") if name in stages]
    each = [1 / stage.rate for stage in mine if stage.rate]
    known = [rate for rate in parts if rate is not None] + ([1 / sum(each)] if each else [])
    return min(known) if len(known) == len(parts) + 1 else None


def _could(train: StageStats, whole: float) -> str:
    """How fast the loop is, and would be if batches cost it nothing."""
    alone = train.rate
    if alone is None or whole <= 0 or not train.samples:
        return ""
    return f"; the loop gets {train.samples / whole:,.0f} samples/s and could take {alone:,.0f}"


def _advice(cause: str, stats: HasFigures, stages: dict[str, StageStats]) -> tuple[str, ...]:
    if cause == "source" and "read" in stages:
        return tuple(_for_source(stats, stages["read"]))
    if cause == "engine" and "engine" in stages and stats.running is not None:
        return tuple(_for_engine(stats, stages["engine"], stats.running))
    return _ALWAYS.get(cause, ())


def _for_source(stats: HasFigures, read: StageStats) -> Sequence[str]:
    spent = read.waited + read.worked + read.blocked
    reads = read.waited + read.worked
    if spent > 0 and read.blocked > IDLE * spent:
        full = stats.running is not None and stats.slab_peak > FULL * stats.running.memory > 0
        return ("Tuning(memory=...): readers have no room to read ahead",) if full else ()
    if reads > 0 and read.waited > LATENT * reads:
        more = f"Tuning(readers={2 * read.threads}): reads spend {read.waited / reads:.0%} of their time waiting"
        return (more, "Tuning(cache=...) or a DiskCache, for what is read again in later epochs")
    if _free(stats.cpu):
        return (f"Tuning(readers={read.threads + 1}): readers are at work all the time, and a core is free",)
    return ("fewer decoder threads, or more cores: readers want processor time",)


def _for_engine(stats: HasFigures, engine: StageStats, running: Running) -> Sequence[str]:
    advice, cpu = [], stats.cpu
    if cpu is not None and engine.threads < int(cpu.cores) and _free(cpu):
        advice.append(f"Tuning(threads={int(cpu.cores)}): it has {engine.threads} of {cpu.cores:g} cores")
    if running.on_gpu:
        advice.append("Decode(hardware=...): a share for the GPU's JPEG engine, which changes pixels")
        advice.append("Tuning(cache=Cache(device=...)): later epochs decode nothing, if only flips are random")
        return advice
    if running.engine == "host":
        if cpu is not None and cpu.busy < TAKEN * min(cpu.cores, engine.threads) and _at_work(engine):
            advice.append("freeing the cores: its threads have work, but something else uses the processors")
        advice.append("Tuning(cache=Cache(..., pixels=True)): later epochs decode nothing, where the images fit")
    return advice


def _free(cpu: CpuStats | None) -> bool:
    return cpu is not None and cpu.busy < FREE * cpu.cores


def _at_work(stage: StageStats) -> bool:
    spent = stage.waited + stage.worked + stage.blocked
    return spent > 0 and stage.worked > FULL * spent


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
        """What the training loop waits for, and what may help: `dali_feed.feed.stats` as a sentence."""
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
