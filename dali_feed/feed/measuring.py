"""A search for the tuning of one feed, on its own data, with feeds of its own.

The law: the feed that it is for is not touched: no batch of it is taken, no dead letter is written, no sampler is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from dali_feed.feed.rivals import Rivals
from dali_feed.options import AutoTuning, Tuning
from dali_feed.tuner.ladders import Ladders, ladders
from dali_feed.tuner.race import Trial
from dali_feed.tuner.search import Outcome, best_of, search

__all__ = ["AnyOrder", "Tell", "measured", "turn_seconds"]

Tell = Callable[[Trial], None]
_SHORTEST, _LONGEST, _TURNS = 0.2, 3.0, 60  # of a turn, in seconds; and how many a search has time for


class AnyOrder:
    """A sampler: each of `length()` samples once, anywhere."""

    def __init__(self, length: Callable[[], int]) -> None:
        self._length = length

    def __iter__(self) -> Iterator[int]:
        return iter(np.random.default_rng(0).permutation(self._length()).tolist())


def turn_seconds(seconds: float) -> float:
    """How long a turn counts batches, in a search of so many seconds."""
    return min(_LONGEST, max(_SHORTEST, seconds / _TURNS))


def measured(feed: Any, asked: AutoTuning, seconds: float, tell: Tell = lambda _: None) -> Outcome:
    """Search for about so long; `tell` gets each trial as it is over. An interrupt ends it with what was found.

    Raises a DaliFeedError where records cannot be read.
    """
    most = asked.most_threads(gpu=feed.device is not None)
    start = asked.defaults(gpu=feed.device is not None)
    start = start if start.threads else replace(start, threads=most)
    trials: list[Trial] = []
    rivals = Rivals(feed.alike, turn_seconds(seconds))
    try:
        with rivals:
            for trial in _trials(feed, asked, start, most, rivals, _Time(seconds)):
                trials.append(trial)
                tell(trial)
    except KeyboardInterrupt:  # while they are closed too
        rivals.close()
        return Outcome(start, tuple(trials), broken=True)
    return Outcome(start, tuple(trials))


def _trials(feed: Any, asked: AutoTuning, start: Tuning, most: int, rivals: Rivals, left: _Time) -> Iterator[Trial]:
    """Those of threads, readers and batches in flight; then of a cache, where there is time to fill one."""
    snapshot, trials = feed.snapshot, []
    samples = -(-len(snapshot) // feed.world_size)
    every = ladders(asked, start, most_threads=most, data=samples * snapshot.record_bytes)
    caches = {name: rungs for name, rungs in every.items() if name == "cache"}
    for trial in _timed(search(start, _without(every, "cache"), rivals.turn, left.enough), left):
        trials.append(trial)
        yield trial
    best = best_of(start, trials)
    rate = next((trial.rate_before for trial in trials if trial.rates), 0.0)
    if caches and rate and 2 * samples / rate < left.seconds:
        yield from _timed(search(best, caches, rivals.turn, left.enough), left)


def _without(every: Ladders, name: str) -> Ladders:
    return {each: rungs for each, rungs in every.items() if each != name}


def _timed(trials: Iterator[Trial], left: _Time) -> Iterator[Trial]:
    for trial in trials:
        left.mark()
        yield trial


class _Time:
    """What is left of the time, and whether another race fits in: two, for the last one is all steps at once."""

    def __init__(self, seconds: float) -> None:
        self._end, self._mark, self._longest = time.monotonic() + seconds, time.monotonic(), 0.0

    @property
    def seconds(self) -> float:
        """Left."""
        return self._end - time.monotonic()

    def mark(self) -> None:
        """A race is over."""
        now = time.monotonic()
        self._longest, self._mark = max(self._longest, now - self._mark), now

    def enough(self) -> bool:
        """For the race at hand and one more; for the first one there always is."""
        return not self._longest or self.seconds > 2 * self._longest
