"""Loaders whose datasets torch runs: what they hand on to the dataset, and how they end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from dali_feed import DataLoader
from dali_feed.errors import ClosedError

pytestmark = pytest.mark.filterwarnings("ignore:dataset. :UserWarning")

RUN: dict[str, Any] = {"device": "cpu"}


class Numbers(Dataset[torch.Tensor]):
    """Ten numbers, of which each epoch has others."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """As datasets have it that change from epoch to epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(100 * self.epoch + index)


def test_an_epoch_that_is_told_is_told_to_the_dataset() -> None:
    """A dataset that has set_epoch hears of it, as under torch's loader it would by its own user."""
    with DataLoader(Numbers(), 5, **RUN) as loader:
        loader.set_epoch(3)
        assert [batch.tolist() for batch in loader] == [[300, 301, 302, 303, 304], [305, 306, 307, 308, 309]]


def test_a_closed_loader_gives_no_pass() -> None:
    """It says so."""
    with DataLoader(Numbers(), 5, **RUN) as loader:
        next(iter(loader))
    with pytest.raises(ClosedError, match="loader: used after close"):
        next(iter(loader))


class Endless(IterableDataset[Any]):
    """Gives lists, of which nobody knows how many samples they are."""

    def __iter__(self) -> Iterator[Any]:
        yield from ([torch.zeros(2), torch.ones(2)] for _ in range(3))


def test_batches_of_lists_are_counted_by_their_first_part() -> None:
    """A batch that the dataset made itself is as many samples as its first tensor has rows."""
    with DataLoader(Endless(), None, **RUN) as loader:
        assert [len(batch) for batch in loader] == [2, 2, 2]
        assert loader.stats().batches == 3
