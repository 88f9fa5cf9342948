"""The feed thread's clock: what it is at, and for how long; no moment counts twice.

It is read once per change of what the thread is at: six times per batch, twice more per read for the header checks and
per repair. A reading, with its entry in the list of the last ones, takes about half a microsecond; nothing is locked.
"""

from __future__ import annotations

import math
import time
from collections import deque

__all__ = ["REST", "WAITS_OF", "WORKS", "FeedClock", "Span"]

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
