"""Waits of the training loop for its batches: how long, and what for.

A wait is one entry in a list. Only of one above 20 microseconds the cause is looked for, which takes some microseconds
more.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from dali_feed.feed.clock import FeedClock
from dali_feed.feed.garbage import PAUSES
from dali_feed.feed.overlaps import spent_on
from dali_feed.feed.stages import WaitCause

__all__ = ["StepWaits"]

KEPT = 4096
SHORT = 20e-6  # seconds up to which nobody asks why


class StepWaits:
    """Written by the training loop's thread; any other may look."""

    def __init__(self) -> None:
        self._waits: deque[float] = deque(maxlen=KEPT)
        self.total = 0.0
        self._by_cause: dict[str, float] = {}

    def add(self, begun: float, ended: float, clock: FeedClock | None, *, first: bool) -> None:
        """A wait on the clock of `time.perf_counter`.

        `clock`: the feed thread's; None: torch's own loader works. `first`: of a pass.
        """
        seconds = ended - begun
        self._waits.append(seconds)
        self.total += seconds
        if seconds <= SHORT:
            cause = "first batch" if first else "unknown"
            self._by_cause[cause] = self._by_cause.get(cause, 0.0) + seconds
            return
        if first:
            found = {"first batch": seconds}
        elif clock is None:
            found = {"torch": seconds}
        else:
            found = spent_on(clock.spans(), list(PAUSES.last), begun, ended)
        for cause, part in found.items():
            self._by_cause[cause] = self._by_cause.get(cause, 0.0) + part

    def quantile(self, q: float) -> float:
        """Of the last waits, seconds; 0 before the first."""
        return float(np.quantile(np.asarray(list(self._waits) or [0.0]), q))

    @property
    def causes(self) -> tuple[WaitCause, ...]:
        """What the loop waited for, most first."""
        found = sorted(self._by_cause.copy().items(), key=lambda item: -item[1])
        return tuple(WaitCause(cause, seconds) for cause, seconds in found)
