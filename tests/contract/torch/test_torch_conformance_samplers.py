"""Samplers and batch samplers: the order of torch's loader, over files and over datasets that torch's loader runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from kit.both_loaders import COUNT, OURS_BY_TORCH, both_loaders, flat, folder_of, labels_of, tensors_of
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    random_split,
)
from torch.utils.data import DataLoader as TorchLoader

from dali_feed import DataLoader
from dali_feed.errors import ConfigError

pytestmark = OURS_BY_TORCH


@pytest.fixture(scope="module", params=["files", "tensors"])
def data(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """COUNT samples whose label is their number."""
    return folder_of(tmp_path_factory.mktemp("pictures") / "root") if request.param == "files" else tensors_of()


def seeded(seed: int) -> torch.Generator:
    """A generator of its own."""
    return torch.Generator().manual_seed(seed)


class Backwards(Sampler[int]):
    """From the last to the first; says no length."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(COUNT - 1, -1, -1))


class ByName:
    """Samples by their names; says no length."""

    def __getitem__(self, name: str) -> str:
        return name.upper()


class PairsOfBatches(BatchSampler):
    """A subclass with an order of its own."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[3, 1], [0], [2, 5, 4]])

    def __len__(self) -> int:
        return 3


MADE: dict[str, Callable[[Any], dict[str, Any]]] = {
    "range": lambda _: {"sampler": range(2, 12), "batch_size": 2},
    "list with repeats": lambda _: {"sampler": [7, 0, 7, 7, 1], "batch_size": 2},
    "tensor": lambda _: {"sampler": torch.tensor([4, 2, 9]), "batch_size": 2},
    "no length": lambda _: {"sampler": Backwards(), "batch_size": 5},
    "sequential": lambda d: {"sampler": SequentialSampler(d), "batch_size": 5, "drop_last": True},
    "random": lambda d: {"sampler": RandomSampler(d, generator=seeded(1)), "batch_size": 5},
    "replacement": lambda d: {
        "sampler": RandomSampler(d, replacement=True, num_samples=17, generator=seeded(2)),
        "batch_size": 6,
    },
    "twice over": lambda d: {"sampler": RandomSampler(d, num_samples=2 * COUNT + 1, generator=seeded(3))},
    "weighted": lambda _: {"sampler": WeightedRandomSampler([0.1, 0.9, 3.0], 9, generator=seeded(4)), "batch_size": 4},
    "weighted, each once": lambda _: {
        "sampler": WeightedRandomSampler([0.1, 0.9, 3.0], 3, replacement=False, generator=seeded(4))
    },
    "subset": lambda _: {"sampler": SubsetRandomSampler([8, 1, 5], generator=seeded(5)), "batch_size": 2},
    "distributed": lambda d: {"sampler": DistributedSampler(d, 5, 3, seed=6), "batch_size": 2},
    "distributed, cut": lambda d: {"sampler": DistributedSampler(d, 5, 3, drop_last=True, shuffle=False)},
    "batches": lambda d: {"batch_sampler": BatchSampler(SequentialSampler(d), 5, drop_last=False)},
    "batches, cut": lambda d: {"batch_sampler": BatchSampler(RandomSampler(d, generator=seeded(7)), 5, drop_last=True)},
    "batches of any iterable": lambda _: {"batch_sampler": BatchSampler(range(7), 3, drop_last=False)},
    "uneven batches": lambda _: {"batch_sampler": [(0, 1), (2, 3, 4), (5,), (6, 6)]},
    "no batches": lambda _: {"batch_sampler": []},
    "a subclass": lambda d: {"batch_sampler": PairsOfBatches(SequentialSampler(d), 2, drop_last=False)},
}


@pytest.mark.parametrize("name", MADE)
def test_the_order_is_torchs(data: Any, name: str) -> None:
    """The same batches from both loaders, two epochs long, and as many as len() said."""
    theirs: Any = TorchLoader(data, **MADE[name](data))
    with DataLoader(data, device="cpu", **MADE[name](data)) as ours:
        for epoch in range(2):
            if isinstance(theirs.sampler, DistributedSampler):
                theirs.sampler.set_epoch(epoch)  # ours tells it by itself
            assert labels_of(ours) == labels_of(theirs)
        if name != "no length":
            assert len(ours) == len(theirs)


@both_loaders
def test_a_random_sampler_without_a_generator_follows_torchs_seed(data: Any, loader: Any) -> None:
    """`torch.manual_seed` before the loop makes the order of its own sampler the same again."""
    made = loader(data, 5, sampler=RandomSampler(data))
    orders = []
    for _ in range(2):
        torch.manual_seed(3)
        orders.append(labels_of(made))
    assert orders[0] == orders[1]
    assert sorted(flat(orders[0])) == list(range(COUNT))


@both_loaders
def test_ranks_of_a_distributed_sampler_do_not_overlap(data: Any, loader: Any) -> None:
    """With drop_last each sample comes at most once over all ranks."""
    given = []
    for rank in range(5):
        given += flat(labels_of(loader(data, 2, sampler=DistributedSampler(data, 5, rank), drop_last=True)))
    assert len(given) == len(set(given)) == 10


@both_loaders
def test_an_index_outside_the_dataset(data: Any, loader: Any) -> None:
    """The dataset's IndexError, or an error with the index where files are read; no other sample in its place."""
    with pytest.raises((IndexError, ConfigError), match="out of range|out of bounds|found 99"):
        list(loader(data, 2, sampler=[0, 99]))


