"""What is measured of a running loader beside its counts: stages, processors, and waits of the training loop.

Plain numbers and text, so that they can be written, sent and drawn as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CpuStats", "LongWait", "ReplayStats", "Running", "StageStats", "WaitCause"]

DELAYED = 0.1  # share of the time from which on it is said


@dataclass(frozen=True, slots=True)
class StageStats:
    """A stage of the way from the source to the training loop, since the loader was made. Seconds of its threads.

    name      "read": readers of the source; "screen": header checks; "deal": slots, random numbers, inputs of the
              engine; "engine": decode and transform; "finish": columns, and copies to a GPU; "handover": what makes
              tensors of a batch; "train": the training loop between two batches. screen, deal and finish share the feed
              thread, handover and train the loop's
    threads   of it
    samples   that it worked on; of an engine that does not say what its threads do, those it was waited for
    waited    for input: a reader for its disk, network or broker; deal for records, finish for the engine, train for
              batches
    worked    at work. A reader: its CPU time. An engine that does not say what its threads do: seconds that it took as
              a whole
    blocked   for room: a reader without a request, finish until the loop takes a batch. Idle threads of an engine are
              shared out between `waited` and `blocked` as the feed thread's own waits were
    rate      samples/s that it alone could give with these threads; None where too little is known
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

    cores    that it may use: those of its affinity, fewer where a cgroup limits it; a limit can be a part of one
    busy     of them, on average
    seconds  that passes were under way
    delayed  of these, for how many the training loop's thread could have run and had no processor; None where the
             kernel does not say
    """

    cores: float
    busy: float
    seconds: float
    delayed: float | None = None

    def __str__(self) -> str:
        said = f"{self.busy:.1f} of {self.cores:g} cores busy"
        if self.delayed is None or self.delayed <= DELAYED * self.seconds:
            return said
        return f"{said}, while the loop's thread waited {self.delayed / self.seconds:.0%} of the time for a processor"


@dataclass(frozen=True, slots=True)
class WaitCause:
    """For how many seconds the training loop waited because of something.

    cause    "source", "engine", "feed" (the feed thread was at work), "dead letters", "repair" (of a bad record),
             "hand-over" (the batch was there, and the loop's thread had no processor or not Python's lock), "garbage"
             (Python's collector), "first batch" (of a pass, whatever it took), "torch" (its own DataLoader) or
             "unknown"
    seconds  of waits, all together
    """

    cause: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.cause}: {self.seconds:.2f} s"


@dataclass(frozen=True, slots=True)
class LongWait:
    """A wait of the training loop that was over 1 ms, and over four times as long as half of the last ones.

    epoch    of its pass; 0 of a stream
    batch    that was waited for, counted from 0 in its pass
    seconds  of the wait
    cause    as in `WaitCause`: what most of it was spent on
    share    0..1: how much of it that was
    during   as `cause`, but for a first batch what most of it was spent on
    """

    epoch: int
    batch: int
    seconds: float
    cause: str
    share: float
    during: str

    def __str__(self) -> str:
        why = self.cause if self.cause == self.during else f"{self.cause} ({self.during})"
        return f"{self.seconds * 1e3:.1f} ms for batch {self.batch} of epoch {self.epoch}: {why}, {self.share:.0%}"


@dataclass(frozen=True, slots=True)
class ReplayStats:
    """What the training loop did with batches that were served again: `DataLoader.replay`.

    batches, samples  served
    seconds           that it took
    """

    batches: int
    samples: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Running:
    """What runs, as far as it says what can be changed.

    engine    "host", "dali" or "torch"
    on_gpu    whether batches are made on a GPU
    prefetch  as in `Tuning`
    memory    as in `Tuning`, bytes
    """

    engine: str
    on_gpu: bool
    prefetch: int
    memory: int
