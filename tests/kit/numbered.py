"""Numbered samples for training frameworks: which sample came when can be read off a batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset

from dali_feed import DataLoader
from dali_feed.testing import ScriptedSource

__all__ = ["Numbers", "StatefulStream", "accelerator", "flat", "ours", "scripted"]


class Numbers(Dataset[Any]):
    """Sample i is (i as a share of all, i)."""

    def __init__(self, samples: int = 27) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, at: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([at / self.samples]), at


class StatefulStream(IterableDataset[Any]):
    """The same, iterable-style: without a length, with a state of its own."""

    def __init__(self, samples: int = 27) -> None:
        self.samples, self.at = samples, 0

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        while self.at < self.samples:
            self.at += 1
            yield torch.tensor([(self.at - 1) / self.samples]), self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        """How far it is."""
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on there."""
        self.at = state["at"]


def ours(data: Any, batch_size: int = 3, **options: Any) -> DataLoader:
    """Our loader over a dataset that torch's loader runs, or over a source."""
    return DataLoader(data, batch_size, device="cpu", **options)


def scripted(samples: int, **options: Any) -> ScriptedSource:
    """A source whose labels are the numbers of its records."""
    from kit.images import jpeg

    return ScriptedSource([(jpeg(n), n) for n in range(samples)], **options)


def flat(batch: Any) -> list[int]:
    """The numbers of a batch."""
    return [int(number) for number in batch[1]]


def accelerator(steps: int = 1, **config: Any) -> Any:
    """An Accelerator as if it were the first of its process."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState, PartialState
    from accelerate.utils import DataLoaderConfiguration

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    PartialState._reset_state()
    if torch.distributed.is_initialized():
        torch.distributed.barrier()  # all ranks begin each question together
    return Accelerator(cpu=True, gradient_accumulation_steps=steps, dataloader_config=DataLoaderConfiguration(**config))
