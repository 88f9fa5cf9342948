"""How many threads read, and how much each fetches at once: facts of an interval in, the next choice out. Pure.

The law: order and contents of batches never depend on it. It climbs, and keeps only what has paid: whoever waits
for reads gets one more reader, or larger fetches, or less of them, on trial. Machines have good and bad moments, so
that is tried twice, and taken back in between: what is not faster by a tenth each time, than before and than after, is
taken back for good. A direction that did not pay, the opposite of one that did, and each way down for want of work
rest for twice as many intervals as the time before; so whatever the facts are, changes become rare.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from dali_feed.cores import cores
from dali_feed.feed.meter import Meter
from dali_feed.options import Tuning

__all__ = [
    "Bounds",
    "Counts",
    "Decision",
    "Facts",
    "Policy",
    "Reading",
    "Standing",
    "Steering",
    "decide",
    "steering_for",
]


Way = Literal["readers", "fetch", "less", "smaller", "fewer"]
_OPPOSITE: dict[Way, Way] = {"readers": "less", "less": "readers", "fetch": "smaller", "smaller": "fetch"}

WAITS = 0.1  # share of the time that the feed waits for reads, from which on more is tried
CONTENT = 0.02  # and up to which one reader less may do
BUSY = 0.8  # share of its time that a reader reads, from which on another one would have work
SPARE = 0.7  # share that those left may be busy, after one has gone
FULL = 0.9  # share of the CPUs from which on nothing can be gained
REMOTE = 0.5  # CPU seconds of the process per second of a reader, below which reads wait for the network
GAIN = 0.1  # by how much the rate must rise
TRIES = 2  # each of which must pay
FEW = 5  # intervals in a row in which a reader was not needed, before it goes
FIRST, LONGEST = 8, 256  # intervals that a direction rests


@dataclass(frozen=True, slots=True)
class Reading:
    """What is chosen: threads that read, and how many times its usual amount each fetches at once."""

    readers: int
    fetch: int = 1

    def __str__(self) -> str:
        return f"readers {self.readers}" + (f", fetches x{self.fetch}" if self.fetch > 1 else "")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Between what it may choose.

    least, most  readers
    fetch        the largest `Reading.fetch`; 1 where the source has none to set
    ahead        how many usual fetches all readers together may hold
    """

    least: int
    most: int
    fetch: int = 1
    ahead: int = 16

    def hold(self, reading: Reading) -> bool:
        """Whether it is within them. One fetch of the usual size is always allowed."""
        held = reading.readers * reading.fetch <= self.ahead or reading.fetch == 1
        return self.least <= reading.readers <= self.most and 1 <= reading.fetch <= self.fetch and held


