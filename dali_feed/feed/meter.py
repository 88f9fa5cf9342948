"""Meter: adds up what the feed thread and the training loop do; each thread writes numbers of its own."""

from __future__ import annotations

import gc
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dali_feed import sync
from dali_feed.engines.device.ranges import WAITS
from dali_feed.feed.stats import CpuStats, Stats, WaitCause
from dali_feed.options import cores
from dali_feed.records.source import Block

# The feed thread's clock: what it is at, and for how long; no moment counts twice.
#
# It is read once per change of what the thread is at: six times per batch, and twice more per repair. A reading, with
# its entry in the list of the last ones, takes about half a microsecond; nothing is locked.


WAITED = 50e-6  # seconds from which on a batch was not ready yet
KEPT = 64  # changes: a wait for a batch sees some dozen, and copies them all
Span = tuple[str, float, float]  # what it was at, from, to

# What it can be at: waits, work, and "rest" until the training loop asks for a pass that was begun ahead.
STATES = ("source", "engine", "repair", "trainer", "dead letters", "deal", "finish", "mend", "rest")
_BEHIND = {"source": "deal", "engine": "finish", "trainer": "deal"}  # a wait: the work behind it


class FeedClock:
    """Written by one thread; any other may look."""

    __slots__ = ("at", "past", "spent")

    def __init__(self) -> None:
        self.at = "deal", sync.perf_counter()
        self.past: deque[Span] = deque(maxlen=KEPT)
        self.spent = dict.fromkeys(STATES, 0.0)

    def switch(self, state: str) -> str:
        """From here on it is at that; what it was at."""
        now = sync.perf_counter()
        before, since = self.at
        self.at = state, now
        self.past.append((before, since, now))
        self.spent[before] += now - since
        return before

    def spans(self) -> list[Span]:
        """The last changes, oldest first, and what it is at now, without an end."""
        state, since = self.at
        spans = list(self.past)  # in one step: the thread goes on writing
        spans.append((state, since, math.inf))
        return spans


# What a wait of the training loop was spent on: what the feed thread was at while it lasted. Pure.


