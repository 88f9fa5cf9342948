"""Meter: adds up what the feed thread and the training loop do; each thread writes numbers of its own."""

from __future__ import annotations

import gc
import math
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dali_feed.cores import cores
from dali_feed.feed.stats import CpuStats, Stats, WaitCause
from dali_feed.feed.usable import Look
from dali_feed.screen.screen import Screened

__all__ = [
    "CAUSES",
    "WAITS_OF",
    "WORKS",
    "FeedClock",
    "Meter",
    "PassClock",
    "PassMeter",
    "Pauses",
    "Span",
    "StepWaits",
    "spent_on",
]


# The feed thread's clock: what it is at, and for how long; no moment counts twice.
#
# It is read once per change of what the thread is at: six times per batch, twice more per read for the header checks
# and per repair. A reading, with its entry in the list of the last ones, takes about half a microsecond; nothing is
# locked.


KEPT = 256  # changes: a wait for a batch sees some dozen
Span = tuple[str, float, float]  # what it was at, from, to

# What the thread waits in, and the sum of waits that it belongs to.
WAITS_OF = {
    "source": "read_wait",
    "engine": "engine_wait",
    "repair": "engine_wait",
    "trainer": "trainer_wait",
    "dead letters": "letters_wait",
}
WORKS = ("screen", "deal", "finish", "mend")
REST = "rest"  # until the training loop asks for a pass that was begun ahead
_BEHIND = {"source": "deal", "engine": "finish", "trainer": "deal"}  # a wait: the work behind it


class FeedClock:
    """Written by one thread; any other may look."""

    __slots__ = ("at", "past", "spent")

    def __init__(self) -> None:
        self.at = "deal", time.perf_counter()
        self.past: deque[Span] = deque(maxlen=KEPT)
        self.spent = dict.fromkeys((*WAITS_OF, *WORKS, REST), 0.0)

    def switch(self, state: str) -> tuple[str, float]:
        """From here on it is at that; what it was at, and for how many seconds."""
        now = time.perf_counter()
        before, since = self.at
        self.at = state, now
        self.past.append((before, since, now))
        self.spent[before] += now - since
        return before, now - since

    def behind(self, wait: str, before: str) -> str:
        """What the thread is at when a wait is over that it began while it was at `before`."""
        return _BEHIND.get(wait, before)

    def spans(self) -> list[Span]:
        """The last changes, oldest first, and what it is at now, without an end."""
        state, since = self.at
        spans = list(self.past)  # in one step: the thread goes on writing
        spans.append((state, since, math.inf))
        return spans


# The training loop's clock: what it does between two batches, and what making its tensors takes.
#
# Three clock calls per batch, of which the wait for the batch needs two anyway.


class LoopClock:
    """Used by the training loop's thread.

    worked    seconds between a batch that was handed over and the call for the next one
    handover  seconds from a batch that was there to the tensors that the loop got
    """

    def __init__(self) -> None:
        self.worked = self.handover = 0.0
        self.samples = 0  # that the loop worked on
        self.last_samples = 0
        self._came = 0.0
        self._given: float | None = None

    def asked(self, now: float, *, first: bool) -> None:
        """For the next batch; `first` of a pass: what the loop did before it was no training on a batch."""
        given, self._given = self._given, None
        if given is not None and not first:
            self.worked += now - given
            self.samples += self.last_samples

    def came(self, now: float) -> None:
        """The batch is there."""
        self._came = now

    def given(self, samples: int) -> None:
        """The loop gets it."""
        now = time.perf_counter()
        self.handover += now - self._came
        self._given, self.last_samples = now, samples


# What goes through the feed thread, and how long the engine takes for a batch, seen from outside.
#
# The law: only batches that were waited for tell how long the engine takes. Of one that was done before it was asked
# for nobody knows when.


WAITED = 50e-6  # seconds from which on a batch was not ready yet


class Service:
    """Used by the feed thread; one clock call per batch.

    dealt, landed  samples given to the engine, and taken from it
    seconds        that the engine took for `samples`, those of batches that were waited for
    """

    def __init__(self) -> None:
        self.dealt = self.landed = self.samples = 0
        self.seconds = 0.0
        self._begun: deque[float] = deque()
        self._free = 0.0  # since when the engine has had nothing older to do

    def began(self, samples: int) -> None:
        """A batch was given to the engine."""
        self.dealt += samples
        self._begun.append(time.perf_counter())

    def ended(self, samples: int, asked: float, done: float) -> None:
        """The oldest one was asked for at a time, and there at another."""
        begun = self._begun.popleft()
        self.landed += samples
        if done - asked > WAITED and self._free:
            self.seconds += done - max(begun, self._free)
            self.samples += samples
        self._free = done

    def dropped(self) -> None:
        """The oldest one will not be taken; the next batch that is, is a first one."""
        self._begun.popleft()
        self._free = 0.0


