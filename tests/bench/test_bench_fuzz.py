"""The fuzzer at toy size, and how long headers are looked at. No time is looked at."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_runs import rows, run

pytestmark = [pytest.mark.slow, pytest.mark.whole_machine]


def test_damaged_images_cost_their_slots(tmp_path: Path) -> None:
    """fuzz: 1,000 damaged images on each engine are delivered or quarantined, every one; no crash, no hang."""
    run("fuzz.py", "--count", 1000, "--first", 10**6, "--part", 500, "--results", tmp_path)
    for row in rows(tmp_path, "fuzz"):
        assert int(row["delivered"]) + int(row["quarantined"]) == 1000
        assert (row["errors"], row["crashes"], row["hangs"]) == ("0", "0", "0")


def test_the_screen_is_measured() -> None:
    """bench_screen prints a line per kind of file."""
    said = run("bench_screen.py", "--batch", 8, "--passes", 1, "--min-kb", 1)
    assert len(said.splitlines()) == 5
