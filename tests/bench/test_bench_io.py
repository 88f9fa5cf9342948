"""bench_io runs over tar shards."""

from __future__ import annotations

from pathlib import Path

from toy_runs import Run, rows, run

__all__ = ["run"]


def test_readers_of_tar_shards_are_compared(run: Run, tmp_path: Path) -> None:
    """A row per reader, from the page cache and cold, with its rate beside the others'."""
    sizes = ("--mb", 1, "--record", 10_000, "--count", 2, "--turns", 1)
    run("bench_io.py", *sizes, "--folder", tmp_path, "--results", tmp_path)
    found = rows(tmp_path, "io")
    readers = [(reader, pages) for pages in ("cached", "cold") for reader in ("ours", "plain", "webdataset")]
    assert [(row["reader"], row["pages"]) for row in found] == readers
    assert all(float(row["of plain"]) >= 0 for row in found)  # 0.00 where a turn of a millisecond was held up
    assert [row["of plain"] for row in found if row["reader"] == "plain"] == ["1.00", "1.00"]
    assert [path.name for path in tmp_path.iterdir()] == ["io.csv"]