# What a wait of the training loop was spent on: what the feed thread was at while it lasted. Pure.


# What the feed thread is at -> why the loop waits. While the feed thread waits for the loop, a batch is there.
CAUSES = {
    "source": "source",
    "engine": "engine",
    "dead letters": "dead letters",
    "repair": "repair",
    "mend": "repair",
    "screen": "feed",
    "deal": "feed",
    "finish": "feed",
    "trainer": "hand-over",
}


def spent_on(
    spans: Sequence[Span], pauses: Sequence[tuple[float, float]], begun: float, ended: float
) -> dict[str, float]:
    """Seconds of the wait from `begun` to `ended` by cause; they add up to it.

    spans   what the feed thread was at, in order
    pauses  of Python's garbage collector, in order, in which no thread runs: they count as nothing else
    """
    whole = max(0.0, ended - begun)
    found: dict[str, float] = {}
    for state, since, until in reversed(spans):
        if until <= begun:
            break
        # Without calls: this is done a few times for every batch.
        first = since if since > begun else begun  # noqa: FURB136
        last = until if until < ended else ended  # noqa: FURB136
        if first < last:
            cause = CAUSES.get(state, "unknown")
            found[cause] = found.get(cause, 0.0) + (last - first)
    known = sum(found.values())
    if whole > known:
        found["unknown"] = found.get("unknown", 0.0) + whole - known
    stopped = 0.0
    for since, until in reversed(pauses):
        if until <= begun:
            break
        stopped += max(0.0, min(until, ended) - max(since, begun))
    stopped = min(whole, stopped)
    if stopped > 0:
        found = {cause: seconds * (1 - stopped / whole) for cause, seconds in found.items()}
        found["garbage"] = stopped
    return found


# Pauses of Python's garbage collector, in which no thread of the process runs Python.
#
# The collector tells only while a pass is under way; a collection costs two calls of a function then, of which most are
# of the youngest objects and end at once.


LEAST = 0.5e-3  # seconds, below which a pause explains nothing
PAUSES_KEPT = 64


class Pauses:
    """The last pauses of the process, (from, to) on the clock of `time.perf_counter`."""

    def __init__(self) -> None:
        self.last: deque[tuple[float, float]] = deque(maxlen=PAUSES_KEPT)
        self._begun: float | None = None  # of the collection under way; None: none, or it began before it was watched
        self._watched, self._lock = 0, threading.Lock()

    def watch(self) -> None:
        """Note them down from here on; each call wants its `leave`."""
        with self._lock:
            self._watched += 1
            if self._watched == 1:
                gc.callbacks.append(self._heard)

    def leave(self) -> None:
        """One less wants them."""
        with self._lock:
            self._watched -= 1
            if not self._watched and self._heard in gc.callbacks:
                gc.callbacks.remove(self._heard)

    def _heard(self, phase: str, info: dict[str, Any]) -> None:
        del info
        now = time.perf_counter()
        if phase == "start":
            self._begun = now
            return
        begun, self._begun = self._begun, None
        if begun is not None and now - begun >= LEAST:
            self.last.append((begun, now))


PAUSES = Pauses()

# Waits of the training loop for its batches: how long, and what for.
#
# A wait is one entry in a list. Only of one above 20 microseconds the cause is looked for, which takes some
# microseconds more.


WAITS_KEPT = 4096
SHORT = 20e-6  # seconds up to which nobody asks why


class StepWaits:
    """Written by the training loop's thread; any other may look."""

    def __init__(self) -> None:
        self._waits: deque[float] = deque(maxlen=WAITS_KEPT)
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


# How busy the process's processors are while passes are under way.


