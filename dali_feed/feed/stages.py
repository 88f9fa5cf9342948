"""What is measured of a running loader beside its counts: stages, processors, and waits of the training loop.

Plain numbers and text, so that they can be written, sent and drawn as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CpuStats", "Running", "StageStats", "WaitCause"]


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
