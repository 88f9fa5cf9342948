"""How many threads read, and how much each fetches at once: facts of an interval in, the next choice out. Pure.

The law: order and contents of batches never depend on it. It climbs, and keeps only what has paid: whoever waits
for reads gets one more reader, or larger fetches, on trial. Where the rate has not risen by a tenth, that is taken
back; where it has, it is taken back too and the rate measured once more, because machines have good and bad moments:
what beats both is kept. A direction that did not pay, and each way down, rests for twice as many intervals as the
time before; so whatever the facts are, changes become rare.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

__all__ = ["Bounds", "Decision", "Facts", "Reading", "Standing", "decide"]

Way = Literal["readers", "fetch", "fewer"]

WAITS = 0.1  # share of the time that the feed waits for reads, from which on more is tried
CONTENT = 0.02  # and up to which one reader less may do
BUSY = 0.8  # share of its time that a reader reads, from which on another one would have work
SPARE = 0.7  # share that those left may be busy, after one has gone
FULL = 0.9  # share of the CPUs from which on nothing can be gained
REMOTE = 0.5  # CPU seconds of the process per second of a reader, below which reads wait for the network
GAIN = 0.1  # by how much the rate must rise
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
    used     CPU time of everybody, on the CPUs that the process may use
    cores    how many these are, at least 1
    """

    seconds: float
    size: int
    busy: float
    waited: float
    queued: int
    cpu: float
    used: float
    cores: int

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
        """Share of the CPUs that is used, by whomever: 0..1, but for rounding."""
        return max(self.cpu, self.used) / self.seconds / self.cores

    def __str__(self) -> str:
        return (
            f"the feed waits {100 * self.waits:.0f} % of the time for reads, CPU {100 * self.load:.0f} % of"
            f" {self.cores} cores, {self.rate / 1e6:.0f} MB/s"
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
class Trial:
    """A change to be judged. `rates` are those before it, with it, and, where that was better, once more without."""

    way: Way
    before: Reading
    tried: Reading
    rates: tuple[float, ...]

    def __str__(self) -> str:
        names = ("before", "with it", "again without")
        return ", ".join(f"{rate / 1e6:.0f} MB/s {name}" for rate, name in zip(self.rates, names, strict=False))


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known between intervals."""

    reading: Reading
    trial: Trial | None = None
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
                moved = replace(standing, reading=tried, trial=Trial(way, reading, tried, (facts.rate,)), idle=0)
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
    ways: list[tuple[Way, Reading]] = [("readers", replace(reading, readers=reading.readers + 1))]
    if facts.cpu < REMOTE * facts.busy:
        ways.insert(0, ("fetch", replace(reading, fetch=2 * reading.fetch)))
    return ways


def _judged(standing: Standing, facts: Facts, trial: Trial) -> tuple[Standing, Decision | None]:
    """Keep what was tried, take it back, or take it back to compare."""
    before, tried = trial.before, trial.tried
    trial = replace(trial, rates=(*trial.rates, facts.rate))
    done = replace(standing, trial=None)
    if standing.reading == before:  # it was better, and is compared
        if trial.rates[1] >= (1 + GAIN) * facts.rate:
            return replace(done, reading=tried), Decision(before, tried, f"it pays: {trial}")
        return done.resting(trial.way), None
    if facts.waits < WAITS:
        return done, None
    if facts.rate >= (1 + GAIN) * trial.rates[0]:
        return replace(standing, reading=before, trial=trial), Decision(tried, before, f"to compare: {trial}")
    return replace(done.resting(trial.way), reading=before), Decision(tried, before, f"it did not pay: {trial}")


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
