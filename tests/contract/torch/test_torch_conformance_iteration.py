"""Passes over a loader: order, shuffling, errors, several loaders and epochs, and how many batches there are."""

from __future__ import annotations

import math
import pickle
import warnings
from typing import Any

import pytest
import torch
from kit.both_loaders import (
    COUNT,
    CPU_WARNING,
    OURS_BY_TORCH,
    Numbers,
    Stream,
    both_loaders,
    flat,
    folder_of,
    labels_of,
    let_go,
)
from kit.both_loaders import tensors_of as tensors
from torch.utils.data import ChainDataset, ConcatDataset, StackDataset, TensorDataset
from torch.utils.data.datapipes.iter import IterableWrapper

pytestmark = [OURS_BY_TORCH, CPU_WARNING]

with_workers = pytest.mark.parametrize("workers", [0, 2])


@pytest.fixture(scope="module", params=["files", "tensors"])
def data(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """COUNT samples whose label is their number."""
    return folder_of(tmp_path_factory.mktemp("pictures") / "root") if request.param == "files" else tensors()


@both_loaders
@with_workers
@pytest.mark.parametrize("batch_size", [1, 5])
def test_in_order(data: Any, loader: Any, workers: int, batch_size: int) -> None:
    """Image and label of the samples in the dataset's order, epoch after epoch."""
    made = loader(data, batch_size, num_workers=workers)
    expected = torch.split(torch.arange(COUNT), batch_size)
    for _ in range(2):
        for (images, labels), numbers in zip(made, expected, strict=True):
            assert torch.equal(labels, numbers)
            assert torch.allclose(images, tensors().tensors[0][numbers])


@both_loaders
@with_workers
def test_shuffled(data: Any, loader: Any, workers: int) -> None:
    """Every sample once, with its own label, and another order in the next epoch."""
    made = loader(data, 5, shuffle=True, num_workers=workers, generator=torch.Generator().manual_seed(5))
    epochs = []
    for _ in range(2):
        images, labels = (torch.cat(parts) for parts in zip(*made, strict=True))
        assert sorted(labels.tolist()) == list(range(COUNT))
        assert torch.allclose(images, tensors().tensors[0][labels])
        epochs.append(labels.tolist())
    assert list(range(COUNT)) != epochs[0] != epochs[1]


@both_loaders
@with_workers
def test_equal_generators_shuffle_equally(data: Any, loader: Any, workers: int) -> None:
    """Epoch by epoch, whatever torch's own seed is by then."""

    def orders(seed: int) -> list[list[list[int]]]:
        made = loader(data, 5, shuffle=True, num_workers=workers, generator=torch.Generator().manual_seed(seed))
        return [labels_of(made) for _ in range(2)]

    first = orders(1)
    torch.manual_seed(99)
    assert orders(1) == first != orders(2)


@both_loaders
def test_samples_one_by_one(data: Any, loader: Any) -> None:
    """batch_size=None: an image and an int, in order or shuffled."""
    items = list(loader(data, batch_size=None))
    assert [int(label) for _, label in items] == list(range(COUNT))
    assert items[3][0].shape == (3, 16, 16)
    made = loader(data, batch_size=None, shuffle=True, generator=torch.Generator().manual_seed(1))
    epochs = [[int(label) for _, label in made] for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(COUNT))
    assert epochs[0] != epochs[1]


@both_loaders
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("make", [Numbers, Stream], ids=["map", "stream"])
def test_lists_and_tuples_of_a_loader(loader: Any, make: Any, workers: int) -> None:
    """It is an iterable as any: samples as they are, or batches."""
    assert list(loader(make(6), batch_size=None, num_workers=workers)) == [0, 1, 2, 3, 4, 5]
    pairs = tuple(loader(make(6), 2, num_workers=workers))
    assert [pair.tolist() for pair in pairs] == [[0, 1], [2, 3], [4, 5]]


@both_loaders
def test_a_stream_in_batches(loader: Any) -> None:
    """The last is smaller, or left out; every pass begins anew."""
    for drop_last, expected in ((False, [[0, 1, 2], [3, 4, 5], [6]]), (True, [[0, 1, 2], [3, 4, 5]])):
        made = loader(Stream(7), 3, drop_last=drop_last)
        assert [[batch.tolist() for batch in made] for _ in range(2)] == [expected] * 2


@both_loaders
def test_a_pass_that_is_over_stays_over(data: Any, loader: Any) -> None:
    """StopIteration again and again."""
    run = iter(loader(data, 5))
    assert len(list(run)) == 3
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(run)
    assert iter(run) is run


@both_loaders
def test_a_loop_that_was_left(data: Any, loader: Any) -> None:
    """The next one begins at the first batch again."""
    made = loader(data, 5)
    for _ in range(2):
        for _, labels in made:
            assert labels.tolist() == [0, 1, 2, 3, 4]
            break
    assert flat(labels_of(made)) == list(range(COUNT))


@both_loaders
@with_workers
def test_two_loaders_over_one_dataset(data: Any, loader: Any, workers: int) -> None:
    """Their passes do not disturb each other."""
    one, two = iter(loader(data, 5, num_workers=workers)), iter(loader(data, 4, num_workers=workers))
    taken = [next(run)[1].tolist() for run in (one, two, two, one)]
    assert taken == [[0, 1, 2, 3, 4], [0, 1, 2, 3], [4, 5, 6, 7], [5, 6, 7, 8, 9]]
    assert labels_of(one) == [[10, 11]]
    assert labels_of(two) == [[8, 9, 10, 11]]


class Breaks(Numbers):
    """Has no sample 3."""

    def __getitem__(self, index: int) -> int:
        if index == 3:
            message = "there is no three"
            raise LookupError(message)
        return super().__getitem__(index)


class BreaksAtOnce(Stream):
    """Cannot begin."""

    def __iter__(self) -> Any:
        message = "there is no beginning"
        raise LookupError(message)


@both_loaders
@with_workers
def test_an_error_of_the_dataset(loader: Any, workers: int) -> None:
    """It comes in the batch that it is in, of its own class and with its own words; a worker's says that it is one."""
    run = iter(loader(Breaks(), 2, num_workers=workers))
    assert next(run).tolist() == [0, 1]
    with pytest.raises(LookupError, match="there is no three") as caught:
        next(run)
    assert ("in DataLoader worker process" in str(caught.value)) is bool(workers)
    let_go(run)


@both_loaders
@with_workers
def test_a_stream_that_cannot_begin(loader: Any, workers: int) -> None:
    """Its error comes at the latest with the first batch."""
    run = None
    with pytest.raises(LookupError, match="there is no beginning"):  # noqa: PT012  either of the two
        run = iter(loader(BreaksAtOnce(), num_workers=workers))
        next(run)
    let_go(run)


@both_loaders
def test_an_error_that_looks_like_a_timeout(loader: Any) -> None:
    """A dataset's own TimeoutError is the dataset's, and says what the dataset says."""

    class Remote(Numbers):
        def __getitem__(self, index: int) -> int:
            message = "the store did not answer"
            raise TimeoutError(message)

    with pytest.raises(TimeoutError, match="^the store did not answer$"):
        next(iter(loader(Remote())))


@both_loaders
def test_a_running_pass_cannot_be_pickled(data: Any, loader: Any) -> None:
    """It holds processes or threads."""
    with pytest.raises((NotImplementedError, TypeError), match="cannot be pickled"):
        pickle.dumps(iter(loader(data, 5)))


@both_loaders
def test_a_pipe_is_told_whether_to_shuffle(loader: Any) -> None:
    """True and False reach its shuffler; what is not said leaves it as it is."""
    for shuffle, mixes in ((None, True), (True, True), (False, False)):
        pipe = IterableWrapper(range(100)).shuffle()
        assert (list(loader(pipe, None, shuffle=shuffle)) != list(range(100))) is mixes


@both_loaders
def test_datasets_that_are_no_datasets_of_torch(loader: Any) -> None:
    """Whatever has a length and items: a tensor, an array, a range, a dict, a list."""
    for data in (torch.arange(3), torch.arange(3).numpy(), range(3), {0: 0, 1: 1, 2: 2}, [0, 1, 2]):
        assert [batch.tolist() for batch in loader(data, 2)] == [[0, 1], [2]]


@both_loaders
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [1, 5, 6, COUNT, 100])
def test_batches_in_an_epoch(data: Any, loader: Any, batch_size: int, *, drop_last: bool, shuffle: bool) -> None:
    """The last one is left out, or smaller; with more than there are in a batch there is one, or none."""
    made = loader(data, batch_size, shuffle=shuffle, drop_last=drop_last)
    expected = COUNT // batch_size if drop_last else math.ceil(COUNT / batch_size)
    sizes = [len(labels) for labels in labels_of(made)]
    assert len(made) == len(sizes) == expected
    assert sum(sizes) == (COUNT - COUNT % batch_size if drop_last else COUNT)
    assert all(size == batch_size for size in sizes[:-1])


