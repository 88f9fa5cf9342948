"""A module and a trainer of Lightning's; imported by a test that runs, as it takes two seconds to import Lightning."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.numbered import flat

lightning = pytest.importorskip("lightning.pytorch")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Net(lightning.LightningModule):  # type: ignore[misc,name-defined]
    """Notes the samples that it sees in each epoch, and where it validates."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[tuple[int, list[int]]] = []
        self.checks: list[tuple[int, list[int]]] = []

    def training_step(self, batch: Any, _: int) -> Any:
        """A step over the numbers of a batch; of several loaders over those of the first."""
        batch = batch["a"] if isinstance(batch, dict) else batch
        self.seen.append((self.trainer.current_epoch, flat(batch)))
        return self.layer(batch[0]).pow(2).mean()

    def validation_step(self, batch: Any, _: int) -> None:
        """Where it is asked for."""
        self.checks.append((len(self.seen), flat(batch)))

    def predict_step(self, batch: Any, _: int) -> list[int]:
        """The samples themselves."""
        return flat(batch)

    def configure_optimizers(self) -> Any:
        """Plain steps."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Save(lightning.Callback):  # type: ignore[misc,name-defined]
    """Saves after so many batches of the second epoch."""

    def __init__(self, path: Path, batches: int) -> None:
        self.path, self.batches = path, batches

    def on_train_batch_end(self, trainer: Any, module: Net, *_: Any) -> None:
        """See the class."""
        if sum(epoch == 1 for epoch, _ in module.seen) == self.batches and trainer.current_epoch == 1:
            trainer.save_checkpoint(self.path)


def trainer(folder: Path, **options: Any) -> Any:
    """A quiet one on the CPU, of two epochs unless told."""
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}
    return lightning.Trainer(
        **{"accelerator": "cpu", "devices": 1, "max_epochs": 2, "default_root_dir": folder, **quiet, **options}
    )
