"""How busy the process's processors are while passes are under way."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from dali_feed.cores import cores
from dali_feed.feed.stages import CpuStats

__all__ = ["PassClock", "delayed"]


def delayed(thread: int, root: Path = Path("/")) -> float | None:
    """Seconds in which a thread of this process could have run and had no processor; None where nobody counts them."""
    try:
        return float((root / f"proc/self/task/{thread}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


class PassClock:
    """Wall time and the process's CPU time while at least one pass is under way: read twice per pass.

    And the delays of the thread that begins them, the training loop's.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._passes = 0
        self._wall = self._cpu = 0.0
        self._begun = 0.0, 0.0
        self._thread = 0
        self._delay: float | None = None  # of that thread, before this pass
        self._delayed = 0.0
        self._cores = cores()

    def began(self) -> None:
        """A pass more."""
        with self._lock:
            if not self._passes:
                self._begun = time.perf_counter(), time.process_time()
                self._thread = threading.get_native_id()
                self._delay = delayed(self._thread)
            self._passes += 1

    def ended(self) -> None:
        """A pass less."""
        with self._lock:
            self._passes -= 1
            if not self._passes:
                wall, cpu = self._begun
                self._wall += time.perf_counter() - wall
                self._cpu += time.process_time() - cpu
                self._delayed += self._late()

    def stats(self) -> CpuStats:
        """Up to now."""
        with self._lock:
            wall, cpu, late = self._wall, self._cpu, self._delayed
            if self._passes:
                wall += time.perf_counter() - self._begun[0]
                cpu += time.process_time() - self._begun[1]
                late += self._late()
            said = None if self._delay is None else late
        return CpuStats(self._cores, cpu / wall if wall > 0 else 0.0, wall, said)

    def _late(self) -> float:
        """Delays since this pass began; 0 where the thread has ended."""
        now = delayed(self._thread)
        return 0.0 if now is None or self._delay is None else now - self._delay
