"""examples/imagenet.py: one script, both loaders, and a resume in the middle."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from images import jpeg

pytestmark = [pytest.mark.slow, pytest.mark.whole_machine]

EXAMPLE = Path(__file__).parents[2] / "examples" / "imagenet.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes, told apart by their pictures, 24 images to train and 8 to judge by."""
    root = tmp_path_factory.mktemp("imagenet")
    for part, count in (("train", 24), ("val", 8)):
        for n in range(count):
            path = root / part / f"class{n % 2}" / f"{n}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(jpeg(n % 2, 40, 48 + n))
    return root


def run(folder: Path, *options: object) -> list[str]:
    """The lines it prints; a failure shows what it said."""
    tiny = ("--model", "shufflenet_v2_x0_5", "--size", 32, "--batch-size", 8, "--workers", 1, "--lr", 0.01)
    command = [sys.executable, EXAMPLE, folder, *tiny, *options]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("loader", ["dali_feed", "torch"])
def test_it_trains_with_either(folder: Path, loader: str) -> None:
    """Epochs, a falling or rising accuracy, and a rate."""
    lines = run(folder, "--loader", loader, "--epochs", 2)
    assert [line.partition(":")[0] for line in lines] == ["epoch 0", "epoch 1"]
    assert all(re.search(r"loss \d+\.\d+, top-1 \d+\.\d %, [\d,]+ images/s", line) for line in lines)


def test_it_goes_on_from_its_checkpoint(folder: Path, tmp_path: Path) -> None:
    """Saved at step 2 of 3, a second run gives the rest of that epoch, and then the next."""
    saved = tmp_path / "run.pt"
    run(folder, "--epochs", 1, "--checkpoint", saved, "--save-every", 2)
    lines = run(folder, "--epochs", 2, "--checkpoint", saved, "--save-every", 100)
    assert [line.partition(":")[0] for line in lines] == ["epoch 0", "epoch 1"]
