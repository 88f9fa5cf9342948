"""bench_open runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from toy_runs import Run, rows, run

__all__ = ["run"]


@pytest.mark.long
def test_each_kind_of_set_has_its_row(run: Run, tmp_path: Path) -> None:
    """Shards, an array and a table: how many records, and the time to open them."""
    sizes = ("--gigabytes", 0.01, "--rows", 2000, "--groups", 2)
    run("bench_open.py", *sizes, "--folder", tmp_path, "--results", tmp_path)
    found = {row["step"]: row for row in rows(tmp_path, "open")}
    assert {step: row["records"] for step, row in found.items()} == {"open": "80", "array": "2000", "parquet": "2000"}
    assert float(found["array"]["rows/s"]) > 0
    assert [path.name for path in tmp_path.iterdir()] == ["open.csv"]


def test_a_disk_that_is_too_small_is_told_first(tmp_path: Path) -> None:
    """With the step, what it takes and what there is; nothing is written."""
    script = Path(__file__).resolve().parents[2] / "bench" / "bench_open.py"
    command = [sys.executable, script, "--rows", 10**12, "--folder", tmp_path, "--results", tmp_path]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "must have room for the files of the step 'array', 8601600.0 GB; found " in done.stderr
    assert not list(tmp_path.iterdir())
