"""`dali-feed bench io`: what it measures is what was read, and what it advises follows from that."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from dali_feed.cli.app import app
from dali_feed.cli.bench.io import advice
from dali_feed.storage.measure import Measured, measures


def test_every_measurement_is_a_line_of_json(tmp_path: Path) -> None:
    """Pattern, mode, threads and bytes are told, and no more is read than was asked for."""
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    asked = ["bench", "io", str(tmp_path / "file"), "--quick", "--json", "--block", "64KiB", "--size", "512KiB"]
    done = CliRunner().invoke(app, [*asked, "--depth", "2"])
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["mode"], row["pattern"]) for row in rows] == [
        (mode, pattern) for mode in ("cold", "warm") for pattern in ("random", "sequential")
    ]
    assert all(0 < row["bytes"] <= 512 << 10 and row["bytes"] == row["reads"] << 16 for row in rows)


def test_a_file_that_is_too_small_is_named(tmp_path: Path) -> None:
    """With what it must have."""
    (tmp_path / "file").write_bytes(b"x")
    done = CliRunner().invoke(app, ["bench", "io", str(tmp_path / "file"), "--quick"])
    assert done.exit_code == 1
    assert "must have 100000 bytes or more; found 1" in done.stderr


def test_the_fewest_readers_that_are_near_the_best_are_advised() -> None:
    """Sixteen threads that win by a twentieth are not worth it; what the page cache gave does not count."""

    def row(mode: str, threads: int, rate: int) -> Measured:
        return Measured("random", mode, 1 << 20, threads, 1, rate, 1.0, 0.1, 0.1)

    found = [row("cold", 1, 100), row("cold", 4, 190), row("cold", 16, 200), row("warm", 1, 9000)]
    assert advice(found).startswith("Tuning(readers=4)")


def test_no_place_is_read_twice(tmp_path: Path) -> None:
    """Else the second read of it would be warm: a small file gives as many reads as it has blocks."""
    (tmp_path / "file").write_bytes(bytes(8 << 12))
    for each in measures(str(tmp_path / "file"), blocks=(1 << 12,), threads=(1,), modes=("cold",), seconds=60.0):
        assert (each.reads, each.bytes) == (8, 8 << 12)
