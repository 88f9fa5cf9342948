"""Insides that contract/cli/test_bench_loader_command.py needs not: they go with what they test."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from dali_feed.cli.app import app
from dali_feed.cli.bench import asked

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


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["--batch", "7"], "--batch: must be at most the number of images, 6; found 7"),
        (["--csv", "nowhere/kept.csv"], "--csv: must be a file in a folder that exists"),
        (["--device", "tpu"], "device: must be a CUDA device or the CPU; found 'tpu'"),
        (["--engine", "gpu"], "engine: must be one of 'dali', 'host'"),
    ],
)
def test_what_cannot_be_is_said_before_anything_runs(folder: Path, tmp_path: Path, asked: list[str], says: str) -> None:
    """A line and exit code 1; nothing is left behind."""
    done = CliRunner().invoke(app, ["bench", "loader", str(folder), "--data", str(tmp_path / "made"), *SMALL, *asked])
    assert done.exit_code == 1
    assert says in " ".join(done.stderr.split())
    assert not list((tmp_path / "made").glob("*"))


@pytest.mark.parametrize(("command", "own"), [("loader", OURS), ("train", ["tar", "replay"])])
def test_a_quick_run_begins_no_turn_when_its_time_is_up(
    command: str, own: list[str], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever had none is named with the reason, and the command ends well; without --quick there is no such limit."""
    monkeypatch.setattr(asked, "QUICK_LIMIT", 0.0)
    call = ["bench", command, str(folder), "--batch", "2", "--device", "cpu", "--no-peers", "--json", "--quick"]
    done = CliRunner().invoke(app, [*call, "--data", str(tmp_path / "made")])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["rows"] == []
    assert list(told["missing"]) == own
    assert all("--quick" in reason for reason in told["missing"].values())
    options = dict.fromkeys(("threads", "device", "engine", "csv", "report", "plots", "data", "source", "config"))
    options |= {"batch": 1, "repeats": 1, "images": 1, "json": False, "timeout": 1.0}
    assert asked.Asked.of(options | {"quick": False}).until == math.inf
