"""`dali-feed bench ...` as a test calls it, over some pictures of its own; who must have a row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from dali_feed.cli.app import app

SMALL = ["--batch", "2", "--threads", "1", "--device", "cpu", "--rounds", "1"]
SHORT = [*SMALL, "--seconds", "0.05"]
PLACES = ("start", "middle", "end")
BESIDE = """
import pathlib, torch
class mine:
    def __init__(self, job):
        images = torch.zeros(job.batch, 3, job.crop, job.crop)
        self.batches = [images, (images, None), {"image": images}]
    def __iter__(self):
        return iter(self.batches)
    def close(self):
        pathlib.Path(__file__).with_suffix(".closed").touch()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six pictures of two classes; what the bench makes goes beside them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for k in range(6):
        path = tmp_path / "mine" / f"class {k % 2}" / f"{k}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(k).integers(0, 256, (48, 64, 3), np.uint8)).save(path)
    (tmp_path / "beside.py").write_text(BESIDE)
    return tmp_path / "mine"


def run(*arguments: object) -> Any:
    """The command line's answer."""
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


COMMANDS = {
    "loader": (["--crop", "32", "--no-peers"], ["tar", "folder", "ceiling", "bare"]),
    "decode": (["--images", "6"], ["host", "host windows", "dali", "dali windows", "pillow", "torchvision"]),
    "train": (["--width", "8", "--no-peers"], ["tar", "replay"]),
    "resume": (["--no-peers"], [f"{who}, {place}" for place in PLACES for who in ("tar", "folder")]),
}
