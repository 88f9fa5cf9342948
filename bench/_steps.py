"""Steps of a bench that are a process each: the time of one, its peak of memory, and what else it tells."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dali_feed.bench.usage import peak_rss

__all__ = ["apart", "timed"]


def timed(work: Callable[[], Mapping[str, object] | None]) -> None:
    """Do a step in this process and print its seconds, its peak of memory in MB, and the figures that it gave."""
    begun = time.perf_counter()
    told = work() or {}
    seconds = round(time.perf_counter() - begun, 3)
    print(json.dumps({"seconds": seconds, "peak_mb": round(peak_rss() / 1e6)} | dict(told)))


def apart(script: str, step: str, folder: str, options: Sequence[str]) -> dict[str, Any]:
    """What a process of its own told of a step. CalledProcessError where it failed."""
    command = [sys.executable, script, *options, "--step", step, folder]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found
