"""What makes two machines the same to a tuning: processor, CPUs and memory that a process may use, and its GPU."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from dali_feed.cores import whole_cores
from dali_feed.options import local_processes

__all__ = ["machine"]


def machine(*, gpu: bool, cpus: int | None = None) -> dict[str, Any]:
    """By name. Not the host's: nodes of one kind share what one of them found.

    gpu   whether a GPU makes the batches
    cpus  how many this process may use, where that is fewer than it could
    """
    here = whole_cores()
    return {
        "processor": _processor(),
        "cpus": here if cpus is None else min(here, cpus * local_processes()),
        "processes": local_processes(),
        "gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "device": _gpu() if gpu else "cpu",
    }


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    named = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return named[0] if named else platform.machine()


def _gpu() -> str:
    """The first GPU's name, as its driver says it."""
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        named = [line for line in path.read_text(errors="replace").splitlines() if line.startswith("Model:")]
        if named:
            return named[0].partition(":")[2].strip()
    return "cuda"
