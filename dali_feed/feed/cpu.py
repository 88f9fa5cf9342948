"""How busy the process's processors are while passes are under way."""

from __future__ import annotations

import threading
import time

from dali_feed.cores import cores
from dali_feed.feed.stages import CpuStats

__all__ = ["PassClock"]


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
