"""Benchmarks at toy size, run as a person runs them, and what they say and write."""

from __future__ import annotations

import csv
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from limits import LONG

BENCH = Path(__file__).parents[2] / "bench"
TOY = 24
PEERS = {"torch", "dali-reader"}  # and spdl, where its package and FFmpeg's libraries are
QUICK = ("--batches", 4, "--seconds", 0.1, "--repeats", 1)


def run(script: str, *args: object) -> str:
    """What a benchmark prints, run as a person runs it; it must end with 0."""
    command = [sys.executable, str(BENCH / script), *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONG)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def not_measured(said: str) -> dict[str, str]:
    """Who a benchmark says was not measured, and why."""
    lines = (line.partition(": NOT MEASURED: ") for line in said.splitlines())
    return {who: why for who, found, why in lines if found}


def rows(results: Path, name: str) -> list[dict[str, str]]:
    """What a benchmark added to its table, by column."""
    with (results / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def toy_photos(cache: Path) -> Any:
    """What bench/_photos.py makes, which is no package that could be imported."""
    spec = importlib.util.spec_from_file_location("bench_photos", BENCH / "_photos.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.photos(TOY, cache=cache)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the toy photographs."""
    folder = tmp_path_factory.mktemp("photos")
    toy_photos(folder)
    return folder


@pytest.fixture
def toy(cache: Path, tmp_path: Path) -> tuple[object, ...]:
    """Arguments that every benchmark of the loader takes."""
    return "--photos", TOY, "--data", cache, "--results", tmp_path
