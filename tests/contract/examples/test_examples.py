"""The examples that run in this process: streams on a broker inside it, a set, columns, text."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import continual_training
import live_inference
import pytest
import tokenizers
import torch
import train_text
from kit.images import jpeg
from kit.warm import Warm
from tokenizers import models, pre_tokenizers

from dali_feed.testing import broker, publish

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_live_inference_classifies_what_comes(capsys: pytest.CaptureFixture[str]) -> None:
    """Each record as it comes, its class in another topic, and percentiles at the end."""
    taken = live_inference.main(["--records", "20", "--results", "classes", "--every", "0.001"])
    assert len(taken) == 20
    assert "20 records; produced to classified: half in" in capsys.readouterr().out


def test_continual_training_goes_on_and_replays(tmp_path: Path) -> None:
    """Stopped behind a checkpoint it goes on at that; all records come once, and again in the replay."""
    with broker() as embedded:
        placed = publish(embedded.servers, "clicks", [(jpeg(n), n % 3) for n in range(32)], partitions=2)
        run = ["--out", str(tmp_path), "--servers", embedded.servers, "--topic", "clicks", "--batch-size", "4"]
        stopped = continual_training.main([*run, "--steps", "4", "--every", "3"])
        went_on = continual_training.main([*run, "--steps", "8", "--every", "1"])
        seen = [where for step in stopped[:3] + went_on for where in step]
        assert sorted(seen) == sorted(f"clicks[{partition}]@{offset}" for partition, offset in placed)
        again = continual_training.main([*run, "--replay"])
        assert sorted(where for step in again for where in step) == sorted(seen)


def test_it_packs_verifies_and_reads(warm: Warm, tmp_path: Path) -> None:
    """Run twice: the second finds all of it there."""
    for n in range(8):
        path = tmp_path / "train" / f"class{n % 2}" / f"{n}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(n % 2, 40, 48 + n))
    for _ in range(2):
        done = warm.run([EXAMPLES / "pack_imagenet.py", tmp_path / "train", tmp_path / "out", "--resize", 32])
        assert done.returncode == 0, done.stderr
        first, second, third = done.stdout.splitlines()
        assert (first, second) == ("8 images in 1 shards, 0 left out", "0 files are damaged")
        assert third.startswith("a batch of (4, 3, 64, 64), labels [")


STOPPED, STEPS = 8, 20  # of 6 to an epoch, and of 12 where batches are of eight


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


@pytest.mark.parametrize(("name", "batch"), [("train_pairs", 16), ("train_masks", 8)])
def test_an_example_learns_and_goes_on(name: str, batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss falls, masks come closer; two runs, the first stopped inside an epoch, have the figures of one."""
    if name == "train_masks":
        pytest.importorskip("skimage")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    main, how = example(name).main, ["--batch-size", str(batch)]
    whole = main(["--out", str(tmp_path / "whole"), "--steps", str(STEPS), *how])
    parts = [main(["--out", str(tmp_path / "parts"), "--steps", str(steps), *how]) for steps in (STOPPED, STEPS)]
    assert [len(part) for part in parts] == [STOPPED, STEPS - STOPPED]
    assert parts[0] + parts[1] == whole
    figures = [step if isinstance(step, tuple) else (step,) for step in whole]
    losses, overlaps = [step[0] for step in figures], [step[1:] for step in figures]
    assert mean(losses[-4:]) < 0.7 * mean(losses[:2])
    assert not any(overlaps) or overlaps[-1][0] > overlaps[0][0] + 0.2


TINY = ("--length", "32", "--batch-size", "4")


def losses(capsys: pytest.CaptureFixture[str], out: Path, steps: int, *more: str) -> tuple[float, float]:
    """The first and the last of a run."""
    train_text.main(["--out", str(out), "--steps", str(steps), *TINY, *more])
    told = re.search(r"loss: (\d+\.\d{4}) at first, (\d+\.\d{4}) at last", capsys.readouterr().out)
    assert told is not None
    return float(told[1]), float(told[2])


@pytest.mark.slow
def test_it_learns_and_goes_on_from_its_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Stopped within an epoch, it ends with the loss of a run that was not, for the batches are the same."""
    first, last = losses(capsys, tmp_path / "whole", 16)
    assert last < first - 1
    assert losses(capsys, tmp_path / "stopped", 9)[0] == first
    assert losses(capsys, tmp_path / "stopped", 16)[1] == last


@pytest.mark.slow
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