# What the feed thread is at -> why the loop waits. While the feed thread waits for the loop, a batch is there.
CAUSES = {
    "source": "source",
    "engine": "engine",
    "dead letters": "dead letters",
    "repair": "repair",
    "mend": "repair",
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
    causes: dict[str, float] = {}
    for state, since, until in reversed(spans):
        if until <= begun:
            break
        # Without calls: this is done a few times for every batch.
        first = since if since > begun else begun  # noqa: FURB136
        last = until if until < ended else ended  # noqa: FURB136
        if first < last:
            cause = CAUSES.get(state, "unknown")
            causes[cause] = causes.get(cause, 0.0) + (last - first)
    known = sum(causes.values())
    if whole > known:
        causes["unknown"] = causes.get("unknown", 0.0) + whole - known
    stopped = 0.0
    for since, until in reversed(pauses):
        if until <= begun:
            break
        stopped += max(0.0, min(until, ended) - max(since, begun))
    stopped = min(whole, stopped)
    if stopped > 0:
        causes = {cause: seconds * (1 - stopped / whole) for cause, seconds in causes.items()}
        causes["garbage"] = stopped
    return causes


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
        self._watched = 0
        self._lock = sync.RLock()  # guards how many watch; reentrant, as a signal's handler may close a feed

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
        now = sync.perf_counter()
        if phase == "start":
            self._begun = now
            return
        begun, self._begun = self._begun, None
        if begun is not None and now - begun >= LEAST:
            self.last.append((begun, now))


PAUSES = Pauses()

# The training loop's clock: what it waits for, what making its tensors takes, and what it does between two batches.
#
# Three clock calls per batch, and one entry in a list. Only of a wait above 20 microseconds the cause is looked for,
# which takes some microseconds more.


WAITS_KEPT = 4096
SHORT = 20e-6  # seconds up to which nobody asks why


class LoopClock:
    """Written by the training loop's thread; any other may look.

    worked    seconds between a batch that was handed over and the call for the next one
    handover  seconds from a batch that was there to the tensors that the loop got
    waited    seconds from the call for a batch until it was there
    """

    def __init__(self) -> None:
        self.worked = self.handover = self.waited = 0.0
        self.samples = 0  # that the loop worked on
        self.last_samples = 0
        self._called = self._came = 0.0
        self._handed: float | None = None
        self._waits: deque[float] = deque(maxlen=WAITS_KEPT)
        self._by_cause: dict[str, float] = {}

    def begin_wait(self, *, first: bool) -> None:
        """For the next batch; `first` of a pass: what the loop did before it was no training on a batch."""
        self._called = now = sync.perf_counter()
        before, self._handed = self._handed, None
        if before is not None and not first:
            self.worked += now - before
            self.samples += self.last_samples

    def came(self, clock: FeedClock | None, *, first: bool) -> None:
        """The batch is there. Other arguments as of `wait`."""
        self._came = sync.perf_counter()
        self.wait(self._called, self._came, clock, first=first)

    def hand_over(self, samples: int) -> None:
        """The loop gets it."""
        now = sync.perf_counter()
        self.handover += now - self._came
        self._handed, self.last_samples = now, samples

    def wait(self, begun: float, ended: float, clock: FeedClock | None, *, first: bool) -> None:
        """Count a wait on the clock of `time.perf_counter`.

        `clock`: the feed thread's; None: torch's own loader works, whose stages nobody knows. `first`: of a pass.
        """
        seconds = ended - begun
        self._waits.append(seconds)
        self.waited += seconds
        if clock is None:
            causes = {"torch": seconds}
        elif seconds <= SHORT and not first:
            causes = {"unknown": seconds}
        else:
            causes = spent_on(clock.spans(), list(PAUSES.last), begun, ended)
        if first and clock is not None:  # a source that is slow is so from its first batch on; engines begin to be full
            reads = causes.get("source", 0.0)
            causes = {"source": reads, "first batch": seconds - reads} if reads else {"first batch": seconds}
        for cause, part in causes.items():
            self._by_cause[cause] = self._by_cause.get(cause, 0.0) + part

    def quantile(self, q: float) -> float:
        """Of the last waits, seconds; 0 before the first."""
        return float(np.quantile(np.asarray(list(self._waits) or [0.0]), q))

    @property
    def causes(self) -> tuple[WaitCause, ...]:
        """What the loop waited for, most first."""
        longest = sorted(self._by_cause.copy().items(), key=lambda item: -item[1])
        return tuple(WaitCause(cause, seconds) for cause, seconds in longest)


# How busy the process's processors are while passes are under way.


class PassClock:
    """Wall time and the process's CPU time while at least one pass is under way: read twice per pass."""

    def __init__(self) -> None:
        self._lock = sync.RLock()  # guards all: several threads begin passes, others look, handlers of signals close
        self._passes = 0
        self._wall = self._cpu = 0.0  # while passes are under way less by the clocks' readings when the first began
        self._cores = cores()  # of the thread that makes a loader: the loop's may be pinned later

    def began(self) -> None:
        """A pass more."""
        with self._lock:
            if not self._passes:
                self._wall -= sync.perf_counter()
                self._cpu -= time.process_time()
            self._passes += 1

    def ended(self) -> None:
        """A pass less."""
        with self._lock:
            self._passes -= 1
            if not self._passes:
                self._wall += sync.perf_counter()
                self._cpu += time.process_time()

    def stats(self) -> CpuStats:
        """Up to now."""
        with self._lock:
            now = (time.process_time(), sync.perf_counter()) if self._passes else (0.0, 0.0)
            return CpuStats(self._cores, self._cpu + now[0], self._wall + now[1])


class _At:
    """A class and not a generator, which would be slower: it is entered several times per batch."""

    __slots__ = ("_before", "_clock", "_range", "_state")

    def __init__(self, clock: FeedClock, state: str) -> None:
        self._clock, self._state, self._range = clock, state, WAITS.get(state)

    def __enter__(self) -> None:
        if self._range is not None:
            self._range.__enter__()
        self._before = self._clock.switch(self._state)

    def __exit__(self, *_: object) -> None:
        self._clock.switch(_BEHIND.get(self._state, self._before))
        if self._range is not None:
            self._range.__exit__()


class Meter:
    """Adds up; each feed thread has a clock of its own.

    How long the engine takes is told only by batches that were waited for: of one that was done before nobody knows
    when.

    dealt, taken    samples given to the engine, and taken from it
    engine_seconds  that the engine took for `engine_samples`, those of batches that were waited for
    """

    def __init__(self) -> None:
        self.samples = self.batches = self.absent = self.bad = self.bytes_read = 0
        self.feed_cpu = 0.0
        self.screened, self.screening = 0, 0.0  # records that were made columns, and seconds of CPU time
        self.dealt = self.taken = self.engine_samples = 0
        self.engine_seconds = 0.0
        self._begun: deque[float] = deque()  # when batches were given to the engine that are not taken yet
        self._free = 0.0  # since when the engine has had nothing older to do
        self.loop, self.passes = LoopClock(), PassClock()
        self.recent_bad: deque[tuple[str, str]] = deque(maxlen=100)
        self.newest: FeedClock | None = None
        self._clocks: dict[sync.Thread, FeedClock] = {}
        self._spent = dict.fromkeys(STATES, 0.0)  # of threads that have ended
        # Guards which clocks there are, what those of ended threads add up to, and what the readers count.
        self._lock = sync.RLock()

    def clock(self) -> FeedClock:
        """This thread's; the newest one is that of the pass under way."""
        thread = sync.current_thread()
        clock = self._clocks.get(thread)
        if clock is None:
            with self._lock:
                for ended in [each for each in self._clocks if not each.is_alive()]:
                    spent = self._clocks.pop(ended).spent
                    self._spent = {state: self._spent[state] + spent[state] for state in STATES}
                clock = self._clocks[thread] = self.newest = FeedClock()
        return clock

    def at(self, state: str) -> _At:
        """A context in which this thread is at that; a wait is a range on a profiler's timeline too."""
        return _At(self.clock(), state)

    def began(self, samples: int) -> None:
        """This thread gave a batch of so many to the engine."""
        self.dealt += samples
        self._begun.append(sync.perf_counter())

    def landed(self, samples: int) -> None:
        """The oldest batch, of so many, was taken from the engine; this thread has just waited for it."""
        _, since, done = self.clock().past[-1]
        begun = self._begun.popleft()
        self.taken += samples
        if done - since > WAITED and self._free:
            self.engine_seconds += done - max(begun, self._free)
            self.engine_samples += samples
        self._free = done

    def dropped(self) -> None:
        """None that was given to the engine will be taken; the next batch that is, is a first one."""
        self._begun.clear()
        self._free = 0.0

    def hand_over(self, samples: int) -> None:
        """The training loop gets a batch; an empty one, of a stream, does not count."""
        self.batches += samples > 0
        self.samples += samples
        self.loop.hand_over(samples)

    def now(self) -> tuple[str, float]:
        """What the newest feed thread is at, and for how many seconds; "" before there is one."""
        if self.newest is None:
            return "", 0.0
        state, since = self.newest.at
        return state, sync.perf_counter() - since

    def screens(self, stage: Callable[[Block], Block]) -> Callable[[Block], Block]:
        """The same stage, counted, for the threads that read: a call each per read."""

        def counted(block: Block) -> Block:
            begun = time.thread_time()
            columns = stage(block)
            with self._lock:
                self.screened += len(block.ids)
                self.screening += time.thread_time() - begun
            return columns

        return counted

    def spent(self) -> dict[str, float]:
        """Seconds that feed threads were at each thing."""
        with self._lock:
            parts = [self._spent, *(clock.spent for clock in self._clocks.values())]
            return {state: sum(part[state] for part in parts) for state in STATES}

    def stats(self, slab_peak: int) -> Stats:
        """All of it, as it is now."""
        spent = self.spent()
        return Stats(
            samples=self.samples,
            batches=self.batches,
            absent=self.absent,
            bad=self.bad,
            bytes_read=self.bytes_read,
            slab_peak=slab_peak,
            feed_cpu=self.feed_cpu,
            read_wait=spent["source"],
            engine_wait=spent["engine"] + spent["repair"],
            trainer_wait=spent["trainer"],
            letters_wait=spent["dead letters"],
            step_wait_p50=self.loop.quantile(0.5),
            step_wait_p99=self.loop.quantile(0.99),
            recent_bad=tuple(self.recent_bad),
            step_wait=self.loop.waited,
            wait_causes=self.loop.causes,
            cpu=self.passes.stats(),
        )


# PassMeter: what the training loop's thread notes down of one pass.


class PassMeter:
    """Of one pass. Processors and the collector are watched from its first batch to its `end`."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._batch = 0
        self._under_way = False

    def begin_wait(self) -> None:
        """For the next batch."""
        if not self._batch and not self._under_way:
            self._under_way = True
            self._meter.passes.began()
            PAUSES.watch()
        self._meter.loop.begin_wait(first=not self._batch)

    def came(self, *, more: bool) -> None:
        """It is there; or, with `more` False, an error or the end in its place."""
        self._meter.loop.came(self._meter.newest or FeedClock(), first=not self._batch)
        self._batch += 1
        if not more:
            self.end()

    def end(self) -> None:
        """No more are asked for. May be called twice."""
        if self._under_way:
            self._under_way = False
            PAUSES.leave()
            self._meter.passes.ended()
