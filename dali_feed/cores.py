"""How many cores this process may use: those of its affinity, fewer where a control group limits its time.

The law: every default that counts cores asks here. A container that is given 4 of a machine's 64 cores by a quota still
sees all of them, and 64 threads would stand still together whenever the quota of a tenth of a second is used up.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

ROOT = Path("/")  # of the kernel's files


def cores(root: Path | None = None) -> float:
    """Cores, which may be a part of one; `root`: where proc/ and sys/ lie, None for the machine's own."""
    return min([float(len(os.sched_getaffinity(0))), *_quotas(ROOT if root is None else root)])


def whole_cores(root: Path | None = None) -> int:
    """The same rounded up, at least 1: so many threads can use all that is allowed, whose sum is limited anyway."""
    return max(1, math.ceil(cores(root)))


def _quotas(root: Path) -> list[float]:
    """Cores that each control group above the process allows."""
    try:
        groups = [line.split(":", 2) for line in (root / "proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return []
    quotas: list[float] = []
    for _, controllers, path in (group for group in groups if len(group) == 3):
        old = "cpu" in controllers.split(",")
        if controllers and not old:
            continue
        base = root / "sys/fs/cgroup" / ("cpu" if old else "")
        inside = base / path.lstrip("/")
        # A container may see the machine's path and have `base` alone.
        for folder in (inside, *inside.parents):
            if not folder.is_relative_to(base):
                break
            if old:
                quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
            else:
                quota, period = _number(folder / "cpu.max"), _number(folder / "cpu.max", 1)
            if quota is not None and period and quota > 0:
                quotas.append(quota / period)
    return quotas


def _number(path: Path, place: int = 0) -> float | None:
    """A number in a file of the kernel's; None where there is none: no file, or "max"."""
    try:
        return float(path.read_text().split()[place])
    except (OSError, ValueError, IndexError):
        return None
