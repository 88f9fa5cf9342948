"""What a process and its children take of the machine: memory and CPU time, as Linux counts them."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
import time
from pathlib import Path

__all__ = ["cpu_here", "cpu_seconds", "peak_rss", "reset_peak", "rss"]

TICKS = os.sysconf("SC_CLK_TCK")


def _in_kb(path: str, *names: str) -> int:
    lines = [line.split() for line in Path(path).read_text().splitlines()]
    return sum(int(line[1]) * 1024 for line in lines if line and line[0].rstrip(":") in names)


def reset_peak() -> None:
    """Give back what nobody uses, and let the peak of this process begin anew at what it holds then."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):  # a sandbox may not have it: the peak is then that since the start
        Path("/proc/self/clear_refs").write_text("5")


def peak_rss() -> int:
    """Most memory this process held since `reset_peak`, and what its children hold now that is theirs alone."""
    return _in_kb("/proc/self/status", "VmHWM") + sum(
        _in_kb(f"/proc/{pid}/smaps_rollup", "Private_Clean", "Private_Dirty") for pid in _children()
    )


def rss() -> int:
    """Memory this process holds now."""
    return _in_kb("/proc/self/status", "VmRSS")


def _children() -> list[int]:
    return [child.pid for child in multiprocessing.active_children() if child.pid]


def cpu_seconds(pid: int) -> float:
    """CPU time of another process, to a hundredth of a second."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / TICKS


def cpu_here() -> float:
    """CPU time of this process and its children, those that have ended too: a loader may begin its workers anew."""
    children = sum(
        map(cpu_seconds, _children())
    )  # first: whoever has ended is waited for by this, and so counted below
    ended = os.times()
    return time.process_time() + children + ended.children_user + ended.children_system
