"""The demo's training loop: as a user would write it, but for the trace that the comparison needs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import nn
from torchvision.transforms import v2

from dali_feed.cli.demo.digits import HELD_OUT, SIDE, TRAIN, open_source
from dali_feed.loader import DataLoader

__all__ = ["Job", "Trace", "Training"]

BATCH = 64
NORMALIZE = [v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.5] * 3)]
AUGMENT = [
    v2.RandomResizedCrop(SIDE, scale=(0.8, 1.0), ratio=(0.9, 1.1)),
    v2.RandomRotation(10),
    v2.ColorJitter(brightness=0.2, contrast=0.2),
]


@dataclass(frozen=True, slots=True)
class Job:
    """What each of the three processes must know; plain JSON.

    kind    "kafka" or "tar"
    at      the broker's address, or the folder of the shards
    device  as torch names it; None: the loader's default
    """

    kind: str
    at: str
    device: str | None
    epochs: int
    seed: int = 0


@dataclass(slots=True)
class Trace:
    """What an epoch's batches were: per batch the ids of its slots and the SHA-256 of its pixels."""

    ids: list[list[int]] = field(default_factory=list)
    pixels: list[str] = field(default_factory=list)
    weights: str = ""

    def add(self, images: torch.Tensor, ids: torch.Tensor) -> None:
        """Note a batch down."""
        self.ids.append(ids.tolist())
        self.pixels.append(_sha256(images))


def _sha256(*tensors: torch.Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


class Training:
    """Loader, network, optimizer and schedule. Use it in a `with`, so that the loader is closed."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.loader = DataLoader(
            open_source(job.kind, job.at, TRAIN),
            BATCH,
            shuffle=True,
            device=job.device,
            seed=job.seed,
            transform=v2.Compose([*AUGMENT, *NORMALIZE]),
            info=True,
        )
        self._held_out: DataLoader | None = None
        self.steps = len(self.loader)  # per epoch
        torch.manual_seed(job.seed)
        self.network = _network().to(self.loader.device)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=3e-3)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 1e-2, total_steps=job.epochs * self.steps)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.loader.close()
        if self._held_out is not None:
            self._held_out.close()

    def epoch(self, trace: Trace | None = None) -> Iterator[float]:
        """Train on the next epoch, or on the rest of a restored one; gives the loss after each step."""
        self.network.train()
        for images, labels, info in self.loader:
            if trace is not None:
                trace.add(images, info.ids)
            loss = nn.functional.cross_entropy(self.network(images), labels)
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.schedule.step()
            yield loss.item()
        if trace is not None:
            trace.weights = _sha256(*self.network.state_dict().values())

    def state_dict(self) -> dict[str, Any]:
        """All but the loader's, which is JSON of its own."""
        return {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])

    def accuracy(self) -> float:
        """The share of held-out digits that the network knows."""
        if self._held_out is None:
            self._held_out = DataLoader(
                open_source(self.job.kind, self.job.at, HELD_OUT),
                2 * BATCH,
                device=self.job.device,
                transform=v2.Compose([v2.Resize((SIDE, SIDE)), *NORMALIZE]),
            )
        self.network.eval()
        right = total = 0
        with torch.no_grad():
            for images, labels in self._held_out:
                right += int((self.network(images).argmax(1) == labels).sum())
                total += len(labels)
        return right / total


def _network() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * (SIDE // 4) ** 2, 10)),
    )
