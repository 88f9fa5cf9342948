"""Waits of the training loop for its batches: how long, what for, and the long ones by themselves.

A wait is one entry in a list. Only of one above 20 microseconds the cause is looked for, which takes some microseconds
more; and half of the last waits are sorted anew once in 32.
"""

from __future__ import annotations

import statistics
from collections import deque

import numpy as np

from dali_feed.feed.clock import FeedClock
from dali_feed.feed.garbage import PAUSES
from dali_feed.feed.overlaps import spent_on
from dali_feed.feed.stages import LongWait, WaitCause

__all__ = ["StepWaits"]

KEPT, LONG_KEPT = 4096, 100
SHORT = 20e-6  # seconds up to which nobody asks why
LONG, TIMES = 1e-3, 4.0  # a long wait is over so many seconds, and so many times the median
RECENT, ANEW = 256, 32  # waits that the median is of, and after how many it is taken again


class StepWaits:
    """Written by the training loop's thread; any other may look."""

    def __init__(self) -> None:
        self._waits: deque[float] = deque(maxlen=KEPT)
        self.total = 0.0
        self._by_cause: dict[str, float] = {}
        self._long: deque[LongWait] = deque(maxlen=LONG_KEPT)
        self._median, self._count = 0.0, 0

    def add(self, begun: float, ended: float, clock: FeedClock | None, *, epoch: int, batch: int) -> None:
        """A wait on the clock of `time.perf_counter`. `clock`: the feed thread's; None: torch's own loader works."""
        seconds = ended - begun
        if self._count and (not self._count % ANEW or not self._count & (self._count - 1)):  # at 1, 2, 4, ... too
            self._median = statistics.median(list(self._waits)[-RECENT:])
        self._count += 1
        self._waits.append(seconds)
        self.total += seconds
        if seconds <= SHORT:
            cause = "first batch" if not batch else "unknown"
            self._by_cause[cause] = self._by_cause.get(cause, 0.0) + seconds
            return
        if clock is None:
            found = {"torch": seconds}
        else:
            found = spent_on(clock.spans(), list(PAUSES.last), begun, ended)
        during = max(found, key=found.__getitem__)
        share = found[during] / seconds
        if not batch:
            found = {"first batch": seconds}
        for cause, part in found.items():
            self._by_cause[cause] = self._by_cause.get(cause, 0.0) + part
        if seconds > LONG and seconds > TIMES * self._median:
            self._long.append(
                LongWait(epoch, batch, seconds, during if batch else "first batch", share if batch else 1.0, during)
            )

    def quantile(self, q: float) -> float:
        """Of the last waits, seconds; 0 before the first."""
        return float(np.quantile(np.asarray(list(self._waits) or [0.0]), q))

    @property
    def causes(self) -> tuple[WaitCause, ...]:
        """What the loop waited for, most first."""
        found = sorted(self._by_cause.copy().items(), key=lambda item: -item[1])
        return tuple(WaitCause(cause, seconds) for cause, seconds in found)

    @property
    def long(self) -> tuple[LongWait, ...]:
        """The last long ones, oldest first."""
        return tuple(self._long)
