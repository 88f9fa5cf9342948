"""Holds what a benchmark counts as a contestant's CPU time."""

from __future__ import annotations

import subprocess
import sys

from dali_feed.bench.usage import cpu_here

BURNS = "import time\nwhile time.process_time() < 0.3: pass"


def test_workers_that_have_ended_stay_counted() -> None:
    """A loader that begins its workers anew each epoch has used what they used, and never less than nothing."""
    before = cpu_here()
    subprocess.run([sys.executable, "-S", "-c", BURNS], check=True)
    assert cpu_here() - before >= 0.25
