"""examples/imagenet.py: one script, both loaders, and a resume in the middle."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from kit.images import jpeg
from kit.warm import Warm

pytestmark = [pytest.mark.slow, pytest.mark.whole_machine]

EXAMPLE = Path(__file__).parents[3] / "examples" / "imagenet.py"


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


Run = Callable[..., list[str]]


@pytest.fixture
def run(warm: Warm) -> Run:
    """Runs it: the lines it prints; a failure shows what it said."""
    tiny = ("--model", "shufflenet_v2_x0_5", "--size", 32, "--batch-size", 8, "--workers", 1, "--lr", 0.01)

    def printed(folder: Path, *options: object) -> list[str]:
        done = warm.run([EXAMPLE, folder, *tiny, *options])
        assert done.returncode == 0, done.stderr
        assert "Warning" not in done.stderr
        return done.stdout.splitlines()

    return printed


@pytest.mark.parametrize("loader", ["dali_feed", "torch"])
def test_it_trains_with_either(run: Run, folder: Path, loader: str) -> None:
    """Epochs, a falling or rising accuracy, and a rate."""
    lines = run(folder, "--loader", loader, "--epochs", 2)
    assert [line.partition(":")[0] for line in lines] == ["epoch 0", "epoch 1"]
    assert all(re.search(r"loss \d+\.\d+, top-1 \d+\.\d %, [\d,]+ images/s", line) for line in lines)


def test_it_goes_on_from_its_checkpoint(run: Run, folder: Path, tmp_path: Path) -> None:
    """Saved at step 2 of 3, a second run gives the rest of that epoch, and then the next."""
    saved = tmp_path / "run.pt"
    run(folder, "--epochs", 1, "--checkpoint", saved, "--save-every", 2)
    lines = run(folder, "--epochs", 2, "--checkpoint", saved, "--save-every", 100)
    assert [line.partition(":")[0] for line in lines] == ["epoch 0", "epoch 1"]


def test_a_missing_folder_is_one_line(warm: Warm, tmp_path: Path) -> None:
    """Which one, and what it must hold."""
    (tmp_path / "train").mkdir()
    for arguments, missing in (((tmp_path,), tmp_path / "val"), ((tmp_path / "no",), tmp_path / "no" / "train")):
        done = warm.run([EXAMPLE, *arguments])
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"{missing}: there is no such")
        assert done.stderr.count("\n") == 1
