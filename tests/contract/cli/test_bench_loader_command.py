"""`dali-feed bench loader` over a folder of one's own: what it prints, keeps, and does at Ctrl-C."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import bench_forever
from kit.ctrl_c import children_hear_ctrl_c
from kit.inside import app
from kit.limits import LONG
from PIL import Image
from typer.testing import CliRunner

OURS = ["tar", "folder", "ceiling", "loop", "loop-read"]
SMALL = ["--batch", "2", "--seconds", "0.05", "--threads", "1", "--device", "cpu", "--no-peers"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six pictures of two classes."""
    for k in range(6):
        path = tmp_path / "mine" / f"class {k % 2}" / f"{k}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(k).integers(0, 256, (48, 64, 3), np.uint8)).save(path)
    return tmp_path / "mine"


def rows(path: Path) -> list[dict[str, str]]:
    """What a CSV holds."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_own_images_are_measured_and_kept(folder: Path, tmp_path: Path) -> None:
    """JSON holds each contestant's row and waits; the CSV has them too, with the data's name and where it was made."""
    kept, made = tmp_path / "kept.csv", tmp_path / "made"
    command = ["bench", "loader", str(folder), *SMALL, "--crop", "32", "--repeats", "1"]
    command += ["--csv", str(kept), "--data", str(made)]
    done = CliRunner().invoke(app, [*command, "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["kind"] == "loader"
    assert [row["who"] for row in told["rows"]] == OURS
    assert all(told["waits"][who] for who in OURS)
    assert told["missing"] == {}
    assert set(told["told"]) == {"tar", "folder"}
    assert {"read", "engine", "train"} <= {stage["name"] for stage in told["told"]["tar"]["stages"]}
    assert any(f"{who}'s own verdict: {its['sentence']}." in told["findings"] for who, its in told["told"].items())
    found = rows(kept)
    assert [row["who"] for row in found] == OURS
    assert {row["crop"] for row in found} == {"32"}
    assert {(row["images"], row["image"], row["batch"], row["threads"], row["device"]) for row in found} == {
        ("6", "64x48", "2", "1", "cpu")
    }
    assert all(str(folder) in row["data"] and row["machine"] and row["commit"] and row["torch"] for row in found)
    assert {row["of ceiling"] for row in found if row["who"] == "ceiling"} == {"1.000"}
    assert list(made.iterdir()) == []  # copies are gone at the end


def interrupted(command: list[str], mark: str, again: int = sys.maxsize) -> tuple[int, str, str]:
    """Exit code, output and later errors of a process that gets SIGINT once a line of its errors begins with `mark`.

    And once more after each `again` lines: CPython drops an interrupt that comes inside a weak reference's callback.
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
            more += [line]
            if len(more) == again:
                more.clear()
                process.send_signal(signal.SIGINT)
        said, rest = process.communicate(timeout=LONG)
    finally:
        process.kill()
    return process.returncode, said, "".join(more) + rest


def test_ctrl_c_ends_with_what_was_measured(tmp_path: Path) -> None:
    """A table of the turns before it, the same rows in the CSV, and exit code 130."""
    kept = tmp_path / "kept.csv"
    code, said, rest = interrupted([str(Path(bench_forever.__file__)), str(kept)], "5/")
    assert code == 130, rest
    assert "interrupted: what follows was measured before" in rest
    assert "Traceback" not in rest
    assert [line.split()[0] for line in said.splitlines()[:3]] == ["who", "tar", "ceiling"]
    assert [row["who"] for row in rows(kept)] == ["tar", "ceiling"]


@pytest.mark.long(form="test_ctrl_c_ends_with_what_was_measured")
def test_ctrl_c_ends_loaders_with_what_was_measured(folder: Path, tmp_path: Path) -> None:
    """Of real loaders too, whose threads end, and the copies of the images are gone."""
    kept, made = tmp_path / "kept.csv", tmp_path / "made"
    command = ["-m", "dali_feed.cli", "bench", "loader", str(folder), *SMALL, "--repeats", "100000"]
    code, said, rest = interrupted(
        [*command, "--csv", str(kept), "--data", str(made)], "6/", again=15
    )  # in the second round
    assert code == 130, rest
    assert "Traceback" not in rest
    assert [line.split()[0] for line in said.splitlines()[:6]] == ["who", *OURS]
    assert [row["who"] for row in rows(kept)] == OURS
    assert list(made.iterdir()) == []