@both_loaders
def test_without_batches_there_are_samples(data: Any, loader: Any) -> None:
    """batch_size=None: as many items as samples, or as the sampler names."""
    assert len(loader(data, batch_size=None)) == COUNT
    assert len(loader(data, batch_size=None, sampler=[3, 3, 1])) == 3


@both_loaders
def test_a_dataset_that_has_grown(loader: Any) -> None:
    """The length is what the dataset has when it is asked for, and so is the epoch."""
    data = [torch.tensor(n) for n in range(4)]
    plain, shuffled = loader(data), loader(data, shuffle=True)
    assert len(plain) == 4
    data.append(torch.tensor(4))
    assert len(plain) == len(shuffled) == 5
    assert [int(batch) for batch in plain] == sorted(int(batch) for batch in shuffled) == [0, 1, 2, 3, 4]
    data.append(torch.tensor(5))
    assert len(list(plain)) == len(plain) == 6


@both_loaders
@pytest.mark.parametrize(
    ("batch_size", "whole", "cut"), [(1, 10, 10), (2, 5, 5), (3, 4, 3), (11, 1, 0), (None, 10, 10)]
)
def test_a_stream_with_a_length(loader: Any, batch_size: int | None, whole: int, cut: int) -> None:
    """Rounded up, or down where the last batch is left out."""
    assert len(loader(Stream(10, claims=10), batch_size)) == whole
    if batch_size is not None:
        assert len(loader(Stream(10, claims=10), batch_size, drop_last=True)) == cut


