"""bench_columns runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_runs import Run, not_measured, rows, run

__all__ = ["run"]

pytestmark = [pytest.mark.slow, pytest.mark.whole_machine, pytest.mark.long]


def test_small_records_are_measured_beside_a_straight_read_and_peers(run: Run, tmp_path: Path) -> None:
    """A row per contestant, each told beside another of its round; who could not be measured is named, with why."""
    tiny = ("--seconds", 0.1, "--repeats", 1, "--records", 600, "--photos", 6, "--batch", 8, "--image-batch", 2)
    told = run(
        "bench_columns.py", *tiny, "--only", "arrays", "tables", "pairs", "--data", tmp_path, "--results", tmp_path
    )
    found = {(row["case"], row["who"]): row for row in rows(tmp_path, "columns")}
    missing = not_measured(told)
    assert "mosaic" in missing
    ours = {"ours", "ours in windows", "ours in order"}
    arrays = {"straight", "torch", *ours} | ({"webdataset"} - set(missing))
    pairs = {"image alone", "no columns", *(f"image and {what}" for what in ("text", "mask", "boxes", "label"))}
    tables = {"straight", *(f"{who}{way}" for who in ("ArrayShards", "ParquetRows") for way in ("", " in order"))}
    wanted = {"arrays, tar": arrays, "pairs, tar": pairs, "tables": tables}
    assert set(found) == {(case, who) for case, those in wanted.items() for who in those}
    for (_, who), row in found.items():
        assert int(row["samples/s"]) > 0
        assert bool(row["of it"]) == (who not in {"image alone", "no columns"})
        assert all(row[name] for name in ("machine", "cpus", "commit", "torch", "date", "batch", "readers", "bytes"))
