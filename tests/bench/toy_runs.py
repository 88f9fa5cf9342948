"""Benchmarks at toy size, run as a person runs them, and what they say and write."""

from __future__ import annotations

import csv
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.warm import Warm

BENCH = Path(__file__).parents[2] / "bench"
TOY = 24
PEERS = {"torch", "dali-reader"}  # and spdl, where its package and FFmpeg's libraries are
Run = Callable[..., str]  # of the fixture `run`: a script of bench/ and its arguments; what it prints
QUICK = ("--batches", 4, "--seconds", 0.1, "--repeats", 1)


@pytest.fixture
def run(warm: Warm) -> Run:
    """What a benchmark prints, run as a person runs it; it must end with 0."""

    def printed(script: str, *args: object) -> str:
        done = warm.run([BENCH / script, *args])
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return printed


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
    """A folder with the toy photographs, made once for all files of tests that a worker runs."""
    folder = tmp_path_factory.getbasetemp() / "toy photographs"
    folder.mkdir(exist_ok=True)
    toy_photos(folder)
    return folder


@pytest.fixture
def toy(cache: Path, tmp_path: Path) -> tuple[object, ...]:
    """Arguments that every benchmark of the loader takes."""
    return "--photos", TOY, "--data", cache, "--results", tmp_path
