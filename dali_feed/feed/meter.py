"""Meter: adds up what the feed thread and the training loop do; each thread writes numbers of its own."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from dali_feed.feed.clock import REST, WAITS_OF, WORKS, FeedClock
from dali_feed.feed.cpu import PassClock
from dali_feed.feed.loop import LoopClock
from dali_feed.feed.service import Service
from dali_feed.feed.stats import Stats
from dali_feed.feed.step_waits import StepWaits
from dali_feed.feed.usable import Look
from dali_feed.screen.screen import Screened

__all__ = ["Meter"]

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