@dataclass(frozen=True, slots=True)
class Facts:
    """An interval. Times in seconds, sizes in bytes.

    seconds  how long it was
    size     payloads that were read
    busy     time that readers read, all together
    waited   time that the feed waited for reads
    queued   reads at its end that were asked for and not begun: 0 where the memory allows no more
    cpu      CPU time of the process
    cores    how many these are; a quota may allow a part of one
    """

    seconds: float
    size: int
    busy: float
    waited: float
    queued: int
    cpu: float
    cores: float

    @property
    def rate(self) -> float:
        """Bytes per second."""
        return self.size / self.seconds

    @property
    def waits(self) -> float:
        """Share of the time that the feed waited for reads, 0..1."""
        return min(1.0, self.waited / self.seconds)

    @property
    def load(self) -> float:
        """Share of the CPUs that the process uses."""
        return self.cpu / self.seconds / self.cores

    def __str__(self) -> str:
        return (
            f"the feed waits {100 * self.waits:.0f} % of the time for reads, CPU {100 * self.load:.0f} % of"
            f" {self.cores:g} cores, {self.rate / 1e6:.0f} MB/s"
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """A change, and why."""

    before: Reading
    after: Reading
    why: str

    def __str__(self) -> str:
        if self.before.readers != self.after.readers:
            return f"readers {self.before.readers} -> {self.after.readers}: {self.why}"
        return f"fetches x{self.before.fetch} -> x{self.after.fetch}: {self.why}"


@dataclass(frozen=True, slots=True)
class ReaderTrial:
    """A change to be judged. `rates` are those without it and with it, in turns."""

    way: Way
    before: Reading
    tried: Reading
    rates: tuple[float, ...]

    def __str__(self) -> str:
        without, given = (" and ".join(f"{rate / 1e6:.0f}" for rate in self.rates[n::2]) for n in (0, 1))
        return f"{given} MB/s with it, {without} without"


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known between intervals."""

    reading: Reading
    trial: ReaderTrial | None = None
    idle: int = 0  # intervals in a row in which a reader was not needed
    rests: dict[Way, int] = field(default_factory=dict)  # intervals that are left
    next_rests: dict[Way, int] = field(default_factory=dict)

    def resting(self, way: Way) -> Standing:
        """The same, after a change of no use: that direction rests, and the next time twice as long."""
        rest = self.next_rests.get(way, FIRST)
        return replace(
            self,
            rests=self.rests | {way: rest},
            next_rests=self.next_rests | {way: min(LONGEST, 2 * rest)},
        )


def decide(standing: Standing, facts: Facts, bounds: Bounds) -> tuple[Standing, Decision | None]:
    """What an interval's facts lead to; None: all stays as it is."""
    if standing.trial is not None:
        return _judged(standing, facts, standing.trial)
    standing = replace(standing, rests={way: left - 1 for way, left in standing.rests.items() if left > 1})
    reading = standing.reading
    if _wants_more(facts, reading):
        for way, tried in _more(facts, reading):
            if way not in standing.rests and bounds.hold(tried):
                moved = replace(standing, reading=tried, trial=ReaderTrial(way, reading, tried, (facts.rate,)), idle=0)
                return moved, Decision(reading, tried, str(facts))
        return replace(standing, idle=0), None
    return _fewer(standing, facts, bounds)


def _wants_more(facts: Facts, reading: Reading) -> bool:
    """Whether the feed waits, for readers that all have work, with more of it, and CPU is left; and it can be judged.

    Of tables that are mapped no bytes are counted.
    """
    busy = facts.busy / facts.seconds / reading.readers
    return facts.waits >= WAITS and busy >= BUSY and facts.queued > 0 and facts.load < FULL and facts.size > 0


def _more(facts: Facts, reading: Reading) -> list[tuple[Way, Reading]]:
    """What could be tried, the best first: larger fetches where reads wait for the network and not for the CPU."""
    readers, fetch = reading.readers, reading.fetch
    ways: list[tuple[Way, Reading]] = [
        ("readers", replace(reading, readers=readers + 1)),
        ("less", replace(reading, readers=readers - 1)),
        ("smaller", replace(reading, fetch=fetch // 2)),
    ]
    if facts.cpu < REMOTE * facts.busy:
        ways.insert(0, ("fetch", replace(reading, fetch=2 * fetch)))
    return ways


def _judged(standing: Standing, facts: Facts, trial: ReaderTrial) -> tuple[Standing, Decision | None]:
    """Keep what is tried, take it back for good, or change over once more."""
    before, tried, here = trial.before, trial.tried, standing.reading
    trial = replace(trial, rates=(*trial.rates, facts.rate))
    done, with_it = replace(standing, trial=None), here == tried
    if with_it and facts.waits < WAITS:
        return done, None
    *_, last, now = trial.rates
    if not (now >= (1 + GAIN) * last if with_it else last >= (1 + GAIN) * now):
        done = replace(done.resting(trial.way), reading=before)
        return done, Decision(here, before, f"it did not pay: {trial}") if with_it else None
    if len(trial.rates) > 2 * TRIES:
        done = replace(done.resting(_OPPOSITE[trial.way]), reading=tried)
        return done, Decision(before, tried, f"it pays: {trial}")
    other = before if with_it else tried
    return replace(standing, reading=other, trial=trial), Decision(here, other, f"to compare: {trial}")


def _fewer(standing: Standing, facts: Facts, bounds: Bounds) -> tuple[Standing, Decision | None]:
    """One reader less, where that has been enough for some intervals."""
    reading = standing.reading
    fewer = replace(reading, readers=reading.readers - 1)
    enough = facts.busy / facts.seconds <= SPARE * fewer.readers
    if not (enough and facts.waits <= CONTENT and bounds.hold(fewer)) or "fewer" in standing.rests:
        return replace(standing, idle=0), None
    if standing.idle + 1 < FEW:
        return replace(standing, idle=standing.idle + 1), None
    done = replace(standing.resting("fewer"), reading=fewer, idle=0)
    return done, Decision(reading, fewer, f"{reading.readers} were busy {facts.busy / facts.seconds:.1f} at a time")


# Steers a pool of readers: measures intervals at the ends of reads, has each judged, keeps what was decided.
#
# It has no thread and no timer: where nothing is read, nothing is to be decided.


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
        waited = self._meter.spent()["source"] + (seconds if stage == "source" else 0.0)
        return _Mark(self._clock(), counts, waited, time.process_time())


def steering_for(tuning: Tuning, source: object, meter: Meter, policy: Policy = decide) -> Steering | None:
    """The steering of `Tuning(readers="auto")`; None where their number is given."""
    if tuning.readers != "auto":
        return None
    ahead = max(1, tuning.memory_bytes // FETCH_PART // FETCH_BYTES)
    bounds = Bounds(1, MOST_READERS, getattr(source, "most_fetch_times", 1), ahead)
    return Steering(Reading(FIRST_READERS), bounds, meter, policy=policy)
