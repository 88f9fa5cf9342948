"""The fuzzer at toy size, and how long headers are looked at. No time is looked at."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_runs import Run, rows, run

__all__ = ["run"]

pytestmark = [pytest.mark.slow, pytest.mark.whole_machine]


BOTH = ["host", "dali"]


# The short form has the engine whose own parsers could end a process.
@pytest.mark.parametrize(
    ("count", "engines"), [(80, ["dali"]), pytest.param(1000, BOTH, marks=pytest.mark.long)], ids=["short", "long"]
)
def test_damaged_images_cost_their_slots(run: Run, tmp_path: Path, count: int, engines: list[str]) -> None:
    """fuzz: so many damaged images on each engine are delivered or quarantined, every one; no crash, no hang."""
    run("fuzz.py", "--engines", *engines, "--count", count, "--first", 10**6, "--part", 500, "--results", tmp_path)
    found = rows(tmp_path, "fuzz")
    assert [row["engine"] for row in found] == engines
    for row in found:
        assert int(row["delivered"]) + int(row["quarantined"]) == count
        assert (row["errors"], row["crashes"], row["hangs"]) == ("0", "0", "0")


@pytest.mark.long
def test_the_screen_is_measured(run: Run) -> None:
    """bench_screen prints a line per kind of file."""
    said = run("bench_screen.py", "--batch", 8, "--passes", 1, "--min-kb", 1)
    assert len(said.splitlines()) == 5
