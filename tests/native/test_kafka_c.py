"""Holds what kafka.c may read and write: under the sanitizers, and with messages of its driver's own."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import dali_feed.native

HERE = Path(dali_feed.native.__file__).resolve().parent
DRIVER = Path(__file__).with_name("kafka_driver.c")
SANITIZE = ("-std=gnu11", "-O1", "-g1", "-Wall", "-Wextra", "-Werror", "-fno-sanitize-recover=all")
TURNS = 20_000


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_it_writes_the_rows_it_was_told_of_and_nothing_else(tmp_path: Path, compiler: str) -> None:
    """Whatever comes (nulls, holes, errors, headers twice): rows are right, events given back, no access is astray."""
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    program = tmp_path / "driver"
    command = [compiler, *SANITIZE, "-fsanitize=address,undefined", f"-I{HERE}", str(DRIVER), "-o", str(program)]
    subprocess.run(command, check=True)
    options = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}  # leaks want ptrace
    done = subprocess.run(
        [program, str(TURNS)], capture_output=True, text=True, check=False, env={**os.environ, **options}
    )
    assert (done.returncode, done.stderr) == (0, "")
