"""Lightning: give it the loader as it is; a checkpoint holds the loader's state, and training goes on in its epoch.

    python examples/lightning_module.py --out run --steps 10
    python examples/lightning_module.py --out run --steps 30     # goes on at step 11

Lightning neither wraps the loader nor replaces its sampler. It is made in `train_dataloader`, which Lightning calls
when the ranks are known, and gives each rank its part by itself.
"""

from __future__ import annotations

import argparse
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from pictures import arguments, network, pictures, transforms
from torch import nn
from torchvision.datasets import ImageFolder

from dali_feed import DataLoader


class Classifier(lightning.LightningModule):
    """A network and its data."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.batch_size = args.batch_size
        self.images = ImageFolder(str(pictures(args)), transforms())
        self.network = network(len(self.images.classes))

    def train_dataloader(self) -> DataLoader:
        """Ours: batches lie on this rank's device already."""
        return DataLoader(self.images, self.batch_size, shuffle=True, seed=0, device=self.device)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        """One batch as `for images, labels in loader` gives it."""
        images, labels = batch
        loss = nn.functional.cross_entropy(self.network(images), labels)
        self.print(f"step {self.global_step + 1}: loss {loss.item():.4f}", flush=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def main() -> None:
    """Train up to --steps, from the last checkpoint where there is one."""
    args = arguments(__doc__)
    lightning.seed_everything(0, verbose=False)
    trainer = lightning.Trainer(
        max_steps=args.steps,
        callbacks=ModelCheckpoint(args.out, filename="{step}", every_n_train_steps=5, save_last=True),
        default_root_dir=args.out,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    last = args.out / "last.ckpt"
    trainer.fit(Classifier(args), ckpt_path=last if last.exists() else None)


if __name__ == "__main__":
    main()
