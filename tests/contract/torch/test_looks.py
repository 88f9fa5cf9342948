"""A look at the first batch leaves no trace, a pass left later is over, and a loop can tell how much is left.

Each holds for sources, which we read, and for datasets that torch's own DataLoader runs.
"""

from __future__ import annotations

import io
import itertools
import json
from typing import Any

import pytest
from kit.both_loaders import OURS_BY_TORCH, Numbers, Stream
from kit.dali_pipelines import augmented
from kit.images import QUICK, labelled
from torch.utils.data import BatchSampler, SequentialSampler, default_collate
from torchvision.transforms import v2

from dali_feed import DataLoader
from dali_feed.dali import DALIGenericIterator, LastBatchPolicy
from dali_feed.errors import ClosedError
from dali_feed.testing import ScriptedSource

pytestmark = OURS_BY_TORCH

COUNT, BATCH = 12, 2


@pytest.fixture(params=["source", "torch"])
def make(request: pytest.FixtureRequest) -> Any:
    """Makes a shuffled loader of COUNT samples whose label is their number."""

    def made(**options: Any) -> DataLoader:
        options = {"shuffle": True, "device": "cpu", **options}
        if request.param == "torch":
            return DataLoader(Numbers(COUNT), BATCH, **options)
        size = v2.Resize((8, 8))
        return DataLoader(ScriptedSource(labelled(COUNT)), BATCH, transform=size, tuning=QUICK, **options)

    return made


def labels(batch: Any) -> list[int]:
    """Of one batch."""
    found: list[int] = (batch[1] if isinstance(batch, tuple | list) else batch).tolist()
    return found


def epochs_of(make: Any, count: int) -> list[list[list[int]]]:
    """What a loader gives that nobody looked at."""
    with make() as loader:
        return [[labels(batch) for batch in loader] for _ in range(count)]


def test_a_look_before_training_costs_nothing(make: Any) -> None:
    """`next(iter(loader))` for the shapes, then whole epochs from the first on, numbered as the trainer does."""
    epochs = epochs_of(make, 2)
    with make() as loader:
        assert labels(next(iter(loader))) == epochs[0][0]
        for n in range(2):
            assert loader.epoch == n
            assert [labels(batch) for batch in loader] == epochs[n]


def test_a_look_after_a_resume_costs_nothing(make: Any) -> None:
    """The rest of the epoch is still to come; and the run, stopped and resumed again, has the epochs it had."""
    epochs = epochs_of(make, 2)
    with make() as loader:
        run = iter(loader)
        for _ in range(3):
            next(run)
        state = json.loads(json.dumps(loader.state_dict()))
    with make() as loader:
        loader.load_state_dict(state)
        assert labels(next(iter(loader))) == epochs[0][3]
        trained = [labels(batch) for epoch in range(loader.epoch, 2) for batch in loader]
        assert trained == epochs[0][3:] + epochs[1]


def test_a_look_between_epochs_and_by_a_kept_iterator(make: Any) -> None:
    """A picture of a batch after each epoch changes nothing, nor does set_epoch as a DistributedSampler wants it."""
    epochs = epochs_of(make, 3)
    with make() as loader:
        for n in range(3):
            kept = iter(loader)
            assert labels(next(kept)) == epochs[n][0]
            if n:
                loader.set_epoch(n)
            assert [labels(batch) for batch in loader] == epochs[n]
            with pytest.raises(ClosedError):
                next(kept)


def test_set_epoch_after_a_look_keeps_what_was_restored(make: Any) -> None:
    """The epoch that a state stands in goes on where it stood, and not from its beginning."""
    epochs = epochs_of(make, 1)
    with make() as loader:
        for n, _ in enumerate(loader):
            if n == 1:
                break
        state = loader.state_dict()
        loader.load_state_dict(state)
        next(iter(loader))
        loader.set_epoch(0)
        assert loader.state_dict() == state
        assert [labels(batch) for batch in loader] == epochs[0][2:]


def test_what_a_look_was_given_counts_until_the_next_pass(make: Any) -> None:
    """A run that stops after its first step goes on with the second."""
    epochs = epochs_of(make, 1)
    with make() as loader:
        for _ in loader:
            break
        state = loader.state_dict()
    assert state["consumed"] == BATCH
    with make() as loader:
        loader.load_state_dict(state)
        assert [labels(batch) for batch in loader] == epochs[0][1:]


