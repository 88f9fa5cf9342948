"""The verdict: which stage the training loop waits for, in a sentence, and what may help. Pure.

The law: it says only what the numbers show. Advice never changes a batch without saying so, and none is given where a
stage has already what it would ask for: more threads only where cores are free for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dali_feed.feed.stages import CpuStats, Running, StageStats, WaitCause

__all__ = ["Measured", "Verdict", "verdict"]

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


class Measured(Protocol):
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


def verdict(stats: Measured) -> Verdict:
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


def _advice(cause: str, stats: Measured, stages: dict[str, StageStats]) -> tuple[str, ...]:
    if cause == "source" and "read" in stages:
        return tuple(_for_source(stats, stages["read"]))
    if cause == "engine" and "engine" in stages and stats.running is not None:
        return tuple(_for_engine(stats, stages["engine"], stats.running))
    return _ALWAYS.get(cause, ())


def _for_source(stats: Measured, read: StageStats) -> Sequence[str]:
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


def _for_engine(stats: Measured, engine: StageStats, running: Running) -> Sequence[str]:
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
