"""A sampler's set_epoch() is the loader's, whatever the loader is asked between that call and the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from kit.numbered import Numbers, flat, ours, scripted
from torch.utils.data import DistributedSampler, RandomSampler, Sampler

from dali_feed import DataLoader
from dali_feed.errors import StateError

pytestmark = pytest.mark.filterwarnings("ignore::dali_feed.errors.FallbackWarning")

COUNT = 12
ASKS: dict[str, Callable[[DataLoader], object]] = {
    "nothing": lambda _: None,
    "len": len,
    "batches_left": lambda loader: loader.batches_left,
    "state_dict": lambda loader: loader.state_dict(),
    "describe": lambda loader: loader.describe(),
    "epoch": lambda loader: loader.epoch,
    "len(iter)": lambda loader: len(iter(loader)),  # type: ignore[arg-type]
    "len(skip)": lambda loader: len(loader.skip(0)),
    "commit": lambda loader: loader.commit(),
}
DATA: dict[str, Callable[[], Any]] = {"engine": lambda: scripted(COUNT), "torch": lambda: Numbers(COUNT)}


def dealt(rank: int = 0) -> Any:
    """Torch's sampler of one rank of two."""
    return DistributedSampler(Numbers(COUNT), num_replicas=2, rank=rank, seed=3)


class Private(Sampler[int]):
    """One that keeps its epoch under a name of its own."""

    def __init__(self) -> None:
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """As torch's."""
        self._epoch = epoch

    def __len__(self) -> int:
        return COUNT

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(COUNT, generator=torch.Generator().manual_seed(self._epoch)).tolist())


class Around(Sampler[int]):
    """One around another, whose epoch it sets."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def set_epoch(self, epoch: int) -> None:
        """The inner one's."""
        self.sampler.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[int]:
        return iter(self.sampler)


def order(sampler: Any, epoch: int) -> list[int]:
    """What a sampler like it gives for that epoch."""
    sampler.set_epoch(epoch)
    return list(sampler)


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("asks", ASKS)
def test_the_number_outlives_what_is_asked_before_the_loop(asks: str, data: str) -> None:
    """A progress bar asks for the length, a script for a state: the order is that of the number all the same."""
    sampler = dealt()
    with ours(DATA[data](), sampler=sampler) as loader:
        for epoch in (5, 6):
            sampler.set_epoch(epoch)
            ASKS[asks](loader)
            assert [n for batch in loader for n in flat(batch)] == order(dealt(), epoch)
        assert loader.epoch == 7


@pytest.mark.parametrize("made", [Private, lambda: Around(dealt()), lambda: Around(Private())])
def test_the_number_is_known_by_other_names(made: Callable[[], Any]) -> None:
    """Of a sampler that keeps it in an attribute named so, and of one around another."""
    sampler = made()
    with ours(Numbers(COUNT), sampler=sampler) as loader:
        sampler.set_epoch(5)
        assert len(loader) == -(-len(sampler) // 3)
        assert [n for batch in loader for n in flat(batch)] == order(made(), 5)
        assert loader.epoch == 6
        assert [n for batch in loader for n in flat(batch)] == order(made(), 6)


def test_a_batch_sampler_of_ones_own() -> None:
    """The same of one that torch's loader takes as it is."""

    class Batches(Private):
        def __iter__(self) -> Iterator[Any]:
            line = list(super().__iter__())
            return iter([line[at : at + 4] for at in range(0, COUNT, 4)])

        def __len__(self) -> int:
            return 3

    batches = Batches()
    with ours(Numbers(COUNT), 1, batch_sampler=batches) as loader:
        batches.set_epoch(5)
        assert len(loader) == 3
        assert [n for batch in loader for n in flat(batch)] == order(Private(), 5)


def test_ranks_agree_where_one_alone_has_a_progress_bar() -> None:
    """Rank 0 asks for the length, rank 1 does not: each sample comes once."""
    given = []
    for rank in range(2):
        sampler = dealt(rank)
        with ours(scripted(COUNT), sampler=sampler) as loader:
            sampler.set_epoch(5)
            if not rank:
                len(loader)
            given += [n for batch in loader for n in flat(batch)]
    assert sorted(given) == list(range(COUNT))


def test_the_last_word_counts() -> None:
    """Of the sampler's set_epoch and the loader's, whatever is asked between."""
    sampler = dealt()
    with ours(Numbers(COUNT), sampler=sampler) as loader:
        sampler.set_epoch(5)
        loader.set_epoch(7)
        assert [n for batch in loader for n in flat(batch)] == order(dealt(), 7)
        loader.set_epoch(9)
        len(loader)
        sampler.set_epoch(4)
        assert [n for batch in loader for n in flat(batch)] == order(dealt(), 4)
        assert loader.epoch == 5


def numbers(loader: DataLoader) -> list[int]:
    """The numbers of an epoch."""
    return [n for batch in loader for n in flat(batch)]


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("asks", ["len", "batches_left", "describe", "len(iter)", "len(skip)"])
def test_a_sampler_is_read_when_its_epoch_begins(asks: str, data: str) -> None:
    """A length is the sampler's word, so what is changed between a progress bar and the loop holds."""
    order = list(range(COUNT))
    with ours(DATA[data](), sampler=order) as loader:
        for _ in range(2):
            ASKS[asks](loader)
            order.reverse()
            assert numbers(loader) == order


@pytest.mark.parametrize("data", DATA)
def test_a_refused_state_leaves_the_sampler_as_it_was(data: str) -> None:
    """Later epochs are those of a loader that was given no state, by a generator of its own and by torch's."""

    def made(seed: int, generator: torch.Generator | None) -> DataLoader:
        return ours(DATA[data](), sampler=RandomSampler(range(COUNT), generator=generator), seed=seed)

    for own in (True, False):
        given = []
        for refused in (False, True):
            torch.manual_seed(3)
            with made(1, torch.Generator().manual_seed(7) if own else None) as other:
                numbers(other)
                next(iter(other))
                foreign = other.state_dict()
            torch.manual_seed(3)
            with made(0, torch.Generator().manual_seed(7) if own else None) as loader:
                numbers(loader)
                if refused:
                    with pytest.raises(StateError, match="seed"):
                        loader.load_state_dict(foreign)
                given.append([numbers(loader), numbers(loader)])
        assert given[0] == given[1]


def test_a_refused_state_leaves_the_samplers_epoch() -> None:
    """It is no word of the user's that the state's epoch was tried."""
    with ours(Numbers(COUNT), sampler=dealt(), seed=1) as other:
        other.set_epoch(6)
        foreign = other.state_dict()
    sampler = dealt()
    with ours(Numbers(COUNT), sampler=sampler) as loader:
        sampler.set_epoch(2)
        with pytest.raises(StateError, match="seed"):
            loader.load_state_dict(foreign)
        assert sampler.epoch == 2
        assert numbers(loader) == order(dealt(), 2)


@pytest.mark.parametrize("data", DATA)
def test_the_length_of_what_is_skipped_to_is_the_next_pass(data: str) -> None:
    """Not of the pass that is under way."""
    with ours(DATA[data]()) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        skipped = loader.skip(2)
        assert len(skipped) == len(list(skipped)) == 2
