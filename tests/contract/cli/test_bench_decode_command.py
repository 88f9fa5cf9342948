"""`dali-feed bench decode` and `bench kernels`: a row for each case, and what is said where something is missing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from kit.inside import app
from PIL import Image
from typer.testing import CliRunner


def test_each_decoder_is_measured_whole_and_in_windows(tmp_path: Path) -> None:
    """For each number of threads; Pillow and torchvision decode whole images alone."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for k in range(3):
        Image.fromarray(np.random.default_rng(k).integers(0, 256, (48, 64, 3), np.uint8)).save(folder / f"{k}.jpg")
    command = ["bench", "decode", str(folder), "--batch", "2", "--seconds", "0.05", "--repeats", "1", "--json"]
    done = CliRunner().invoke(app, [*command, "--device", "cpu", "--threads", "1", "--data", str(tmp_path / "made")])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["missing"] == {}
    ours = {(who, form) for who in ("host", "dali") for form in ("whole", "windows")}
    found = {(row["who"], row["form"]): row for row in told["rows"]}
    assert set(found) == ours | {("pillow", "whole"), ("torchvision", "whole")}
    assert all(row["img/s"] > 0 and row["threads"] == 1 for row in found.values())
    assert all(row["of whole"] == 1.0 for (_, form), row in found.items() if form == "whole")


@pytest.mark.parametrize("gpu", [False, pytest.param(True, marks=pytest.mark.gpu)])
def test_kernels_are_measured_or_compiled(gpu: bool) -> None:
    """On a GPU beside a copy; without one that is said, and each variant has code for three architectures."""
    done = CliRunner().invoke(app, ["bench", "kernels", "jitter", "--quick", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    if "GPU" in told["missing"]:
        assert not gpu
        assert "nothing was measured" in told["missing"]["GPU"]
        assert all(row[arch].endswith(" bytes") for row in told["rows"] for arch in ("sm_80", "sm_90", "sm_100"))
    else:
        assert all(float(row["GB/s"]) > 0 for row in told["rows"])
    assert {row["kernel"] for row in told["rows"]} == {"jitter"}


def test_an_unknown_kernel_is_named() -> None:
    """With those there are."""
    done = CliRunner().invoke(app, ["bench", "kernels", "blur"])
    assert done.exit_code == 1
    assert "must be some of finish, jitter, unpack; found blur" in " ".join(done.stderr.split())
