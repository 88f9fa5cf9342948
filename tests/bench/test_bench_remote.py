"""bench_remote runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_runs import Run, rows, run

__all__ = ["run"]


@pytest.mark.long
def test_remote_reads_are_compared_with_one_stream(run: Run, tmp_path: Path) -> None:
    """A row with both rates, and what one turn's ratio was."""
    run("bench_remote.py", "--megabytes", 1, "--records", 10_000, "--turns", 1, "--results", tmp_path)
    (found,) = rows(tmp_path, "remote")
    assert float(found["ours MB/s"]) > 0
    assert float(found["of one stream"]) > 0
