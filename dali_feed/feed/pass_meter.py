"""PassMeter: what the training loop's thread notes down of one pass."""

from __future__ import annotations

import time

from dali_feed.feed.clock import FeedClock
from dali_feed.feed.garbage import PAUSES
from dali_feed.feed.meter import Meter

__all__ = ["PassMeter"]


class PassMeter:
    """Of the pass over that epoch. Processors and the collector are watched from its first batch to its `end`."""

    def __init__(self, meter: Meter, epoch: int) -> None:
        self._meter, self._epoch = meter, epoch
        self._batch = 0
        self._begun = 0.0
        self._under_way = False

    def asked(self) -> None:
        """For the next batch."""
        if not self._batch and not self._under_way:
            self._under_way = True
            self._meter.passes.began()
            PAUSES.watch()
        self._begun = time.perf_counter()
        self._meter.loop.asked(self._begun, first=not self._batch)

    def came(self, *, more: bool) -> None:
        """It is there; or, with `more` False, an error or the end in its place."""
        now, meter = time.perf_counter(), self._meter
        meter.steps.add(self._begun, now, meter.newest or FeedClock(), first=not self._batch)
        meter.loop.came(now)
        self._batch += 1
        if not more:
            self.end()

    def end(self) -> None:
        """No more are asked for. May be called twice."""
        if self._under_way:
            self._under_way = False
            PAUSES.leave()
            self._meter.passes.ended()
