"""A process among others of its machine: how many cores it may use, and locks of files that they share.

The law: every default that counts cores asks here. A container that is given 4 of a machine's 64 cores by a quota still
sees all of them, and 64 threads would stand still together whenever the quota of a tenth of a second is used up.
"""

from __future__ import annotations

import fcntl
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
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


# Locks of files that processes of one machine share: a lock goes with the process that holds it, however that ends.
#
# The law: nobody waits for ever. A process may stand still with a lock; who waits gives up with a named TimeoutError.


SLICE_S = 0.001  # how often one who waits looks again: such a lock is held for a moment


def flocked(fd: int) -> bool:
    """Whether the lock of an open file could be had, for this process alone."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def locked(path: Path, patience: float) -> Iterator[int]:
    """The open file at `path`, made where it is not there, with its lock held.

    TimeoutError where another process has had it for `patience` seconds; OSError where the folder fails.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        ends = time.monotonic() + patience
        while not flocked(fd):
            if time.monotonic() > ends:
                msg = f"{path} has been held by another process for {patience:g} s"
                raise TimeoutError(msg)
            time.sleep(SLICE_S)
        yield fd
    finally:
        os.close(fd)