def test_a_pass_left_after_two_batches_is_an_epoch(make: Any) -> None:
    """Training of so many steps per epoch does not get the same order again."""
    epochs = epochs_of(make, 3)
    with make() as loader:
        for n in range(3):
            for k, batch in enumerate(loader):
                assert labels(batch) == epochs[n][k]
                assert loader.epoch == n
                if k == 1:
                    break


def test_a_pass_that_failed_is_no_look(make: Any) -> None:
    """An error behind the first batch ends the pass and its epoch, as it does behind any other."""
    epochs = epochs_of(make, 2)

    calls = itertools.count(1)

    def fails(samples: list[Any]) -> Any:
        if next(calls) == 2:
            message = "the second"
            raise LookupError(message)
        return default_collate(samples)

    with make(collate_fn=fails) as loader:
        run = iter(loader)
        assert labels(next(run)) == epochs[0][0]
        with pytest.raises(LookupError, match="the second"):
            next(run)
        assert [labels(batch) for batch in loader] == epochs[1]


def test_an_epoch_of_one_batch_has_been_given(make: Any) -> None:
    """Where nothing is left of the epoch, it was no look, also where a state stood before its last batch."""
    epochs = epochs_of(make, 2)
    with make() as loader:
        run = iter(loader)
        for _ in range(len(loader) - 1):
            next(run)
        loader.load_state_dict(loader.state_dict())
        assert labels(next(iter(loader))) == epochs[0][-1]
        assert [labels(batch) for batch in loader] == epochs[1]


def test_batches_left_are_those_still_to_come(make: Any) -> None:
    """Of the pass under way; or of the next one: the rest after a load, the whole epoch after one that was left."""
    with make() as loader:
        assert loader.batches_left == len(loader) == COUNT // BATCH
        for n, _ in enumerate(loader, 1):
            assert loader.batches_left == COUNT // BATCH - n
            if n == 4:
                state = loader.state_dict()
                break
        assert loader.batches_left == COUNT // BATCH
        loader.load_state_dict(state)
        for _ in range(2):
            assert (loader.batches_left, len(loader)) == (2, COUNT // BATCH)
            assert len(iter(loader)) == 2
            next(iter(loader))
        assert len(list(loader)) == 2
        assert loader.batches_left == COUNT // BATCH


def test_a_progress_bar_of_a_resumed_epoch_ends_full(make: Any) -> None:
    """As docs/resume.md has it: tqdm begins at what has been done."""
    tqdm = pytest.importorskip("tqdm").tqdm
    with make() as loader:
        for n, _ in enumerate(loader, 1):
            if n == 4:
                break
        loader.load_state_dict(loader.state_dict())
        bar = tqdm(loader, initial=len(loader) - loader.batches_left, file=io.StringIO())
        assert (bar.n, bar.total) == (4, 6)
        for _ in bar:
            pass
        assert (bar.n, bar.total) == (6, 6)


def test_batches_left_of_an_own_batch_sampler_and_of_a_stream() -> None:
    """Of batches that the user cut they are counted; of an iterable-style dataset nobody knows them."""
    batches = [[0, 1, 2], [3], [4, 5]]
    with DataLoader(Numbers(6), batch_sampler=Cut(batches), device="cpu") as loader:
        next(iter(loader))
        assert loader.batches_left == 3
        next(run := iter(loader))
        assert loader.batches_left == len(run) == 2  # type: ignore[arg-type]
    with DataLoader(Stream(6), 2, device="cpu") as loader, pytest.raises(TypeError):
        _ = loader.batches_left


class Cut(BatchSampler):
    """Batches as they are given."""

    def __init__(self, batches: list[list[int]]) -> None:
        super().__init__(SequentialSampler(range(6)), 1, drop_last=False)
        self.batches = batches

    def __iter__(self) -> Any:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def test_a_look_by_dalis_iterator() -> None:
    """`next(iter(loop))` too, but not `next(loop); loop.reset()`, which asks for the next epoch."""

    def loop() -> Any:
        source = ScriptedSource(labelled(COUNT))
        return DALIGenericIterator(
            augmented, ["data", "label"], source, shuffle=True, last_batch_policy=LastBatchPolicy.PARTIAL
        )

    def seen(data: Any) -> list[int]:
        found: list[int] = data[0]["label"].flatten().tolist()
        return found

    with loop() as found:
        epochs = [[seen(data) for data in found] for _ in range(2)]
    with loop() as found:
        assert seen(next(iter(found))) == epochs[0][0]
        assert found.batches_left == len(found) - 1
        assert [seen(data) for data in found] == epochs[0]
    with loop() as found:
        next(found)
        found.reset()
        assert found.batches_left == len(found)
        assert [seen(data) for data in found] == epochs[1]
