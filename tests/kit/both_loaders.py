"""torch's DataLoader and ours under one name, and the same samples as datasets of several kinds.

A test that takes `loader` runs with each of the two, so that what it states of ours is what torch does.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.images import pixels, png
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset, IterableDataset, TensorDataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from dali_feed import DataLoader

COUNT = 12
OURS_BY_TORCH = pytest.mark.filterwarnings("ignore:dataset. .*torch's own DataLoader runs it:UserWarning")
CPU_WARNING = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

both_loaders = pytest.mark.parametrize(  # what is expected is torch's: test-long tries it on torch's own
    "loader",
    [
        pytest.param(TorchLoader, id="torch", marks=pytest.mark.long),
        pytest.param(functools.partial(DataLoader, device="cpu"), id="ours"),
    ],
)


class Numbers(Dataset[int]):
    """Sample n is n."""

    def __init__(self, count: int = COUNT) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self.count:
            raise IndexError(index)
        return index


class Stream(IterableDataset[int]):
    """0, 1, 2, ..., with the length that it claims."""

    def __init__(self, count: int = COUNT, claims: int | None = None) -> None:
        self.count, self.claims = count, claims

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))

    def __len__(self) -> int:
        if self.claims is None:
            raise TypeError("a stream has no len()")
        return self.claims


def folder_of(root: Path) -> ImageFolder:
    """COUNT pictures whose class is their number, as files."""
    for n in range(COUNT):
        path = root / f"{n:02d}" / "picture.png"
        path.parent.mkdir(parents=True)
        path.write_bytes(png(n))
    return ImageFolder(str(root), v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]))


def tensors_of() -> TensorDataset:
    """The same samples in memory, which only torch's loader can read."""
    images = [torch.from_numpy(pixels(n)).permute(2, 0, 1) / 255 for n in range(COUNT)]
    return TensorDataset(torch.stack(images), torch.arange(COUNT))


def labels_of(batches: Iterable[Any]) -> list[list[int]]:
    """The labels of each batch of (images, labels)."""
    return [labels.tolist() for _, labels in batches]


def let_go(run: Any) -> None:
    """End the workers of torch's own iterator, which an error keeps alive; collected as garbage they take seconds."""
    getattr(run, "_shutdown_workers", lambda: None)()


def flat(lists: Iterable[list[int]]) -> list[int]:
    """End to end."""
    return list(itertools.chain.from_iterable(lists))


def tensors(item: Any) -> Iterator[torch.Tensor]:
    """All that an item of a loader holds."""
    if isinstance(item, torch.Tensor):
        yield item
        return
    for each in item.values() if isinstance(item, dict) else item:
        yield from tensors(each)
