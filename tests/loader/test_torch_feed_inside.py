"""Insides that contract/torch/test_torch_feed.py needs not: they go with what they test."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

from dali_feed import DataLoader
from dali_feed.errors import FallbackWarning
from dali_feed.loader.arguments import moved


class Pair(NamedTuple):
    """What a dataset may give."""

    value: torch.Tensor
    number: int


class Squares(Dataset[Any]):
    """Twenty of them; keeps what was asked for."""

    def __init__(self, count: int = 20) -> None:
        self.count, self.asked = count, list[int]()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        return {"pair": Pair(torch.tensor([index, index * index]), index), "name": f"n{index}"}


pytestmark = pytest.mark.filterwarnings("ignore:dataset. .*torch's own DataLoader runs it:UserWarning")


def made(dataset: Any = None, batch_size: int | None = 4, **options: Any) -> DataLoader:
    """On the CPU."""
    return DataLoader(Squares() if dataset is None else dataset, batch_size, device="cpu", **options)


def test_it_gives_what_torch_gives_and_says_why() -> None:
    """Batches as torch collates them, at the caller's line one warning with the reason; 'error' refuses."""
    why = (
        "^dataset: .*Squares cannot be read by our engines, because .*Squares has a __getitem__ of its own; torch's own"
    )
    with pytest.warns(UserWarning, match=f"{why} DataLoader runs it, in our order[.] For .*, use a source of") as told:
        loader = made()
    assert [warning.filename for warning in told] == [__file__]
    theirs = TorchLoader(Squares(), 4)
    assert len(loader) == len(theirs) == 5
    for ours, torchs in zip(loader, theirs, strict=True):
        assert type(ours["pair"]) is Pair
        assert torch.equal(ours["pair"].value, torchs["pair"].value)
        assert ours["name"] == torchs["name"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        with pytest.raises(FallbackWarning, match="^dataset: .*torch's own DataLoader runs it, in our order"):
            made()


def test_batches_of_any_class_move() -> None:
    """Mappings, lists and packed sequences keep their class where they can; on the CPU nothing is touched."""
    packed = torch.nn.utils.rnn.pack_sequence([torch.zeros(3), torch.zeros(2)])
    item = {"a": [torch.zeros(2), "text"], "b": OrderedDict(x=torch.zeros(1)), "c": packed}
    assert moved(item, torch.device("cpu")) is item
    there = moved({key: item[key] for key in ("a", "b")}, torch.device("meta"))
    assert there["a"][0].is_meta
    assert type(there["b"]) is OrderedDict
    assert there["b"]["x"].is_meta
