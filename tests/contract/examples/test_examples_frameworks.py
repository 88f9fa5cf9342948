"""The examples with Lightning, Accelerate and Hugging Face's Trainer: a plain loop's losses, stopped in an epoch."""

from __future__ import annotations

import argparse
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from kit import one_import
from kit.images import QUICK
from kit.warm import Warm
from pictures import network, pictures, transforms
from torch import nn
from torchvision.datasets import ImageFolder

from dali_feed import DataLoader

pytestmark = [pytest.mark.slow, pytest.mark.whole_machine]

EXAMPLES = Path(__file__).parents[3] / "examples"
TWICE = Path(one_import.__file__)
NEEDS = {
    "lightning_module": ("lightning",),
    "accelerate_loop": ("accelerate",),
    "hf_trainer": ("transformers", "accelerate", "datasets"),
}
STOPPED, STEPS = 5, 9  # of 7 to an epoch


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Those of plain PyTorch."""
    args = argparse.Namespace(data=None, out=tmp_path_factory.mktemp("plain"))
    images = ImageFolder(str(pictures(args)), transforms())
    torch.manual_seed(0)
    model = network(len(images.classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    out: list[float] = []
    with DataLoader(images, 8, shuffle=True, seed=0, device="cpu", tuning=QUICK) as loader:
        while len(out) < STEPS:
            for batch, labels in loader:
                loss = nn.functional.cross_entropy(model(batch), labels)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                out.append(loss.item())
    return out[:STEPS]


@pytest.mark.parametrize("example", NEEDS)
def test_an_example_stops_and_goes_on(example: str, warm: Warm, losses: list[float], tmp_path: Path) -> None:
    """Two runs, the first of which ends in the middle of an epoch, have the losses of one plain loop, step by step."""
    if missing := [name for name in NEEDS[example] if find_spec(name) is None]:  # not imported: that takes seconds
        pytest.skip(f"{missing} not installed")
    quiet = {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = warm.run([TWICE, EXAMPLES / f"{example}.py", tmp_path, STOPPED, STEPS], env=quiet)
    assert done.returncode == 0, done.stderr
    assert "torch's own DataLoader" not in done.stderr
    _, *said = done.stdout.split("begun:\n")
    begun, gone_on = ([float(loss) for loss in re.findall(r"\bloss'?:? '?([\d.]+)", each)] for each in said)
    assert begun == pytest.approx(losses[:STOPPED], abs=1e-3)
    assert gone_on == pytest.approx(losses[STOPPED:], abs=1e-3)
