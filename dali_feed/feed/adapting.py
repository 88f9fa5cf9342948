"""How many threads read with `Tuning(readers="auto")`: a hill climb on how long the training loop waits for the source.

The law: order and contents of batches never depend on it. A change is a trial: it stays where the loop then waits a
tenth less per sample, or no longer waits. A direction that did not pay rests for twice as many intervals as the time
before, and so does the way down after each change that stayed; so whatever is measured, changes become rare.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from dali_feed import sync
from dali_feed.feed.meter import Meter

FIRST_READERS, MOST_READERS = 2, 8
WAITS = 0.1  # share of its time that the loop waits for the source, from which on another number is tried
CONTENT = 0.02  # and up to which one reader less is tried
GAIN = 0.1  # part of the wait per sample that a change must take away
FIRST, LONGEST = 8, 256  # intervals that a direction rests
SECONDS, BATCHES = 3.0, 5  # an interval is at least so long, and has so many batches

log = logging.getLogger("dali_feed")


@dataclass(frozen=True, slots=True)
class Interval:
    """What the training loop saw: how long that was, how long it waited for the source, and its samples."""

    seconds: float
    waited: float
    samples: int

    @property
    def share(self) -> float:
        """Part of its time that the loop waited."""
        return min(1.0, self.waited / self.seconds)

    @property
    def per_sample(self) -> float:
        """Seconds that it waited for each sample."""
        return self.waited / max(1, self.samples)

    def __str__(self) -> str:
        return f"{100 * self.share:.0f} % of its time, {self.samples / self.seconds:.0f} samples/s"


class Climb:
    """One number of readers after another, 1 to `most`; without a clock.

    Args:
        readers: the first number.
        most: the largest.
    """

    def __init__(self, readers: int = FIRST_READERS, most: int = MOST_READERS) -> None:
        self.readers, self._most = readers, most
        self._trial: tuple[int, Interval] | None = None  # the step to be judged, and what was seen before it
        self._rests = {1: 0, -1: 0}  # intervals that each step still rests
        self._next_rests = {1: FIRST, -1: FIRST}

    def next(self, seen: Interval) -> str:
        """Choose `readers` for the next interval; why, where that is another number, and else an empty text."""
        if self._trial is not None:
            (step, before), self._trial = self._trial, None
            pays = seen.share <= CONTENT or seen.per_sample <= (1 - GAIN) * before.per_sample
            self._rest(-1 if pays else step)
            return "" if pays else self._go(-step, f"it did not pay: the loop waits {seen}; before, {before}")
        self._rests = {step: max(0, left - 1) for step, left in self._rests.items()}
        if CONTENT < seen.share < WAITS:
            return ""
        for step in (1, -1) if seen.share >= WAITS else (-1,):
            if not self._rests[step] and 1 <= self.readers + step <= self._most:
                self._trial = step, seen
                return self._go(step, f"the loop waits for the source {seen}")
        return ""

    def _go(self, step: int, why: str) -> str:
        self.readers += step
        return f"readers {self.readers - step} -> {self.readers}: {why}"

    def _rest(self, step: int) -> None:
        self._rests[step] = self._next_rests[step]
        self._next_rests[step] = min(LONGEST, 2 * self._next_rests[step])


class Steering:
    """Measures intervals at the ends of reads; it has no thread: where nothing is read, nothing is to be decided."""

    def __init__(self, meter: Meter, climb: Climb) -> None:
        self._meter, self._climb = meter, climb
        self._lock = sync.Lock()  # all below: any reader's thread may look
        self._settles = True  # the interval has a change in it, or the first connections
        self._begun = self._counts()

    def look(self) -> int | None:
        """Where an interval ends here and another number of readers follows from it: that number."""
        with self._lock:
            at, waited, batches, samples = self._begun
            seconds = sync.monotonic() - at
            if seconds < SECONDS or self._meter.batches - batches < BATCHES:
                return None
            _, waits_now, _, samples_now = self._begun = self._counts()
            if self._settles:
                self._settles = False
                return None
            why = self._climb.next(Interval(max(seconds, 1e-6), waits_now - waited, samples_now - samples))
            if not why:
                return None
            self._settles = True
            log.info("%s", why)
            return self._climb.readers

    def _counts(self) -> tuple[float, float, int, int]:
        meter = self._meter
        waited = sum(each.seconds for each in meter.loop.causes if each.cause == "source")
        return sync.monotonic(), waited, meter.batches, meter.samples