@both_loaders
def test_a_sampler_that_fails(data: Any, loader: Any) -> None:
    """Its error comes through; a sampler that cannot be iterated over is a TypeError."""

    def failing() -> Iterator[int]:
        yield 0
        message = "no more of them"
        raise LookupError(message)

    class Failing:
        def __iter__(self) -> Iterator[int]:
            return failing()

    with pytest.raises(LookupError, match="no more of them"):
        list(loader(data, sampler=Failing()))
    with pytest.raises(TypeError, match="'int' object is not iterable"):
        list(loader(data, sampler=3))


@both_loaders
def test_a_sampler_of_keys_that_are_no_numbers(loader: Any) -> None:
    """A dataset may take whatever its sampler gives, and then needs no length."""
    made = loader(ByName(), 2, sampler=["a", "b", "c"])
    assert list(made) == [["A", "B"], ["C"]]
    assert len(made) == 2


def test_the_order_over_a_dataset_without_a_length_is_read_once_an_epoch() -> None:
    """Whatever is asked before the first batch: the pass has the order that a state names, and an iterator serves."""

    def shuffled() -> DataLoader:
        sampler: Any = SubsetRandomSampler(list("abcdefgh"), generator=seeded(1))  # type: ignore[arg-type]
        return DataLoader(ByName(), 2, sampler=sampler)

    plain, made, again = shuffled(), shuffled(), shuffled()
    again.load_state_dict(made.state_dict())
    for _ in range(2):
        assert list(made) == list(again) == list(plain)
    keys: Any = iter("abc")
    once = DataLoader(ByName(), 2, sampler=keys)
    assert (len(once), once.batches_left, list(once)) == (2, 2, [["A", "B"], ["C"]])


@both_loaders
def test_lists_of_indices_for_a_dataset_that_loads_in_bulk(loader: Any) -> None:
    """batch_size=None with a sampler of lists: each list is one call and one item."""

    class Bulk(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return COUNT

        def __getitem__(self, indices: list[int]) -> torch.Tensor:
            return torch.as_tensor(indices)

    lists = [[3, 1, 4], [1, 5], [9]]
    made = loader(Bulk(), batch_size=None, sampler=lists)
    assert [item.tolist() for item in made] == lists
    assert len(made) == 3


@both_loaders
def test_parts_of_a_random_split(data: Any, loader: Any) -> None:
    """Each sample in one of them; a subset of a subset counts in the subset."""
    parts = random_split(data, [0.25, 0.75], seeded(8))
    given = [flat(labels_of(loader(part, 4))) for part in parts]
    assert [len(labels) for labels in given] == [3, 9]
    assert sorted(flat(given)) == list(range(COUNT))
    assert flat(labels_of(loader(Subset(Subset(data, [5, 6, 7]), [2, 0]), 4))) == [7, 5]