@both_loaders
def test_a_stream_without_a_length(loader: Any) -> None:
    """The loader has none either, and nor has its iterator."""
    made = loader(Stream())
    with pytest.raises(TypeError, match="has no len"):
        len(made)
    with pytest.raises(TypeError):
        len(iter(made))


@both_loaders
def test_a_stream_that_gives_more_than_it_said(loader: Any) -> None:
    """A warning for each batch too many, if the length has been asked for; none if not."""
    made = loader(Stream(5, claims=3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(made)) == 5
    assert len(made) == 3
    with pytest.warns(
        UserWarning, match=r"was reported to be 3\(when accessing len\(dataloader\)\), but [45] samples"
    ) as told:
        assert len(list(made)) == 5
    assert len(told) == 2


@both_loaders
def test_a_dataset_without_a_length(loader: Any) -> None:
    """No order can be made of it, which is an error before the first batch; with a sampler there is one."""

    class Endless:
        def __getitem__(self, index: int) -> int:
            return index

    with pytest.raises((TypeError, ValueError), match="length|has no len"):
        len(loader(Endless()))
    assert [batch.tolist() for batch in loader(Endless(), 2, sampler=[7, 70, 700])] == [[7, 70], [700]]


@both_loaders
def test_datasets_made_of_datasets(loader: Any) -> None:
    """Joined, stacked and chained ones have the length and the samples of their parts."""
    joined = loader(ConcatDataset([Numbers(3), Numbers(2)]), 2)
    assert len(joined) == 3
    assert [batch.tolist() for batch in joined] == [[0, 1], [2, 0], [1]]
    stacked = loader(StackDataset(a=Numbers(3), b=TensorDataset(torch.arange(3) * 2)), 2)
    assert len(stacked) == 2
    first = next(iter(stacked))
    assert first["a"].tolist() == [0, 1]
    assert first["b"][0].tolist() == [0, 2]
    chained = loader(ChainDataset([Stream(3), Stream(2)]), 2)
    assert [batch.tolist() for batch in chained] == [[0, 1], [2, 0], [1]]
    with pytest.raises(AssertionError, match="ChainDataset only supports IterableDataset"):
        list(loader(ChainDataset([Stream(3), Numbers(2)])))


@both_loaders
def test_no_samples_no_batches(loader: Any) -> None:
    """An empty dataset is an empty epoch."""
    for batch_size in (4, None):
        made = loader(Numbers(0), batch_size)
        assert len(made) == 0
        assert list(made) == []
