"""Holds that the loops in C are there where they were compiled for these sources, and are never needed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dali_feed.native
from dali_feed.native.library import SWITCH, VERSION

HERE = Path(dali_feed.native.__file__).parent
TELL = "from dali_feed.native.library import library; print(library() is not None)"
SAY = "from dali_feed.native.library import used; print(used())"


def told(path: Path, asked: str = TELL, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a process says of the library, whose package `dali_feed` lies in `path`."""
    environment = {"PYTHONPATH": str(path), "PATH": "/usr/bin:/bin", **environment}
    command = [sys.executable, "-S", "-P", "-c", asked]  # no other dali_feed than that one
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
        assert (done.stdout, done.stderr) == (f"{loaded}\n", "")
        assert told(path, SAY, **environment).stdout == f"{words}\n"


def test_a_file_that_cannot_be_loaded_is_passed_over(elsewhere: Path) -> None:
    """A library of another kind of machine is as good as none."""
    (elsewhere / "dali_feed" / "native" / "_native.abi3.so").write_bytes(b"\x7fELF of another machine")
    assert told(elsewhere).stdout == "False\n"


def test_a_library_of_other_sources_is_named_and_not_used(elsewhere: Path) -> None:
    """One that was compiled before the sources changed would be called with the wrong arguments: a warning says so."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    source, made = elsewhere / "old.c", elsewhere / "dali_feed" / "native" / "_native.abi3.so"
    source.write_text("int dali_feed_native(void) { return -7; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(made)], check=True)
    done = told(elsewhere)
    assert done.stdout == "False\n"
    assert "compiled from other sources (version -7" in done.stderr
