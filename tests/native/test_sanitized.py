"""The loops in C under the sanitizers, each with its driver: no byte astray, nothing undefined, and what they write."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import dali_feed.native

HERE, SOURCES = Path(__file__).parent, Path(dali_feed.native.__file__).resolve().parent
FLAGS = ["-std=gnu11", "-O1", "-g1", "-Wall", "-Wextra", "-Werror", "-fno-sanitize-recover=all"]
OPTIONS = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}  # leaks want ptrace
# Name -> the sources beside its driver, more flags, the driver's arguments, what it prints.
DRIVERS: dict[str, tuple[list[str], list[str], list[str], str | None]] = {
    "pixels": (["native.c", "pixels.c"], ["-Wno-extra"], [], ""),
    "pixels without vectors": (["native.c", "pixels.c"], ["-Wno-extra", "-U__SSE2__"], [], ""),
    "rows": (["rows.c"], [], [], "done\n"),
    "kafka": ([], [], ["20000"], None),  # with messages of its own: nulls, holes, errors, headers twice
}


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("name", DRIVERS)
def test_the_sanitizers_find_nothing(name: str, compiler: str, tmp_path: Path) -> None:
    """Not a byte before or behind what is written is touched, on this processor and on any, and each is right."""
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    sources, more, arguments, printed = DRIVERS[name]
    paths = [HERE / f"{name.split(maxsplit=1)[0]}_driver.c", *(SOURCES / source for source in sources)]
    program = tmp_path / "driver"
    command = [compiler, *FLAGS, *more, "-fsanitize=address,undefined", f"-I{SOURCES}", *map(str, paths)]
    built = subprocess.run([*command, "-o", str(program)], capture_output=True, text=True, check=False)
    if built.returncode and "asan" in built.stderr:
        pytest.skip("the compiler has no sanitizers here")
    assert built.returncode == 0, built.stderr
    environment = {**os.environ, **OPTIONS} if name == "kafka" else None
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert printed in (done.stdout, None)
