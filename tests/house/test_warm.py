"""What stands in Python's place for tests that start processes: it does what Python does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kit.limits import LONG
from kit.warm import Warm

LAST = """
import os
class Last:
    def __del__(self, write=os.write):
        write(1, b"taken apart")
last = Last()
"""
ENDS = {
    "of itself": "print('done')",
    "by exit": "import sys; sys.exit(3)",
    "with words": "raise SystemExit('one line')",
    "behind a hook": "import atexit; atexit.register(print, 'hook'); print(end='begun')",
    "behind a thread": "import threading; threading.Timer(0.01, print, ['thread']).start()",
    "by a signal": "import os; os.abort()",
    "at once": "import os; print('lost'); os._exit(7)",
}


@pytest.mark.parametrize(
    ("how", "to_the_end"), [*((how, False) for how in ENDS), ("by exit", True), ("with words", True)]
)
def test_a_process_ends_as_pythons_does(warm: Warm, how: str, to_the_end: bool) -> None:
    """Its status and all that it prints are the same."""
    env = os.environ | ({"WARM_TO_THE_END": "1"} if to_the_end else {})
    ours, pythons = (
        subprocess.run([python, "-c", ENDS[how]], capture_output=True, env=env, timeout=LONG, check=False)
        for python in (warm.python, sys.executable)
    )
    assert (ours.returncode, ours.stdout, ours.stderr) == (pythons.returncode, pythons.stdout, pythons.stderr)


def test_an_error_has_its_traceback(warm: Warm) -> None:
    """Once, and the status is 1."""
    done = subprocess.run([warm.python, "-c", "1 / 0"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert done.stderr.endswith("\nZeroDivisionError: division by zero\n")
    assert done.stderr.count("Traceback") == 1


def test_to_the_end_everything_is_taken_apart(warm: Warm, tmp_path: Path) -> None:
    """What a script left behind is seen to end there, and is let be otherwise."""
    (tmp_path / "script.py").write_text(LAST)
    assert warm.run(["script.py"], tmp_path, to_the_end=True).stdout == "taken apart"
    assert warm.run(["script.py"], tmp_path).stdout == ""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_it_ends_with_its_work(warm: Warm, number: signal.Signals) -> None:
    """A signal to the one is a signal to the other, SIGKILL too: the pipe is at its end, and nobody holds it."""
    code = "import signal, threading\nsignal.signal(signal.SIGINT, signal.SIG_DFL)\nprint(1, flush=True)\n"
    code += "threading.Event().wait()"
    with subprocess.Popen([warm.python, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        process.send_signal(number)
        assert process.stdout.read() == b""
        assert process.wait(LONG) == -number
    assert warm.run(["-c", "pass"]).stderr == ""  # which is where the first process tells of an error of its own


@pytest.mark.parametrize("options", [["-c"], ["-P", "-c"], ["-I", "-c"], ["-Ic"], ["-Im"], ["-m"], ["-Pu"], ["-"]])
def test_modules_are_found_where_python_finds_them(warm: Warm, options: list[str], tmp_path: Path) -> None:
    """In its folder or the script's, in PYTHONPATH, and by what name it was called: options mean what they mean."""
    code = "import sys; print(sys.argv, sys.path[:sys.path.index(next(p for p in sys.path if p.endswith('.zip')))])"
    (tmp_path / "there.py").write_text(code)
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "there.py").write_text(code)
    last = [code] if options[-1].endswith("c") else ["there"] if options[-1].endswith("m") else ["there.py"]
    words = [*options, *(last if options != ["-"] else []), "a", "-b"]
    env = os.environ | {"PYTHONPATH": str(tmp_path / "path")}
    ours, pythons = (
        subprocess.run([python, *words], cwd=tmp_path, env=env, input=code, capture_output=True, text=True, check=False)
        for python in (warm.python, sys.executable)
    )
    assert (ours.returncode, ours.stdout) == (pythons.returncode, pythons.stdout)


@pytest.mark.parametrize(("asked", "code"), [("error", 1), ("ignore", 0)])
def test_warnings_are_what_was_asked_for(warm: Warm, asked: str, code: int) -> None:
    """By -W, as Python takes it."""
    done = warm.run(["-W", asked, "-c", "import warnings; warnings.warn('it is late')"])
    assert (done.returncode, "it is late" in done.stderr) == (code, bool(code))


def test_processes_of_a_script_are_forked_too(warm: Warm, tmp_path: Path) -> None:
    """They have torch without an import of their own; an option that only Python can follow brings Python."""
    told = "'import sys; print(\"torch\" in sys.modules)'"
    (tmp_path / "script.py").write_text(
        "import subprocess, sys\n"
        f"for options in (['-c'], ['-X', 'utf8', '-c']):\n    subprocess.run([sys.executable, *options, {told}])\n"
    )
    done = warm.run(["script.py"], tmp_path)
    assert done.stdout == "True\nFalse\n", done.stderr
