"""Pauses of Python's garbage collector, in which no thread of the process runs Python.

The collector tells only while a pass is under way; a collection costs two calls of a function then, of which most are
of the youngest objects and end at once.
"""

from __future__ import annotations

import gc
import threading
import time
from collections import deque
from typing import Any

__all__ = ["PAUSES", "Pauses"]

LEAST = 0.5e-3  # seconds, below which a pause explains nothing
KEPT = 64


class Pauses:
    """The last pauses of the process, (from, to) on the clock of `time.perf_counter`."""

    def __init__(self) -> None:
        self.last: deque[tuple[float, float]] = deque(maxlen=KEPT)
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
