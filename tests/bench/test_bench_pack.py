"""The benchmark of packing at toy size, and one kill of a run that packs."""

from __future__ import annotations

from pathlib import Path

from toy_runs import Run, run

__all__ = ["run"]


def test_each_step_has_its_row(run: Run, tmp_path: Path) -> None:
    """From the source to the last record that is read."""
    said = run("bench_pack.py", "--records", 50, "--bytes", 100, "--results", tmp_path)
    assert "added 7 rows" in said
    assert (tmp_path / "pack.csv").read_text().count("read unchecked") == 1


def test_a_killed_run_ends_with_the_same_set(run: Run, tmp_path: Path) -> None:
    """bench/chaos_pack.py: nothing differs after a kill."""
    run("chaos_pack.py", "--kills", 1, "--records", 200, "--results", tmp_path)
    assert (tmp_path / "chaos_pack.csv").read_text().splitlines()[-1].endswith(",0")
