"""bench/on_gpu.sh, rehearsed on a machine without a GPU as far as it goes, and the runner below it whole."""

from __future__ import annotations

import csv
import importlib
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.limits import LONG
from kit.warm import Warm

pytestmark = [pytest.mark.slow, pytest.mark.whole_machine]

Run = Callable[..., subprocess.CompletedProcess[str]]
BENCH = Path(__file__).parents[2] / "bench"
FIRST = (
    *("versions", "kernel-finish", "kernel-jitter", "kernel-unpack", "decode"),
    *("engine-dali", "engine-host", "neighbours-dali", "neighbours-host", "decoder-load", "next-returns", "no-sync"),
)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a file of bench/ as its neighbours do."""
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module


def lines(out: Path) -> list[dict[str, str]]:
    """The summary, line by line."""
    with (out / "summary.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def on_gpu(warm: Warm) -> Run:
    """The script, as a person runs it."""

    def run(*args: object) -> subprocess.CompletedProcess[str]:
        command, env = ["bash", str(BENCH / "on_gpu.sh"), *map(str, args)], os.environ | {"PYTHON": str(warm.python)}
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONG, env=env)

    return run


def test_a_wrong_part_is_told_before_anything_runs(on_gpu: Run, tmp_path: Path) -> None:
    """on_gpu.sh names its parts and ends with 2, rather than find out behind the parts before it."""
    done = on_gpu(tmp_path / "out", "kernels", "loder")
    assert done.returncode == 2
    assert (
        "parts are first tests bench photos kernels decode training loader cache top1 plots; found loder" in done.stderr
    )
    assert not (tmp_path / "out").exists()


def test_parts_run_rehearsed_and_leave_one_tar(on_gpu: Run, tmp_path: Path) -> None:
    """Toy photographs, a decoding bench and its picture: a line each, rows, logs, all in results.tar.gz; and once."""
    done = on_gpu("--rehearse", tmp_path / "out", "photos", "decode", "plots")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rehearsal: no GPU is used" in done.stdout
    assert [(line["part"], line["name"], line["verdict"]) for line in lines(tmp_path / "out")] == [
        ("photos", "made", "ok"),
        ("decode", "dali", "ok"),
        ("decode", "host", "ok"),
        ("plots", "drawn", "ok"),
    ]
    with tarfile.open(tmp_path / "out" / "results.tar.gz") as tar:
        assert {"summary.csv", "decode.csv", "decode.png", "logs/decode-dali.log"} <= set(tar.getnames())
    again = on_gpu("--rehearse", tmp_path / "out", "photos", "decode", "plots")
    assert again.stdout.count("ok before") == 4
    assert len(lines(tmp_path / "out")) == 4


def test_every_part_names_a_script_and_arguments_that_exist(module: Any, tmp_path: Path) -> None:
    """Rehearsed or not, each check's script is there, and takes all the options that it is given."""
    parts = module("on_gpu")
    for device in ("cpu", "cuda:0"):
        of = parts.Parts(device, tmp_path)
        for part in parts.PARTS:
            for check in getattr(of, part)():
                (script,) = [word for word in check.command if word.endswith(".py")]
                text = Path(script).read_text()
                options = [word for word in check.command if word.startswith("--")] if part != "tests" else []
                assert all(f'"{option}"' in text for option in options), check
    assert [check.name for check in parts.Parts("cpu", tmp_path).first()] == list(FIRST)
    names = [Path(check.name).name for check in parts.Parts("cuda:0", tmp_path).tests()]
    assert names[0].startswith("test_loader")
    assert {"test_loader_gpu.py", "test_finish.py", "test_finish_gpu.py"} <= set(names)


@pytest.mark.parametrize("name", FIRST)
def test_the_first_questions_are_rehearsed(module: Any, name: str) -> None:
    """On the CPU each is answered, or says that it needs a GPU; none of these is an answer about a GPU."""
    first = module("gpu_first")
    assert set(first.CHECKS) == set(FIRST)
    if name in ("decoder-load", "next-returns", "no-sync"):
        with pytest.raises(first.NotHereError, match="needs a GPU"):
            first.CHECKS[name]("cpu")
    else:
        assert first.CHECKS[name]("cpu")


def test_a_crash_a_hang_and_a_failure_cost_a_line_each(module: Any, tmp_path: Path) -> None:
    """The checks behind them run; what the caller's time cut off is left for the next call, what was ok is not."""
    checks = module("_checks")
    python = (sys.executable, "-c")
    wait = "import threading; threading.Event().wait()"
    told = {
        "fine": "print('all is well')",
        "failing": "import sys; print('three are wrong'); sys.exit(1)",
        "crashing": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
        "hanging": f"import subprocess, sys; subprocess.run([sys.executable, '-c', {wait!r}])",
        "elsewhere": f"import sys; print('needs more'); sys.exit({checks.SKIPPED})",
    }
    limits = {"hanging": 1.0}
    wanted = [checks.Check("p", name, (*python, code), limits.get(name, 60), 0) for name, code in told.items()]
    late = checks.Check("p", "late", (*python, "pass"), 3600, 3600)
    assert checks.run_checks([*wanted, late], tmp_path, "abc", 600) == (3, 1)
    found = {line["name"]: (line["verdict"], line["said"]) for line in lines(tmp_path)}
    assert found == {
        "fine": ("ok", "all is well"),
        "failing": ("FAILED", "three are wrong"),
        "crashing": ("CRASHED (SIGSEGV)", ""),
        "hanging": ("TIMED OUT", ""),
        "elsewhere": ("skipped", "needs more"),
    }
    assert checks.run_checks(wanted[:1], tmp_path, "abc", 600) == (0, 0)
    assert len(lines(tmp_path)) == 5
    checks.run_checks(wanted[:1], tmp_path, "other sources", 600)
    assert len(lines(tmp_path)) == 6


def test_what_the_callers_time_cuts_off_is_run_again(module: Any, tmp_path: Path) -> None:
    """It is no failure, and has all of its limit in the next call."""
    checks = module("_checks")
    gate = tmp_path / "gate"
    code = f"import pathlib, threading; pathlib.Path({str(gate)!r}).exists() or threading.Event().wait()"
    check = checks.Check("p", "slow", (sys.executable, "-c", code), 600, 0)
    assert checks.run_checks([check], tmp_path / "out", "abc", 1) == (0, 1)
    gate.touch()
    assert checks.run_checks([check], tmp_path / "out", "abc", 600) == (0, 0)
    assert [line["verdict"] for line in lines(tmp_path / "out")] == ["cut off", "ok"]
