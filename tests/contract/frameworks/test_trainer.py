"""Hugging Face's Trainer takes our loader: uneven evaluation is exact, and a run resumes in an epoch by arithmetic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from kit.numbered import Numbers, ours
from kit.ranks import spread
from kit.warm import Warm

import dali_feed

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]


class Net(torch.nn.Module):
    """Notes the samples that it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[list[int]] = []

    def forward(self, x: Any = None, labels: Any = None) -> dict[str, Any]:
        """Loss and logits, as the Trainer wants them."""
        if self.training:
            self.seen.append(labels.tolist())
        out = self.layer(x)
        return {"loss": (out - labels.float().unsqueeze(1) / 27).pow(2).mean(), "logits": out}


def collate(samples: list[Any]) -> dict[str, torch.Tensor]:
    """What the model takes."""
    return {"x": torch.stack([x for x, _ in samples]), "labels": torch.tensor([y for _, y in samples])}


def skipping(loader: Any, batches: int = 0) -> Any:
    """In the place of Accelerate's function: the three lines of docs/frameworks.md."""
    from accelerate import skip_first_batches

    return loader.skip(batches) if isinstance(loader, dali_feed.DataLoader) else skip_first_batches(loader, batches)


def trained(folder: Path, resume: Path | None, steps: int, accumulate: int) -> tuple[Any, Net]:
    """Two epochs of 9 batches, saved every so many updates."""
    transformers = pytest.importorskip("transformers")  # two seconds: not while tests are collected

    class Trainer(transformers.Trainer):  # type: ignore[misc,name-defined]
        def get_train_dataloader(self) -> Any:
            return self.accelerator.prepare(ours(self.train_dataset, shuffle=True, collate_fn=collate))

    net = Net()
    arguments = transformers.TrainingArguments(
        str(folder),
        per_device_train_batch_size=3,
        num_train_epochs=2,
        save_steps=steps,
        gradient_accumulation_steps=accumulate,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        logging_strategy="no",
        label_names=["labels"],
    )
    run = Trainer(net, arguments, train_dataset=Numbers(), data_collator=collate)
    run.train(resume_from_checkpoint=None if resume is None else str(resume))
    return run.state, net


@pytest.mark.parametrize(("at", "accumulate", "updates"), [(4, 1, 18), (1, 4, 6)])
def test_a_run_resumes_in_an_epoch(
    at: int, accumulate: int, updates: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of the batches, all updates, equal weights; no file of the loader's is needed."""
    pytest.importorskip("transformers.trainer")
    monkeypatch.setattr("transformers.trainer.skip_first_batches", skipping)
    first, whole = trained(tmp_path, None, at, accumulate)
    second, rest = trained(tmp_path, tmp_path / f"checkpoint-{at}", 1000, accumulate)
    assert (first.global_step, second.global_step) == (updates, updates)
    assert rest.seen == whole.seen[-len(rest.seen) :]
    assert len(rest.seen) == len(whole.seen) - at * accumulate
    assert torch.allclose(whole.layer.weight, rest.layer.weight)


EVALUATED = """
    import transformers
    transformers.logging.set_verbosity_error()

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, x=None, labels=None):
            out = self.layer(x)
            return {"loss": out.pow(2).mean(), "logits": out}

    def collate(samples):
        return {"x": torch.stack([x for x, _ in samples]), "labels": torch.tensor([y for _, y in samples])}

    class Trainer(transformers.Trainer):
        def get_eval_dataloader(self, eval_dataset=None):
            return self.accelerator.prepare(ours(self.eval_dataset, 4, collate_fn=collate))

    said["exact"] = []
    for samples in (10, 25, 7):
        arguments = transformers.TrainingArguments(
            "out", per_device_eval_batch_size=4, report_to=[], disable_tqdm=True, use_cpu=True, label_names=["labels"]
        )
        run = Trainer(Net(), arguments, eval_dataset=Numbers(samples), data_collator=collate,
                      compute_metrics=lambda p: {"ids": sorted(p.label_ids.tolist())})
        said["exact"].append(run.evaluate()["eval_ids"] == list(range(samples)))
"""


def test_evaluation_on_two_processes_counts_each_sample_once(warm: Warm, tmp_path: Path) -> None:
    """10, 25 and 7 samples in fours."""
    for said in spread(warm, tmp_path, EVALUATED, imports="from transformers import Trainer, TrainingArguments"):
        assert said == {"exact": [True, True, True]}
