"""bench_kernels on a machine without a GPU: every case's arguments are right, and none is measured."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

BENCH = Path(__file__).parents[2] / "bench"


class _There(np.ndarray[Any, Any]):
    """Host memory that says it lies on a GPU."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self.__array_interface__, "version": 3}


def stand_in() -> Any:
    """What of CuPy the cases are made with; its random numbers, which need cuRAND, are not there."""

    def there(make: Any) -> Any:
        return lambda *given, **options: make(*given, **options).view(_There)

    made = {name: there(getattr(np, name)) for name in ("asarray", "empty", "full", "tile", "zeros")}
    return SimpleNamespace(**made, int32=np.int32, int64=np.int64, float32=np.float32)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark, as it is imported where it stands."""
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("bench_kernels")


@pytest.mark.parametrize("name", ["finish", "jitter", "mix", "unpack", "tokens"])
def test_every_case_is_a_launch_that_is_allowed(bench: Any, name: str) -> None:
    """Each case of a kernel prepares launches of that kernel without CuPy's random numbers, and counts its bytes."""
    cases = list(bench.CASES[name](stand_in(), 2))
    assert len({case.variant for case in cases}) == len(cases) > 3
    for case in cases:
        found = case.prepare()
        jobs = found if isinstance(found, tuple) else (found,)
        assert all(job.kernel.startswith(name) for job in jobs)
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
    assert measured or "needs a GPU, and nothing was measured" in done.stderr
