"""The examples with columns: what they learn gets better, and a stopped run goes on as if it had not been stopped."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch

EXAMPLES = Path(__file__).parents[3] / "examples"
STOPPED, STEPS = 8, 20  # of 6 to an epoch


def example(name: str) -> Any:
    """The script as a module; examples are no package."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads of such small steps wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", ["train_pairs", "train_masks"])
def test_an_example_learns_and_goes_on(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss falls, masks come closer; two runs, the first stopped inside an epoch, have the figures of one."""
    if name == "train_masks":
        pytest.importorskip("skimage")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    main = example(name).main
    whole = main(["--out", str(tmp_path / "whole"), "--steps", str(STEPS)])
    parts = [main(["--out", str(tmp_path / "parts"), "--steps", str(steps)]) for steps in (STOPPED, STEPS)]
    assert [len(part) for part in parts] == [STOPPED, STEPS - STOPPED]
    assert parts[0] + parts[1] == whole
    figures = [step if isinstance(step, tuple) else (step,) for step in whole]
    losses, overlaps = [step[0] for step in figures], [step[1:] for step in figures]
    assert mean(losses[-4:]) < 0.7 * mean(losses[:2])
    assert not any(overlaps) or overlaps[-1][0] > overlaps[0][0] + 0.2
