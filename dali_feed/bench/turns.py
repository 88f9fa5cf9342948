"""How benches measure: contestants take turns, and the median of its turns is each one's figure.

The law: contestants take turns (a, b, c, a, b, c, ...), each made afresh for its turn; a turn's first steps are not
counted. Ratios are taken within a round, where the machine was as busy for both, and then the median of those.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from dali_feed.bench.contract import Steps
from dali_feed.bench.usage import cpu_here, cpu_seconds, peak_rss, reset_peak

__all__ = ["Listener", "Make", "Measured", "Turn", "quantiles", "rate_of", "ratios", "run_turn", "spread", "take_turns"]

WARM_STEPS = 6  # more than the batches that any contestant has in flight
WARM_SECONDS = 0.5
LATE = "the time of --quick ended before its turn; leave --quick out"
Make = Callable[[], AbstractContextManager[Steps]]


@dataclass(slots=True)
class Turn:
    """One contestant's turn. Times in seconds, memory in bytes.

    cpu           CPU time of this process and its children within the counted time
    beside_cpu    that of the process that the contestant named as `beside`
    consumer_cpu  that of the thread that takes the batches
    waits         how long each step took to give its batch
    peak          most memory held at once, children included
    notes         what the contestant itself has to say, numbers by name
    told          and what our loader says in words
    """

    images: int
    seconds: float
    cpu: float
    beside_cpu: float
    consumer_cpu: float
    waits: list[float]
    peak: int
    notes: dict[str, float] = field(default_factory=dict)
    told: dict[str, Any] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Images per second."""
        return self.images / self.seconds


def run_turn(make: Make, seconds: float, *, warm: int = WARM_STEPS) -> Turn:
    """Make a contestant, let it warm up, and count what it does for so many seconds."""
    reset_peak()
    with make() as steps:
        begun = time.perf_counter()
        while warm > 0 or time.perf_counter() - begun < min(WARM_SECONDS, seconds):
            next(steps)
            warm -= 1
        steps.begins()
        images, waits = 0, []
        beside = cpu_seconds(steps.beside) if steps.beside else 0.0
        cpu, consumer, begun = cpu_here(), time.thread_time(), time.perf_counter()
        now = begun
        while now - begun < seconds:
            before = now
            images += next(steps)
            now = time.perf_counter()
            waits.append(now - before)
        used, used_here, peak = cpu_here() - cpu, time.thread_time() - consumer, peak_rss()
        beside = cpu_seconds(steps.beside) - beside if steps.beside else 0.0
    return Turn(images, now - begun, used, beside, used_here, waits, peak, dict(steps.notes), dict(steps.told))


def rate_of(batches: Iterable[Any]) -> float:
    """Images per second of one pass over a loader, whose batches are tuples that begin with their images."""
    images, begun = 0, time.perf_counter()
    for batch in batches:
        images += len(batch[0])
    return images / (time.perf_counter() - begun)


def spread(values: Iterable[float]) -> tuple[float, float, float]:
    """Median, least and most."""
    known = list(values)
    return median(known), min(known), max(known)


def quantiles(turns: Sequence[Turn]) -> tuple[float, float]:
    """p50 and p99 of the steps of all turns, in seconds."""
    waits = np.concatenate([turn.waits for turn in turns])
    return float(np.quantile(waits, 0.5)), float(np.quantile(waits, 0.99))


def ratios(turns: Sequence[Turn], beside: Sequence[Turn]) -> tuple[float, float, float]:
    """Rates over those of another contestant in the same rounds: median, least and most."""
    return spread(turn.rate / other.rate for turn, other in zip(turns, beside, strict=False))  # as far as both came


class Listener:
    """Hears how a bench goes on; does nothing with it."""

    def begins(self, who: str, way: str, done: int, total: int) -> None:
        """A turn, after `done` of about `total` turns."""

    def took(self, who: str, way: str, turn: Turn) -> None:
        """The turn is over."""

    def failed(self, who: str, way: str, reason: str) -> None:
        """It has no turn; where `way` is "" or the last one, it is out."""


@dataclass(slots=True)
class Measured:
    """What was found so far, by contestant: a turn for each round, the way it goes, or why it is out.

    late  those who had no turn, as the time was up
    """

    turns: dict[str, list[Turn]] = field(default_factory=dict)
    ways: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)

    @property
    def missing(self) -> dict[str, str]:
        """Who has no figures, and why."""
        failed = {who: f"failed: {reason}" for who, reason in self.failed.items()}
        return failed | dict.fromkeys(self.late, LATE)


def take_turns(
    contestants: Mapping[str, Mapping[str, Make]],
    found: Measured,
    *,
    repeats: int,
    seconds: float,
    listener: Listener | None = None,
    until: float = math.inf,
) -> None:
    """Every contestant's turns, into `found`, where an interrupted run leaves what it had.

    In the first round each goes all its ways; with the fastest it goes on. Whoever fails is out, and the others go on.

    Args:
        contestants: by name, and each one's ways by name, "" for an only one.
        found: what is added to.
        repeats: rounds.
        seconds: of a turn, beside its warm-up.
        listener: hears of each turn.
        until: on the clock of `time.perf_counter`, the time from which on no other turn begins.
    """
    heard, done = listener or Listener(), 0
    for number in range(repeats):
        entries = [
            (who, way)
            for who, ways in contestants.items()
            if who not in found.failed
            for way in (ways if number == 0 else [found.ways[who]])
        ]
        for k, (who, way) in enumerate(entries):
            if time.perf_counter() >= until:
                found.late += [name for name in contestants if name not in found.turns and name not in found.failed]
                return
            later = (len(contestants) - len(found.failed)) * (repeats - number - 1)
            heard.begins(who, way, done, done + len(entries) - k + later)
            done += 1
            try:
                turn = run_turn(contestants[who][way], seconds)
            except Exception as error:  # noqa: BLE001  whatever it fails on, the others are measured
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                heard.failed(who, way, reason)
                if number > 0 or who not in found.turns:
                    found.turns.pop(who, None)
                    found.failed[who] = reason
                continue
            heard.took(who, way, turn)
            found.failed.pop(who, None)  # another of its ways does not fail
            if number > 0:
                found.turns[who].append(turn)
            elif who not in found.turns or turn.rate > found.turns[who][0].rate:
                found.turns[who], found.ways[who] = [turn], way
