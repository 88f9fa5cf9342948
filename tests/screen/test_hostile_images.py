"""Hostile images: what the worst files that pass the screen cost, in a process each; it follows the bound on pixels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
SECONDS, MEGABYTES = 1.0, 500.0  # at most, of an image at 2**24 pixels
Costs = dict[str, tuple[str, float, float]]


@pytest.fixture(scope="module")
def costs() -> dict[int, Costs]:
    """By the exponent of the bound: what became of each file, seconds of processor time, MB at the most."""
    script = Path(__file__).with_name("hostile.py")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    out = {}
    for exponent in (22, 24):
        command = [sys.executable, str(script), str(exponent)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=250)
        out[exponent] = json.loads(done.stdout.splitlines()[-1])
    return out


def test_none_costs_more_than_a_second_and_500_megabytes(costs: dict[int, Costs]) -> None:
    """Whatever a file says or is, at 2**24 pixels; and none ends the process."""
    over = {name: one for name, one in costs[24].items() if one[1] > SECONDS or one[2] > MEGABYTES}
    assert over == {}
    assert [name for one in costs.values() for name, (what, *_) in one.items() if what == "died"] == []


def test_costs_grow_no_faster_than_the_bound(costs: dict[int, Costs]) -> None:
    """A quarter of the pixels takes a quarter of the memory, and of the time but for what the file's bytes cost."""
    over = {}
    for name, (what, seconds, megabytes) in costs[24].items():
        _, less, smaller = costs[22][name]
        if seconds > 4 * less + 0.3 or smaller > MEGABYTES / 4:
            over[name] = (what, seconds, less, megabytes, smaller)
    assert over == {}


def test_what_could_be_worse_is_refused(costs: dict[int, Costs]) -> None:
    """With the reason; and what is large and honest is decoded."""
    refused = {name: what for name, (what, *_) in costs[24].items() if what != "decoded"}
    assert "limit" in refused["jpeg of scans, too many"]
    assert "limit" in refused["tiff jpeg tiles of 16"]
    assert "limit" in refused["tiff strips that overlap"]
    assert "overlap" in refused["tiff jpegs that overlap"]
    assert "limit" in refused["bmp ends of a long line"]
    assert "limit" in refused["pnm of text, large"]
    assert "beyond its canvas" in refused["gif beyond its canvas"]
    assert "more than 65536 blocks" in refused["gif of comments"]
    honest = {
        "tiff tiles shared, 34925 deep",
        "tiff raw strips",
        "gif",
        "pnm of 16 bits",
        "webp lossless",
        "jpeg of scans",
    }
    assert refused.keys().isdisjoint(honest)
