"""Insides that contract/cli/test_bench_command.py needs not: they go with what they test."""

from __future__ import annotations

from pathlib import Path

from dali_feed.cli.bench.io import advice
from dali_feed.storage.measure import Measured, measures


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
