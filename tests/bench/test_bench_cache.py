"""The bench of caches at toy size: a row for each cache, beside the one without."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_runs import Run, cache, rows, run, toy

__all__ = ["cache", "run", "toy"]


@pytest.mark.slow
@pytest.mark.long
def test_every_cache_has_a_row(run: Run, toy: tuple[object, ...], tmp_path: Path) -> None:
    """Later epochs come out of what the first one kept, in memory, on a disk and on the device."""
    run("bench_cache.py", *toy, "--batch", 4, "--repeats", 1, "--threads", 1)
    found = {row["what"]: row for row in rows(tmp_path, "cache")}
    caches = ("none", "bytes", "pixels", "bytes on a disk", "pixels on a disk")
    still = ("none", "bytes", "pixels", "device", "device, bytes")
    names = [f"images, cache of {name}" for name in caches]
    names += [f"still images on cpu, cache of {name}" for name in still]
    assert list(found) == [*names, "records, cache: none", "records, cache: disk"]
    assert all((row["held MB"] == "0") == ("none" in what or "records" in what) for what, row in found.items())
    assert all(float(row["later epochs"]) > 0 for row in found.values())
