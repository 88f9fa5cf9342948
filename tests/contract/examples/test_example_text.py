"""examples/train_text.py: its loss falls, and a run that was stopped goes on as if it had not been."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import tokenizers
import torch
import train_text
from tokenizers import models, pre_tokenizers

pytestmark = pytest.mark.slow

TINY = ("--length", "32", "--batch-size", "4")


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """One thread: on a busy machine the threads of a step wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def losses(capsys: pytest.CaptureFixture[str], out: Path, steps: int, *more: str) -> tuple[float, float]:
    """The first and the last of a run."""
    train_text.main(["--out", str(out), "--steps", str(steps), *TINY, *more])
    told = re.search(r"loss: (\d+\.\d{4}) at first, (\d+\.\d{4}) at last", capsys.readouterr().out)
    assert told is not None
    return float(told[1]), float(told[2])


def test_it_learns_and_goes_on_from_its_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Stopped within an epoch, it ends with the loss of a run that was not, for the batches are the same."""
    first, last = losses(capsys, tmp_path / "whole", 16)
    assert last < first - 1
    assert losses(capsys, tmp_path / "stopped", 9)[0] == first
    assert losses(capsys, tmp_path / "stopped", 16)[1] == last


def test_a_tokenizers_file_will_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With its own token behind each document; one that has none is told."""
    words = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0, "the": 1, "is": 2, "[END]": 3}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    file = ("--tokenizer", str(tmp_path / "tokenizer.json"))
    first, last = losses(capsys, tmp_path / "out", 3, *file, "--end", "[END]")
    assert last < first
    with pytest.raises(SystemExit, match=r"--end: .* must have the token; found none that is <\|endoftext\|>"):
        train_text.main(["--out", str(tmp_path), *file])
