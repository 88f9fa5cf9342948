"""Datasets of a user's that other loaders have too, that grow, and whose attributes are not what torch's hold."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, random_split
from torchvision.transforms import v2

from dali_feed import DataLoader, Tuning
from dali_feed.errors import ClosedError, ConfigError
from dali_feed.loader.dataset_source import Turn, parts_of

pytestmark = pytest.mark.filterwarnings("ignore::dali_feed.errors.FallbackWarning")


class Pictures(Dataset[Any]):
    """Sample k is an image full of k, and k."""

    def __init__(self, count: int = 4, **attributes: Any) -> None:
        self.count = count
        vars(self).update(attributes)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> Any:
        return np.full((8, 8, 3), at, np.uint8), at


class Slow(Pictures):
    """Looks whether another thread is inside, and gives one time to come."""

    def __init__(self, count: int, patience: float) -> None:
        super().__init__(count)
        self.patience = patience
        self.inside, self.together, self.meet = 0, False, threading.Event()
        self.lock = threading.Lock()  # guards inside

    def __getitem__(self, at: int) -> Any:
        with self.lock:
            self.inside += 1
            met = self.inside > 1
        if met:
            self.together = True
            self.meet.set()
        self.meet.wait(self.patience)
        with self.lock:
            self.inside -= 1
        return super().__getitem__(at)


def loader_of(data: Any, **options: Any) -> DataLoader:
    """One that our engine runs."""
    return DataLoader(data, 2, device="cpu", transform=v2.ToImage(), **options)


def labels(loader: DataLoader) -> list[int]:
    """Of an epoch."""
    return [int(label) for batch in loader for label in batch[1]]


def test_loaders_over_parts_of_one_dataset_take_turns() -> None:
    """It cannot be seen whether two threads may call a dataset: one that seeks in a file gives another image."""
    whole = Slow(80, 0.002)
    with (
        loader_of(parts := random_split(whole, [40, 40])[0]) as one,
        loader_of(random_split(whole, [40, 40])[1]) as two,
    ):
        assert len(parts) == 40
        for _ in zip(one, two, strict=True):
            assert not whole.together


def test_several_readers_are_the_users_word() -> None:
    """Who lets several threads call it lets loaders do so."""
    whole = Slow(80, 0.2)
    with loader_of(whole, lanes=2, tuning=Tuning(readers=4)) as loader:  # a lane has reads of its own
        assert sorted(labels(loader)) == list(range(80))
    assert whole.together


def test_whose_turn_it_is_goes_by_the_datasets_inside() -> None:
    """A ConcatDataset waits for each of its parts; other datasets for none."""
    a, b, c = Pictures(), Pictures(), Pictures()
    datasets: list[Any] = [ConcatDataset([a, b]), random_split(b, [1, 3])[0], c]
    joined, of_b, of_c = (Turn(each)._locks for each in datasets)
    assert len(joined) == 2
    assert of_b[0] in joined
    assert of_c[0] not in joined


class Interrupted:
    """A lock at which Ctrl-C comes."""

    def acquire(self, timeout: float) -> None:
        """Never."""
        del timeout
        raise KeyboardInterrupt


def test_a_turn_is_given_back_where_it_was_not_had_whole() -> None:
    """Ctrl-C comes while a thread waits for the second of two datasets: the first is free again."""
    a, b = Pictures(), Pictures()
    data: Any = ConcatDataset([a, b])
    turn = Turn(data)
    with turn.taken(), Turn(data).taken(), Turn(a).taken():
        pass
    first = turn._locks[0]
    turn._locks = [first, Interrupted()]
    with pytest.raises(KeyboardInterrupt), turn.taken():
        pass
    others: list[bool] = []
    thread = threading.Thread(target=lambda: others.append(first.acquire(blocking=False)))
    thread.start()
    thread.join()
    assert others == [True]


def test_a_turn_is_waited_for_only_as_long_as_it_is_wanted_and_is_no_childs() -> None:
    """While another thread has it: a look may end the wait; a forked process knows nothing of its parent's turns."""
    data, begun, ends = Pictures(), threading.Event(), threading.Event()

    def takes() -> None:
        with Turn(data).taken():
            begun.set()
            ends.wait()

    def closed() -> None:
        raise ClosedError("closed")

    thread = threading.Thread(target=takes)
    thread.start()
    try:
        begun.wait()
        with pytest.raises(ClosedError), Turn(data).taken(closed):
            pass
        if (child := os.fork()) == 0:
            with Turn(data).taken(lambda: os._exit(1)):
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        ends.set()
        thread.join()


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize(
    "attributes",
    [{"targets": None}, {"samples": 4}, {"indices": None}, {"indices": 5}, {"imgs": iter([])}, {"datasets": 5}],
    ids=lambda attributes: next(iter(attributes)),
)
def test_attributes_that_mean_something_else(attributes: dict[str, Any], *, ours: bool) -> None:
    """Names that torchvision uses, with values of the user's own."""
    data = Pictures(**attributes)
    loader = loader_of(data) if ours else DataLoader(data, 2, collate_fn=lambda rows: (0, [at for _, at in rows]))
    with loader:
        assert labels(loader) == labels(loader) == [0, 1, 2, 3]


def test_a_dataset_that_is_inside_itself() -> None:
    """It has no end that way, and is taken once."""
    data: Any = Pictures()
    data.dataset = data
    assert list(parts_of(data)) == [data]
    with loader_of(data) as loader:
        assert labels(loader) == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", [np.zeros, torch.zeros], ids=["numpy", "torch"])
def test_targets_with_several_values_each(kind: Any) -> None:
    """The same values put in their place are no change, others are one."""
    data: Any = Pictures(targets=kind((4, 3)))
    with loader_of(data) as loader:
        assert labels(loader) == [0, 1, 2, 3]
        data.targets = kind((4, 3))
        assert labels(loader) == [0, 1, 2, 3]
        data.targets = data.targets + 1
        with pytest.raises(ConfigError, match="the targets of Pictures was changed after the loader was made"):
            iter(loader)


@pytest.mark.parametrize("count", [3, 6])
def test_a_dataset_that_grew_or_shrank_is_refused(count: int) -> None:
    """Not read as it was."""
    data = Pictures()
    with loader_of(data) as loader:
        assert labels(loader) == [0, 1, 2, 3]
        data.count = count
        with pytest.raises(ConfigError, match="the number of samples of Pictures was changed"):
            iter(loader)


def test_a_list_that_grew_is_refused(tmp_path: Any) -> None:
    """Of paths and labels."""
    from PIL import Image

    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    pairs = [(str(tmp_path / "a.png"), label) for label in range(3)]
    with DataLoader(pairs, 2, device="cpu") as loader:
        assert labels(loader) == [0, 1, 2]
        pairs.append((str(tmp_path / "a.png"), 3))
        with pytest.raises(ConfigError, match="the number of samples of list was changed"):
            iter(loader)
