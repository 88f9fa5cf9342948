"""Hugging Face's Trainer on a Hugging Face dataset: its images are read undecoded, and training goes on in its epoch.

    python examples/hf_trainer.py --out run --steps 10
    python examples/hf_trainer.py --out run --steps 30           # goes on at step 11

The Trainer takes the loader as it is. It resumes by skipping the batches that were trained on: our loader does that by
arithmetic, and reads none of them.
"""

from __future__ import annotations

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


class Trainer(transformers.Trainer):
    """One that is given its loader."""

    def __init__(self, loader: DataLoader, **options: Any) -> None:
        super().__init__(**options)
        self.loader = loader

    def get_train_dataloader(self) -> Any:
        """Our loader, which gives each rank its part by itself."""
        return self.accelerator.prepare(self.loader)


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
        report_to=[],
        disable_tqdm=True,
    )
    data = datasets.load_dataset("imagefolder", data_dir=str(pictures(args)), split="train")
    loader = DataLoader(data, args.batch_size, shuffle=True, seed=0, device=options.device, transform=transforms())
    trainer = Trainer(loader, model=Classifier(data.features["label"].num_classes), args=options)
    last = get_last_checkpoint(str(args.out)) if args.out.exists() else None  # type: ignore[no-untyped-call]
    transformers.trainer.skip_first_batches = lambda loader, batches=0: loader.skip(batches)  # type: ignore[attr-defined]
    trainer.train(resume_from_checkpoint=last)
    loader.close()


if __name__ == "__main__":
    main()
