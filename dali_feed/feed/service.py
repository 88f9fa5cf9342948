"""What goes through the feed thread, and how long the engine takes for a batch, seen from outside.

The law: only batches that were waited for tell how long the engine takes. Of one that was done before it was asked for
nobody knows when.
"""

from __future__ import annotations

import time
from collections import deque

__all__ = ["Service"]

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
