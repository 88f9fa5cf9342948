"""How many batches there are: what len() says, what comes, and what has no length."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from kit.both_loaders import COUNT, OURS_BY_TORCH, Numbers, Stream, both_loaders, folder_of, labels_of, tensors_of
from torch.utils.data import ChainDataset, ConcatDataset, StackDataset, TensorDataset

pytestmark = OURS_BY_TORCH


@pytest.fixture(scope="module", params=["files", "tensors"])
def data(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """COUNT samples whose label is their number."""
    return folder_of(tmp_path_factory.mktemp("lengths") / "root") if request.param == "files" else tensors_of()


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
