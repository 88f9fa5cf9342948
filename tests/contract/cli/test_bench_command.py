"""`dali-feed bench ...` over data of one's own: who must have a row, what is kept, and what Ctrl-C does."""

from __future__ import annotations

import csv
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kit.bench_command import COMMANDS, SHORT, folder, run
from kit.command import children_hear_ctrl_c
from kit.limits import LONG

__all__ = ["folder"]  # a fixture


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--batch", "7"], "--batch: must be at most the number of images, 6; found 7"),
        (["--out", "nowhere/kept.csv"], "--out: must be a file that ends with one of .json, .csv, .html, in a folder"),
        (["--out", "kept.txt"], "--out: must be a file that ends with one of .json, .csv, .html, in a folder"),
        (["--device", "tpu"], "device: must be a CUDA device or the CPU; found 'tpu'"),
        (["--engine", "gpu"], "Decode(engine=...): must be 'dali', 'host' or None; found 'gpu'"),
    ],
)
def test_what_cannot_be_is_said_before_anything_runs(folder: Path, arguments: list[str], says: str) -> None:
    """A line and exit code 1."""
    done = run("loader", folder, *SHORT, "--no-peers", *arguments)
    assert done.exit_code == 1
    assert says in " ".join(done.stderr.split())


def test_a_file_that_is_too_small_is_named(tmp_path: Path) -> None:
    """With what it must have; one that is a folder too."""
    (tmp_path / "file").write_bytes(b"x")
    done = run("storage", tmp_path / "file", "--quick")
    assert done.exit_code == 1
    assert "must have 1048576 bytes or more; found 1" in done.stderr
    assert "a file to measure must be readable" in run("storage", tmp_path).stderr


def test_kernels_need_a_gpu() -> None:
    """Without one nothing is measured, in a sentence and exit code 1; a kernel that is none is named before."""
    done = run("kernels", "tokens")
    assert (done.exit_code, "must be some of finish, jitter, unpack; found tokens" in done.stderr) == (1, True)
    import torch

    if not torch.cuda.is_available():
        done = run("kernels")
        assert done.exit_code == 1
        assert "needs a GPU" in done.stderr or "cupy" in done.stderr.lower()


def interrupted(command: list[str], mark: str) -> tuple[int, str, str]:
    """Exit code, output and later errors of a process that gets SIGINT once a line of its errors begins with `mark`.

    And again after each 15 lines: CPython drops an interrupt that comes inside a weak reference's callback.
    """
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with children_hear_ctrl_c():
        process = subprocess.Popen([sys.executable, "-P", *command], **pipes)
    try:
        assert process.stderr is not None
        assert any(line.startswith(mark) for line in process.stderr)
        process.send_signal(signal.SIGINT)
        more = list[str]()
        for line in process.stderr:
            more.append(line)
            if len(more) % 15 == 0:
                process.send_signal(signal.SIGINT)
        said, rest = process.communicate(timeout=LONG)
    finally:
        process.kill()
    return process.returncode, said, "".join(more) + rest


def test_ctrl_c_ends_with_what_was_measured(tmp_path: Path) -> None:
    """A table of the turns before it, the same rows in the CSV, and exit code 130."""
    kept = tmp_path / "kept.csv"
    code, said, rest = interrupted([str(Path(__file__).parents[2] / "kit" / "bench_forever.py"), str(kept)], "5/")
    assert code == 130, rest
    assert "interrupted: what follows was measured before" in rest
    assert "Traceback" not in rest
    assert [line.split()[0] for line in said.splitlines()[:3]] == ["who", "tar", "ceiling"]
    with kept.open(newline="") as file:
        assert [row["who"] for row in csv.DictReader(file)] == ["tar", "ceiling"]


@pytest.mark.long(form="test_ctrl_c_ends_with_what_was_measured")
def test_ctrl_c_ends_loaders_with_what_was_measured(folder: Path, tmp_path: Path) -> None:
    """Of real loaders too, whose threads end, and the copies of the images are gone."""
    command = ["-m", "dali_feed.cli", "bench", "loader", str(folder), *SHORT[:-4], "--seconds", "0.05", "--no-peers"]
    code, said, rest = interrupted([*command, "--rounds", "100000"], "6/")  # in the second round
    assert code == 130, rest
    assert "Traceback" not in rest
    assert [line.split()[0] for line in said.splitlines()[1:5]] == COMMANDS["loader"][1]
    assert list((tmp_path / "cache" / "dali_feed" / "bench").iterdir()) == []
