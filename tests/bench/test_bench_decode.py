"""Benchmarks of decoding, its memory and its lock at toy size. No time is looked at."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_runs import Run, cache, rows, run, toy

__all__ = ["cache", "run", "toy"]

pytestmark = [pytest.mark.slow, pytest.mark.whole_machine, pytest.mark.long]


def test_decoding_is_swept_over_its_settings(run: Run, toy: tuple[object, ...], tmp_path: Path) -> None:
    """bench_decode gives a row per engine, batch and number of threads."""
    run("bench_decode.py", *toy, "--device", "cpu", "--batches", 2, 4, "--threads", 1, "--seconds", 0.2)
    made = [(row["who"], row["batch"], row["threads"]) for row in rows(tmp_path, "decode")]
    assert made == [("dali", "2", "1"), ("dali", "4", "1"), ("host", "2", "1"), ("host", "4", "1")]
    said = run("plot.py", "--results", tmp_path)
    assert "kernels: no rows" in said
    assert (tmp_path / "decode.png").stat().st_size > 1000


def test_memory_is_told_beside_its_bound(run: Run, toy: tuple[object, ...], tmp_path: Path) -> None:
    """bench_memory gives the peak above the start, the bound and its parts."""
    run("bench_memory.py", *toy, "--batch", 4, "--mb", 4, "--memory-mb", 32)
    (row,) = rows(tmp_path, "memory")
    assert int(row["peak MB"]) > 0
    assert int(row["bound MB"]) >= 32
    assert int(row["read MB"]) >= 4


def test_the_lock_is_sampled_or_said_not_to_be(run: Run, toy: tuple[object, ...], tmp_path: Path) -> None:
    """bench_lock gives a row per number of threads; without py-spy, or rights for it, it says why there is none."""
    said = run("bench_lock.py", *toy, "--threads", 1, 2, "--seconds", 1, "--batch", 4)
    if "NOT MEASURED" not in said:
        assert [row["threads"] for row in rows(tmp_path, "lock")] == ["1", "2"]
        assert all(float(row["lock us"]) > 0 for row in rows(tmp_path, "lock"))
