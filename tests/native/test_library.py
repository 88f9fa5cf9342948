"""The loops in C: there where they were compiled for these sources, never needed, and clean under the sanitizers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from kit.kept import Kept

import dali_feed.native
from dali_feed.native.library import SWITCH, VERSION

pytestmark = pytest.mark.slow

HERE, TESTS = Path(dali_feed.native.__file__).parent, Path(__file__).parent
PACKAGES = Path(np.__file__).parents[1]  # with NumPy; an editable dali_feed is not found by its path
TELL = "from dali_feed.native.library import library, used; print(used()); print(library() is not None)"


def told(path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a process says of the library, whose package `dali_feed` lies in `path`."""
    environment = {"PYTHONPATH": f"{path}{os.pathsep}{PACKAGES}", "PATH": "/usr/bin:/bin", **environment}
    command = [sys.executable, "-S", "-P", "-c", TELL]  # no other dali_feed than that one
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder with this room alone, whose library is the test's to choose."""
    room = tmp_path / "dali_feed" / "native"
    room.mkdir(parents=True)
    (tmp_path / "dali_feed" / "__init__.py").touch()
    for path in HERE.glob("*.py"):
        shutil.copy(path, room)
    return tmp_path


def test_both_sides_say_one_number() -> None:
    """The version in native.h is the one that library.py asks for."""
    assert re.findall(r"DALI_FEED_NATIVE = (\d+)", (HERE / "native.h").read_text()) == [str(VERSION)]


def test_it_is_compiled_where_there_is_a_compiler() -> None:
    """`make` compiles the library where `cc` is, so that the tests of both ways run."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    assert list(HERE.glob("_native*.so"))


def test_it_is_said_whether_it_is_there_and_used(elsewhere: Path) -> None:
    """With it, switched off by a variable, and in a package that was built without a compiler: nothing is printed."""
    there = bool(list(HERE.glob("_native*.so")))
    for path, environment, loaded, words in (
        (HERE.parents[1], {}, there, "yes" if there else "no"),
        (HERE.parents[1], {SWITCH: "0"}, False, "switched off"),
        (elsewhere, {}, False, "no"),
    ):
        done = told(path, **environment)
        assert (done.stdout, done.stderr) == (f"{words}\n{loaded}\n", "")


def test_a_file_that_cannot_be_loaded_is_passed_over(elsewhere: Path) -> None:
    """A library of another kind of machine is as good as none."""
    (elsewhere / "dali_feed" / "native" / "_native.abi3.so").write_bytes(b"\x7fELF of another machine")
    assert told(elsewhere).stdout == "no\nFalse\n"


def test_a_library_of_other_sources_is_named_and_not_used(elsewhere: Path) -> None:
    """One that was compiled before the sources changed would be called with the wrong arguments: a warning says so."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    source, made = elsewhere / "old.c", elsewhere / "dali_feed" / "native" / "_native.abi3.so"
    source.write_text("int dali_feed_native(void) { return -7; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(made)], check=True)
    done = told(elsewhere)
    assert done.stdout == "no\nFalse\n"
    assert "compiled from other sources (version -7" in done.stderr


SOURCES = HERE.resolve()
FLAGS = ["-std=gnu11", "-O1", "-g1", "-Wall", "-Wextra", "-Werror", "-fno-sanitize-recover=all"]
OPTIONS = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}  # leaks want ptrace
# Name -> the sources beside its driver, more flags, the driver's arguments, what it prints.
DRIVERS: dict[str, tuple[list[str], list[str], list[str], str | None]] = {
    "pixels": (["native.c", "pixels.c"], ["-Wno-extra"], [], ""),
    "pixels without vectors": (["native.c", "pixels.c"], ["-Wno-extra", "-U__SSE2__"], [], ""),
    "rows": (["rows.c"], [], [], "done\n"),
    "kafka": ([], [], ["4000"], None),  # with messages of its own: nulls, holes, errors, headers twice
    "kafka at length": ([], [], ["20000"], None),
}


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if "length" in name else ()) for name in DRIVERS]
)
def test_the_sanitizers_find_nothing(name: str, compiler: str, kept: Kept) -> None:
    """Not a byte before or behind what is written is touched, on this processor and on any, and each is right."""
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    sources, more, arguments, printed = DRIVERS[name]
    paths = [TESTS / f"{name.split(maxsplit=1)[0]}_driver.c", *(SOURCES / source for source in sources)]
    command = [compiler, *FLAGS, *more, "-fsanitize=address,undefined", f"-I{SOURCES}", *map(str, paths)]

    def make(program: Path) -> None:
        built = subprocess.run([*command, "-o", str(program)], capture_output=True, text=True, check=False)
        if built.returncode and "asan" in built.stderr:
            pytest.skip("the compiler has no sanitizers here")
        assert built.returncode == 0, built.stderr

    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    texts = [path.read_text() for path in sorted([*paths, *SOURCES.glob("*.[ch]")])]
    program = kept.file(f"{name}.sanitized", [version, *command, *texts], make)
    environment = {**os.environ, **OPTIONS} if "kafka" in name else None
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert printed in (done.stdout, None)
