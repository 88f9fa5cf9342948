"""`dali-feed bench io`: what it measures is what was read, and what it advises follows from that."""

from __future__ import annotations

import json
from pathlib import Path

from kit.inside import app
from typer.testing import CliRunner


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
