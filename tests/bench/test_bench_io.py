"""bench_io runs over tar shards, and over targets."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_runs import Run, rows, run

__all__ = ["run"]


def test_readers_of_tar_shards_are_compared(run: Run, tmp_path: Path) -> None:
    """A row per reader, from the page cache and cold, with its rate beside the others'."""
    sizes = ("--mb", 1, "--record", 10_000, "--count", 2, "--turns", 1)
    run("bench_io.py", "--shards", *sizes, "--folder", tmp_path, "--results", tmp_path)
    found = rows(tmp_path, "io")
    readers = [(reader, pages) for pages in ("cached", "cold") for reader in ("ours", "plain", "webdataset")]
    assert [(row["reader"], row["pages"]) for row in found] == readers
    assert all(float(row["of plain"]) >= 0 for row in found)  # 0.00 where a turn of a millisecond was held up
    assert [row["of plain"] for row in found if row["reader"] == "plain"] == ["1.00", "1.00"]
    assert [path.name for path in tmp_path.iterdir()] == ["io.csv"]


@pytest.mark.long
def test_targets_that_are_held_back_have_a_row_each(run: Run, tmp_path: Path) -> None:
    """One, two and four targets, as fast as they are and held to a rate, each beside one target."""
    run("bench_io.py", "--mb", 8, "--rate", 100, "--results", tmp_path)
    found = rows(tmp_path, "striped")
    held = [(row["targets"], row["held to MB/s"]) for row in found]
    assert held == [(count, rate) for rate in ("none", "100.0") for count in ("1", "2", "4")]
    assert [row["of one"] for row in found if row["targets"] == "1"] == ["1.00", "1.00"]
