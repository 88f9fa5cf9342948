"""The state of an iterable-style dataset where its way is uneven: a data pipe, other workers, a start that fails."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, IterDataPipe

from dali_feed import DataLoader
from dali_feed.errors import StateError

pytestmark = [
    pytest.mark.filterwarnings("ignore:dataset. .*torch's own DataLoader runs it:UserWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # by torchdata
]


@pytest.fixture(autouse=True, params=[False, True], ids=["plain", "in a run of Accelerate's"])
def _accelerate(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is told that a batch is the last one before it is given: the next one is fetched for that."""
    gradients = pytest.importorskip("accelerate.state").GradientState
    monkeypatch.setattr(gradients, "_shared_state", {})
    if request.param:
        gradients()


def made(dataset: Any, **options: Any) -> DataLoader:
    """Batches of two, on the CPU."""
    return DataLoader(dataset, 2, device="cpu", **options)


def lists(batches: Any) -> list[list[int]]:
    """The numbers of each batch."""
    return [batch.tolist() for batch in batches]


class Steps:
    """Gives 1 to 6, and says how far it is."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < 6:
            self.at += 1
            yield torch.tensor(self.at)
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        """The last number."""
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on behind it."""
        self.at = state["at"]


class Counted(Steps, IterableDataset[Any]):
    """A dataset that says it."""


class Piped(IterDataPipe[Any]):
    """The same, as a data pipe."""

    def __init__(self) -> None:
        self.steps = Steps()

    def __iter__(self) -> Iterator[Any]:
        yield from self.steps

    def state_dict(self) -> dict[str, int]:
        """Where its steps are."""
        return self.steps.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on there."""
        self.steps.load_state_dict(state)


class Walk(Steps):
    """An iterator with a state."""

    def __iter__(self) -> Walk:
        return self

    def __next__(self) -> Any:
        if self.at == 6:
            raise StopIteration
        self.at += 1
        return torch.tensor(self.at)

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on there, once what has it answers."""
        if Walks.fails == "load":
            Walks.fails = ""
            raise OSError("no answer")
        super().load_state_dict(state)


class Walks(IterableDataset[Any]):
    """Its iterator has a state, and it has none. `fails`: what does so once."""

    fails = ""

    def __iter__(self) -> Iterator[Any]:
        if self.fails == "iter":
            Walks.fails = ""
            raise OSError("no answer")
        return Walk()


def saved(dataset: Any, **options: Any) -> Any:
    """The state behind one batch of it."""
    with made(dataset, **options) as loader:
        next(iter(loader))
        return loader.state_dict()


def without_torchdata(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it were not installed."""
    monkeypatch.setitem(sys.modules, "torchdata.stateful_dataloader", None)


@pytest.mark.parametrize("kind", [Piped, Counted])
@pytest.mark.parametrize("workers", [0, 1])
def test_it_goes_on(monkeypatch: pytest.MonkeyPatch, kind: Any, workers: int) -> None:
    """A data pipe as any other; and in a worker process that has no torchdata, as its dataset is copied into it."""
    state = saved(kind())
    without_torchdata(monkeypatch)
    with made(kind(), num_workers=workers) as loader:
        loader.load_state_dict(state)
        assert lists(loader) == [[3, 4], [5, 6]]


@pytest.mark.parametrize("kind", [Counted, Walks])
def test_a_state_of_other_workers_is_refused_with_the_pass_going_on(monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    """By what it had and what is found, with its cure; not by a KeyError or an assertion of torchdata's."""
    alone, gathered = saved(kind()), saved(Counted(), num_workers=1)
    with made(kind()) as loader:
        run = iter(loader)
        assert next(run).tolist() == [1, 2]
        with pytest.raises(StateError, match="of worker processes; found num_workers=0. Load it with as many"):
            loader.load_state_dict({**alone, "dataset": gathered["dataset"]})
        assert lists(run) == [[3, 4], [5, 6]]
    if kind is Walks:
        without_torchdata(monkeypatch)
    with made(kind(), num_workers=1) as loader:
        run = iter(loader)
        assert next(run).tolist() == [1, 2]
        with pytest.raises(StateError, match="of num_workers=0; found num_workers=1. Load it with num_workers=0"):
            loader.load_state_dict(alone)
        assert lists(run) == [[3, 4], [5, 6]]


def test_what_torchdata_gathered_is_refused_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its dataset is not asked to make sense of it."""
    state = saved(Counted(), num_workers=1)
    without_torchdata(monkeypatch)
    with made(Counted(), num_workers=1) as loader, pytest.raises(StateError, match="found no torchdata.*Install it"):
        loader.load_state_dict(state)


@pytest.mark.parametrize("what", ["iter", "load"])
def test_a_start_that_failed_is_tried_again_from_the_same_state(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Nothing comes twice, and a state that is saved in between is the one that was loaded."""
    state = saved(Walks())
    with made(Walks()) as loader:
        loader.load_state_dict(state)
        monkeypatch.setattr(Walks, "fails", what)
        with pytest.raises(OSError, match="no answer"):
            next(iter(loader))
        assert loader.state_dict()["dataset"] == state["dataset"]
        assert lists(loader) == [[3, 4], [5, 6]]


def test_a_pass_that_is_left_takes_no_batch_along() -> None:
    """The next pass over a dataset that stands where it was goes on behind what was given."""
    with made(Counted()) as loader:
        for batch in loader:
            assert batch.tolist() == [1, 2]
            break
        assert lists(loader) == [[3, 4], [5, 6]]


def test_a_state_behind_the_last_batch_has_none_left() -> None:
    """Whether the loop has come to the end or not."""
    with made(Walks()) as loader:
        run = iter(loader)
        for _ in range(3):
            next(run)
        del run
        state = loader.state_dict()
    with made(Walks()) as other:
        other.load_state_dict(state)
        assert lists(other) == []
        assert lists(other) == [[1, 2], [3, 4], [5, 6]]
