"""bench_kernels on a machine without a GPU: every case's arguments are right, and none is measured."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dali_feed.bench.kernel_cases import CASES, Host, jobs_of

BENCH = Path(__file__).parents[2] / "bench"


@pytest.mark.parametrize("name", ["finish", "jitter", "unpack"])
def test_every_case_is_a_launch_that_is_allowed(name: str) -> None:
    """Each case of a kernel prepares launches of that kernel without CuPy's random numbers, and counts its bytes."""
    cases = list(CASES[name](Host(), 2))
    assert len({case.variant for case in cases}) == len(cases) > 3
    for case in cases:
        assert all(job.kernel.startswith(name) for job in jobs_of(case))
        assert case.moved > 0


def test_kernels_are_measured_on_a_gpu_alone(tmp_path: Path) -> None:
    """Without one bench_kernels says so, ends with 1, and writes no row."""
    command = [
        sys.executable,
        str(BENCH / "bench_kernels.py"),
        "--results",
        str(tmp_path),
        "--runs",
        "2",
        "--warm",
        "1",
    ]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    measured = (tmp_path / "kernels.csv").exists()
    assert measured == (done.returncode == 0)
    assert measured or "needs a GPU, and CUDA finds none" in done.stderr
