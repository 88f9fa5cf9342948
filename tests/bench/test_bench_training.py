"""Benchmarks of training loops and of resuming at toy size. No time is looked at."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_runs import Run, cache, rows, run, toy

__all__ = ["cache", "run", "toy"]

pytestmark = [pytest.mark.slow, pytest.mark.whole_machine, pytest.mark.long]


def test_training_is_timed_beside_nothing_and_torch(run: Run, toy: tuple[object, ...], tmp_path: Path) -> None:
    """bench_training gives what each step waited: for us, with both engines and sources, for torch and for nobody."""
    run("bench_training.py", *toy, "--device", "cpu", "--model", "mobilenet_v3_small", "--batch", 2, "--steps", 2,
        "--warm", 1, "--workers", 1)  # fmt: skip
    ours = {f"{engine} {source}" for engine in ("dali", "host") for source in ("tar", "embedded kafka")}
    made = {row["who"]: row for row in rows(tmp_path, "training")}
    assert set(made) == ours | {"none", "torch, 1 workers"}
    assert all(float(row["img/s"]) > 0 for row in made.values())


def test_resuming_and_bad_records_are_measured(run: Run, toy: tuple[object, ...], tmp_path: Path) -> None:
    """bench_resume tells the time to the first batch by position, and what 1 % bad records leave of the rate."""
    run("bench_resume.py", *toy[2:], "--photos", 120, "--repeats", 1, "--seconds", 0.2, "--sources", "tar")
    assert [row["at"] for row in rows(tmp_path, "resume")] == ["1%", "90%"]
    found = {row["shards"]: int(row["bad found"]) for row in rows(tmp_path, "bad")}
    assert found["whole"] == 0
    assert found["1 % bad"] > 0
