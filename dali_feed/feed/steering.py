"""Steers a pool of readers: measures intervals at the ends of reads, has each judged, keeps what was decided.

It has no thread and no timer: where nothing is read, nothing is to be decided.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from dali_feed.cores import cores
from dali_feed.feed.adapting import Bounds, Decision, Facts, Reading, Standing, decide
from dali_feed.feed.meter import Meter
from dali_feed.options import Tuning

__all__ = ["Counts", "Policy", "Steering", "steering_for"]

FIRST_READERS, MOST_READERS = 2, 8  # of "auto"
FETCH_BYTES = 16 << 20  # what a reader may hold by itself at its usual amount: a queue and a fetch
FETCH_PART = 8  # of the memory for payloads, one part for such
SECONDS, READS = 3.0, 5  # an interval is at least so long, and has so many reads of each reader
KEPT = 20

Policy = Callable[[Standing, Facts, Bounds], tuple[Standing, Decision | None]]

log = logging.getLogger("dali_feed")


@dataclass(frozen=True, slots=True)
class Counts:
    """Of a pool since it was made: reads done, bytes they hold, seconds of reading; and reads not begun now."""

    reads: int
    size: int
    busy: float
    queued: int


@dataclass(frozen=True, slots=True)
class _Mark:
    """Where an interval begins."""

    at: float
    counts: Counts
    waited: float
    cpu: float


class Steering:
    """Thread-safe. Any reader's thread may look; only one at a time measures.

    Args:
        first: what the pool begins with.
        bounds: between what it may choose.
        meter: knows how long the feed has waited for reads.
        policy: what decides.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        first: Reading,
        bounds: Bounds,
        meter: Meter,
        *,
        policy: Policy = decide,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._standing, self._bounds, self._meter = Standing(first), bounds, meter
        self._cores, self._policy, self._clock = cores(), policy, clock
        self._lock = threading.Lock()
        self._settles = True  # the interval has a change in it, or the first connections
        self._mark = self._now(Counts(0, 0, 0.0, 0))
        self._decisions: deque[Decision] = deque(maxlen=KEPT)

    @property
    def decisions(self) -> tuple[str, ...]:
        """The last ones, as they were logged."""
        return tuple(map(str, list(self._decisions)))

    def look(self, counts: Counts) -> Reading | None:
        """Where an interval ends here, what follows from it: another choice, or None."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            mark, readers = self._mark, self._standing.reading.readers
            seconds = self._clock() - mark.at
            if seconds < SECONDS or counts.reads - mark.counts.reads < READS * readers:
                return None
            now = self._mark = self._now(counts)
            if self._settles:
                self._settles = False
                return None
            facts = Facts(
                seconds=max(seconds, 1e-6),
                size=counts.size - mark.counts.size,
                busy=counts.busy - mark.counts.busy,
                waited=now.waited - mark.waited,
                queued=counts.queued,
                cpu=now.cpu - mark.cpu,
                cores=self._cores,
            )
            self._standing, decision = self._policy(self._standing, facts, self._bounds)
            if decision is None:
                return None
            self._settles = True
            self._decisions.append(decision)
            log.info("%s", decision)
            return self._standing.reading
        finally:
            self._lock.release()

    def _now(self, counts: Counts) -> _Mark:
        stage, seconds = self._meter.now()
        waited = self._meter.read_wait + (seconds if stage == "read_wait" else 0.0)
        return _Mark(self._clock(), counts, waited, time.process_time())


def steering_for(tuning: Tuning, source: object, meter: Meter, policy: Policy = decide) -> Steering | None:
    """The steering of `Tuning(readers="auto")`; None where their number is given."""
    if tuning.readers != "auto":
        return None
    ahead = max(1, tuning.memory_bytes // FETCH_PART // FETCH_BYTES)
    bounds = Bounds(1, MOST_READERS, getattr(source, "most_fetch_times", 1), ahead)
    return Steering(Reading(FIRST_READERS), bounds, meter, policy=policy)
