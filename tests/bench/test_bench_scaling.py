"""bench_scaling runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_runs import TOY, Run, cache, rows, run

__all__ = ["cache", "run"]


def test_a_plan_has_its_row(run: Run, tmp_path: Path) -> None:
    """For each number of records and each order: the time of the order and of a window, and the memory."""
    run("bench_scaling.py", "--only", "plan", "--records", 1000, 2000, "--repeats", 1, "--results", tmp_path)
    found = rows(tmp_path, "scaling")
    assert [(row["what"], row["n"], row["order"]) for row in found] == [
        ("plan", n, order) for n in ("1000", "2000") for order in ("single", "runs")
    ]
    assert all(float(row["order s"]) >= 0 and float(row["window ms"]) >= 0 and row["MB"] for row in found)


@pytest.mark.long(form="test_a_plan_has_its_row")
@pytest.mark.slow
def test_threads_and_ranks_have_their_rows(run: Run, cache: Path, tmp_path: Path) -> None:
    """Of one and of two, the rate beside that of one."""
    tiny = ("--threads", 1, 2, "--ranks", 1, 2, "--photos", TOY, "--batch", 2, "--seconds", 0.1, "--repeats", 1)
    run("bench_scaling.py", "--only", "threads", "ranks", *tiny, "--data", cache, "--results", tmp_path)
    found = rows(tmp_path, "scaling")
    assert [(row["what"], row["n"]) for row in found] == [(w, n) for w in ("threads", "ranks") for n in "12"]
    assert all(int(row["img/s"]) > 0 and int(row["cpu us"]) > 0 for row in found)
    assert [row["of 1"] for row in found if row["n"] == "1"] == ["1.00"] * 2
