"""Lightning, Accelerate, Hugging Face's Trainer and torchdata's protocol take the loader as it is, and resume it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from kit.images import QUICK, jpeg
from torch import nn
from torch.distributed.checkpoint.stateful import Stateful
from torchvision.transforms import v2

from dali_feed import DataLoader
from dali_feed.testing import ScriptedSource

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

BATCHES = 6  # in an epoch
TRANSFORM = v2.Compose([v2.RandomResizedCrop(8), v2.ToDtype(torch.float32, scale=True)])


def loader(**options: Any) -> DataLoader:
    """24 pictures in batches of 4, shuffled and cropped at random."""
    source = ScriptedSource([(jpeg(n), n) for n in range(24)])
    return DataLoader(source, 4, shuffle=True, device="cpu", transform=TRANSFORM, tuning=QUICK, **options)


def undisturbed(epochs: int) -> list[list[int]]:
    """The labels of every step, in plain Python."""
    with loader() as batches:
        return [labels.tolist() for _ in range(epochs) for _, labels in batches]


class Net(nn.Module):
    """Small; keeps the labels that it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(192, 24)
        self.seen: list[list[int]] = []

    def forward(self, pixels: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss, as Hugging Face wants it."""
        self.seen.append(labels.tolist())
        return {"loss": nn.functional.cross_entropy(self.layer(pixels.flatten(1)), labels)}


def test_it_speaks_the_protocol_of_stateful_loaders() -> None:
    """Torchdata's and torch.distributed.checkpoint's: state_dict and load_state_dict."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader.stateful").Stateful
    with loader() as one:
        assert isinstance(one, stateful)
        assert isinstance(one, Stateful)


def test_accelerate_leaves_it_alone_and_saves_it(tmp_path: Path) -> None:
    """`prepare` gives the very object back; registered, it is in the checkpoint and goes on from there."""
    accelerate = pytest.importorskip("accelerate")

    def prepared() -> tuple[Any, Any, Any, DataLoader]:
        accelerator = accelerate.Accelerator(cpu=True)
        model, mine = Net(), loader()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, batches = accelerator.prepare(model, optimizer, mine)
        assert batches is mine
        accelerator.register_for_checkpointing(mine)
        return accelerator, model, optimizer, mine

    def train(accelerator: Any, model: Any, optimizer: Any, batches: Any, steps: int) -> None:
        for n, (images, labels) in enumerate(batches):
            accelerator.backward(model(images, labels)["loss"])
            optimizer.step()
            optimizer.zero_grad()
            if n + 1 == steps:
                accelerator.save_state(str(tmp_path))
                return

    first = prepared()
    train(*first, steps=4)
    second = prepared()
    second[0].load_state(str(tmp_path))
    train(*second, steps=99)
    assert first[1].seen + second[1].seen == undisturbed(1)
    for each in (first[3], second[3]):
        each.close()


def test_lightning_trains_and_resumes_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    """It neither wraps nor re-shards the loader, saves its state by itself, and goes on at the next batch."""
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return self.net(*batch)["loss"]  # type: ignore[no-any-return]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def fit(steps: int, path: Path | None) -> list[list[int]]:
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        trainer = lightning.Trainer(
            max_steps=steps, accelerator="cpu", enable_checkpointing=False, default_root_dir=tmp_path, **quiet
        )
        module = Module()
        with loader() as mine:
            trainer.fit(module, mine, ckpt_path=path, weights_only=False if path else None)
            assert trainer.train_dataloader is mine
            trainer.save_checkpoint(tmp_path / f"{steps}.ckpt")
        seen: list[list[int]] = module.net.seen
        return seen

    first = fit(8, None)
    rest = fit(15, tmp_path / "8.ckpt")
    assert first + rest == undisturbed(3)[:15]


def test_hugging_faces_trainer_takes_it(tmp_path: Path) -> None:
    """A Trainer whose get_train_dataloader gives ours: the steps of two epochs, batches as dicts by collate_fn."""
    transformers = pytest.importorskip("transformers")

    def collate(samples: list[Any]) -> dict[str, torch.Tensor]:
        images, labels = torch.utils.data.default_collate(samples)
        return {"pixels": images, "labels": labels}

    mine = loader(collate_fn=collate)

    class Trainer(transformers.Trainer):  # type: ignore[misc,name-defined]
        def get_train_dataloader(self) -> Any:
            return self.accelerator.prepare(mine)

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), num_train_epochs=2, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True,
        per_device_train_batch_size=4,
    )  # fmt: skip
    net = Net()
    Trainer(model=net, args=arguments).train()
    assert net.seen == undisturbed(2)
    mine.close()