class PassClock:
    """Wall time and the process's CPU time while at least one pass is under way: read twice per pass."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._passes = 0
        self._wall = self._cpu = 0.0
        self._begun = 0.0, 0.0
        self._cores = cores()

    def began(self) -> None:
        """A pass more."""
        with self._lock:
            if not self._passes:
                self._begun = time.perf_counter(), time.process_time()
            self._passes += 1

    def ended(self) -> None:
        """A pass less."""
        with self._lock:
            self._passes -= 1
            if not self._passes:
                wall, cpu = self._begun
                self._wall += time.perf_counter() - wall
                self._cpu += time.process_time() - cpu

    def stats(self) -> CpuStats:
        """Up to now."""
        with self._lock:
            wall, cpu = self._wall, self._cpu
            if self._passes:
                wall += time.perf_counter() - self._begun[0]
                cpu += time.process_time() - self._begun[1]
        return CpuStats(self._cores, cpu / wall if wall > 0 else 0.0, wall)


_STATES = {"read_wait": "source", "engine_wait": "engine", "trainer_wait": "trainer", "letters_wait": "dead letters"}


class _At:
    """A class and not a generator, which would be slower: it is entered several times per batch."""

    __slots__ = ("_before", "_clock", "_meter", "_state")

    def __init__(self, meter: Meter, state: str) -> None:
        self._meter, self._state = meter, state

    def __enter__(self) -> None:
        self._clock = self._meter.clock()
        self._before = self._meter.switch(self._state, self._clock)

    def __exit__(self, *_: object) -> None:
        self._meter.switch(self._clock.behind(self._state, self._before), self._clock)


class Meter:
    """Adds up; each feed thread has a clock of its own."""

    def __init__(self) -> None:
        self.samples = self.batches = self.absent = self.bad = self.bytes_read = 0
        self.feed_cpu = self.read_wait = self.engine_wait = self.trainer_wait = 0.0
        self.letters_wait = 0.0
        self.screened = 0  # records
        self.steps, self.loop, self.passes, self.service = StepWaits(), LoopClock(), PassClock(), Service()
        self.recent_bad: deque[tuple[str, str]] = deque(maxlen=100)
        self._here = threading.local()
        self.newest: FeedClock | None = None
        self._clocks: list[tuple[threading.Thread, FeedClock]] = []
        self._spent = dict.fromkeys((*WAITS_OF, *WORKS, REST), 0.0)  # of threads that have ended
        self._lock = threading.Lock()

    # The feed thread's clock.

    def clock(self) -> FeedClock:
        """This thread's; the newest one is that of the pass under way."""
        found: FeedClock | None = getattr(self._here, "clock", None)
        if found is None:
            found = FeedClock()
            with self._lock:
                for thread, left in self._clocks[:]:
                    if not thread.is_alive():
                        self._clocks.remove((thread, left))
                        self._spent = {state: self._spent[state] + left.spent[state] for state in self._spent}
                self._clocks.append((threading.current_thread(), found))
            self._here.clock = self.newest = found
        return found

    def switch(self, state: str, clock: FeedClock) -> str:
        """From here on this thread, whose clock that is, is at that. What it was at, and for how long, is added up."""
        before, seconds = clock.switch(state)
        if (wait := WAITS_OF.get(before)) is not None:
            setattr(self, wait, getattr(self, wait) + seconds)
        return before

    def waiting(self, name: str) -> _At:
        """A context that adds the wall time of its block, less header checks inside it, to the wait of that name."""
        return _At(self, _STATES[name])

    def at(self, state: str) -> _At:
        """A context in which the thread is at that; see `feed.clock`."""
        return _At(self, state)

    def landed(self, samples: int) -> None:
        """A batch of so many was taken from the engine; this thread has just waited for it."""
        _, asked, done = self.clock().past[-1]
        self.service.ended(samples, asked, done)

    def now(self) -> tuple[str, float]:
        """Which wait the newest feed thread is in, or "", and for how many seconds."""
        if self.newest is None:
            return "", 0.0
        state, since = self.newest.at
        return WAITS_OF.get(state, ""), time.perf_counter() - since

    def looks(self, look: Look) -> Look:
        """The same header checks, counted. A call each per read."""

        def counted(payloads: Sequence[memoryview | None], fields: Mapping[str, Any]) -> Screened:
            with self.at("screen"):
                found = look(payloads, fields)
            self.screened += len(payloads)
            return found

        return counted

    def spent(self) -> dict[str, float]:
        """Seconds that feed threads were at each thing."""
        with self._lock:
            parts = [self._spent, *(clock.spent for _, clock in self._clocks)]
            return {state: sum(part[state] for part in parts) for state in self._spent}

    def stats(self, slab_peak: int) -> Stats:
        """All of it, as it is now."""
        waits = {"source": self.read_wait, "engine": self.engine_wait, "trainer": self.trainer_wait}
        return Stats(
            samples=self.samples,
            batches=self.batches,
            absent=self.absent,
            bad=self.bad,
            bytes_read=self.bytes_read,
            slab_peak=slab_peak,
            feed_cpu=self.feed_cpu,
            read_wait=self.read_wait,
            engine_wait=self.engine_wait,
            trainer_wait=self.trainer_wait,
            letters_wait=self.letters_wait,
            step_wait_p50=self.steps.quantile(0.5),
            step_wait_p99=self.steps.quantile(0.99),
            bottleneck=max(waits, key=lambda name: waits[name]) if self.batches else "",
            recent_bad=tuple(self.recent_bad),
            step_wait=self.steps.total,
            wait_causes=self.steps.causes,
            cpu=self.passes.stats(),
        )


# PassMeter: what the training loop's thread notes down of one pass.


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
