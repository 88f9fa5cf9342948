"""bench_formats runs."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"


def test_formats_are_timed_beside_their_libraries(tmp_path: Path) -> None:
    """A row per format and record, with both times and the libraries' versions."""
    command = [sys.executable, "bench_formats.py", "--passes", "1", "--seconds", "0.001", "--results", str(tmp_path)]
    done = subprocess.run(command, cwd=BENCH, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = list(csv.DictReader((tmp_path / "formats.csv").read_text().splitlines()))
    assert {row["format"] for row in rows} == {"json", "avro", "msgpack", "protobuf", "npy"}
    assert {row["record"] for row in rows} == {"image", "features", "fields"}
    assert all(float(row["us"]) > 0 and float(row["library us"]) > 0 and row["fastavro"] for row in rows)
