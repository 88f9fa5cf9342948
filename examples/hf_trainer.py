"""Hugging Face's Trainer on a Hugging Face dataset: its images are read undecoded, and training goes on in its epoch.

    python examples/hf_trainer.py --out run --steps 10
    python examples/hf_trainer.py --out run --steps 30           # goes on at step 11

The Trainer takes the loader as it is. By default it resumes by reading and dropping the batches that were trained on;
`ignore_data_skip` turns that off, since the loader's state, kept in each checkpoint, has the position.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import torch
import transformers
from pictures import arguments, network, pictures, transforms
from torch import nn
from transformers.trainer_utils import get_last_checkpoint

from dali_feed import DataLoader


class Classifier(nn.Module):
    """A network that takes a dataset's columns by name and gives its loss, as the Trainer wants it."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.network = network(classes)

    def forward(self, image: torch.Tensor, label: torch.Tensor) -> dict[str, torch.Tensor]:
        """One batch."""
        return {"loss": nn.functional.cross_entropy(self.network(image), label)}


class KeepsLoader(transformers.TrainerCallback):
    """Puts the loader's state into each checkpoint."""

    def __init__(self, loader: DataLoader) -> None:
        self.loader = loader

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """After the Trainer has written the rest."""
        if state.is_world_process_zero:  # it is the same on every rank
            path = Path(args.output_dir, f"checkpoint-{state.global_step}", "loader.json")
            path.write_text(json.dumps(self.loader.state_dict()), encoding="utf-8")


class Trainer(transformers.Trainer):
    """One that is given its loader."""

    def __init__(self, loader: DataLoader, **options: Any) -> None:
        super().__init__(callbacks=[KeepsLoader(loader)], **options)
        self.loader = loader

    def get_train_dataloader(self) -> Any:
        """Our loader, which gives each rank its part by itself."""
        return self.loader


def main() -> None:
    """Train up to --steps, from the last checkpoint where there is one."""
    args = arguments(__doc__)
    transformers.set_seed(0)
    options = transformers.TrainingArguments(
        output_dir=str(args.out),
        max_steps=args.steps,
        per_device_train_batch_size=args.batch_size,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        max_grad_norm=0,
        save_steps=5,
        logging_steps=1,
        ignore_data_skip=True,
        report_to=[],
        disable_tqdm=True,
    )
    data = datasets.load_dataset("imagefolder", data_dir=str(pictures(args)), split="train")
    loader = DataLoader(data, args.batch_size, shuffle=True, seed=0, device=options.device, transform=transforms())
    trainer = Trainer(loader, model=Classifier(data.features["label"].num_classes), args=options)
    last = get_last_checkpoint(str(args.out)) if args.out.exists() else None  # type: ignore[no-untyped-call]
    if last is not None:
        loader.load_state_dict(json.loads(Path(last, "loader.json").read_text(encoding="utf-8")))
    trainer.train(resume_from_checkpoint=last)
    loader.close()


if __name__ == "__main__":
    main()
