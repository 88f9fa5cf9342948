"""How busy the process's processors are while passes are under way, and how many it may use."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from dali_feed.feed.stages import CpuStats

__all__ = ["PassClock", "cores"]


def _number(path: Path, place: int = 0) -> float | None:
    """A number in a file of the kernel's; None where there is none: no file, or "max"."""
    try:
        return float(path.read_text().split()[place])
    except (OSError, ValueError, IndexError):
        return None


def _quotas(root: Path) -> list[float]:
    """Cores that each control group above the process allows."""
    try:
        groups = [line.split(":", 2) for line in (root / "proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return []
    found: list[float] = []
    for _, controllers, path in (group for group in groups if len(group) == 3):
        old = "cpu" in controllers.split(",")
        if controllers and not old:
            continue
        base = root / "sys/fs/cgroup" / ("cpu" if old else "")
        inside = base / path.lstrip("/")
        for folder in (inside, *inside.parents):
            if not folder.is_relative_to(base):
                break
            if old:
                quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
            else:
                quota, period = _number(folder / "cpu.max"), _number(folder / "cpu.max", 1)
            if quota is not None and period and quota > 0:
                found.append(quota / period)
    return found


def cores(root: Path = Path("/")) -> float:
    """Cores that this process may use: those of its affinity, fewer where a cgroup under `root` limits its time."""
    return min([float(len(os.sched_getaffinity(0))), *_quotas(root)])


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
