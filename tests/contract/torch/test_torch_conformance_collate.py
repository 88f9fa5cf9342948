"""Collation: what becomes of samples of every kind, with torch's own collate functions and with a user's."""

from __future__ import annotations

import re
from collections import OrderedDict, UserDict, UserList
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from kit.both_loaders import COUNT, OURS_BY_TORCH, Stream, both_loaders, folder_of, tensors_of
from kit.inside import Feed, running
from torch.utils.data import Dataset, default_collate, default_convert
from torchvision.datasets import ImageFolder

from dali_feed import DataLoader

pytestmark = OURS_BY_TORCH


class Samples(Dataset[Any]):
    """These."""

    def __init__(self, samples: Sequence[Any] | np.ndarray[Any, Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


class Point(NamedTuple):
    """A named tuple."""

    x: Any
    y: Any


class OwnList(UserList[Any]):
    """A list of a class of its own."""


class OwnDict(UserDict[str, Any]):
    """A mapping of a class of its own."""


@dataclass
class Unknown:
    """Nothing that collation knows."""

    x: int


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    """Pictures in files."""
    return folder_of(tmp_path_factory.mktemp("pictures") / "root")


def alike(one: Any, other: Any) -> bool:
    """Equal in value, type and dtype, however nested."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict | UserDict):
        return list(one) == list(other) and all(alike(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple | UserList):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)


KINDS: dict[str, tuple[list[Any], Any]] = {
    "ints": ([1, 2], torch.tensor([1, 2])),
    "floats": ([0.5, -1.5], torch.tensor([0.5, -1.5], dtype=torch.float64)),
    "bools": ([True, False], torch.tensor([True, False])),
    "texts": (["a", "b"], ["a", "b"]),
    "bytes": ([b"a", b"b"], [b"a", b"b"]),
    "tensors": ([torch.ones(2), torch.zeros(2)], torch.tensor([[1.0, 1.0], [0.0, 0.0]])),
    "arrays": ([np.ones(2, np.int16), np.zeros(2, np.int16)], torch.tensor([[1, 1], [0, 0]], dtype=torch.int16)),
    "tuples": ([(1, "a"), (2, "b")], [torch.tensor([1, 2]), ("a", "b")]),
    "lists": ([[1, 2], [3, 4]], [torch.tensor([1, 3]), torch.tensor([2, 4])]),
    "ranges": ([range(2), range(2)], [torch.tensor([0, 0]), torch.tensor([1, 1])]),
    "dicts": ([{"a": 1, "b": "x"}, {"a": 2, "b": "y"}], {"a": torch.tensor([1, 2]), "b": ["x", "y"]}),
    "ordered dicts": ([OrderedDict(a=1), OrderedDict(a=2)], OrderedDict(a=torch.tensor([1, 2]))),
    "named tuples": ([Point(1, "a"), Point(2, "b")], Point(torch.tensor([1, 2]), ("a", "b"))),
    "own lists": ([OwnList([1, 2]), OwnList([3, 4])], OwnList([torch.tensor([1, 3]), torch.tensor([2, 4])])),
    "own mappings": ([OwnDict(a=1), OwnDict(a=2)], OwnDict(a=torch.tensor([1, 2]))),
    "nested": (
        [{"p": Point([1.0], {"q": n}), "n": f"n{n}"} for n in range(2)],
        {"p": Point([torch.tensor([1.0, 1.0], dtype=torch.float64)], {"q": torch.tensor([0, 1])}), "n": ["n0", "n1"]},
    ),
}
NUMPY = {
    np.float64: torch.float64,
    np.float32: torch.float32,
    np.float16: torch.float16,
    np.int64: torch.int64,
    np.int32: torch.int32,
    np.int16: torch.int16,
    np.int8: torch.int8,
    np.uint8: torch.uint8,
    np.bool_: torch.bool,
}


@both_loaders
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_every_kind(loader: Any, kind: str) -> None:
    """Numbers and arrays become tensors, texts stay, and what holds them keeps its class where torch keeps it."""
    samples, expected = KINDS[kind]
    for collate_fn in (None, default_collate):
        (batch,) = loader(Samples(samples), 2, collate_fn=collate_fn)
        assert alike(batch, expected), batch


@both_loaders
@pytest.mark.parametrize("dtype", NUMPY)
def test_numpys_scalars(loader: Any, dtype: Any) -> None:
    """A tensor of the same dtype."""
    (batch,) = loader(Samples([dtype(1), dtype(0)]), 2)
    assert batch.dtype == NUMPY[dtype]
    assert batch.tolist() == [1, 0]


@both_loaders
def test_rows_of_a_memory_map(loader: Any, tmp_path: Any) -> None:
    """They are arrays as any."""
    rows = np.memmap(tmp_path / "rows", np.int64, "w+", shape=(4, 2))
    rows[:] = np.arange(8).reshape(4, 2)
    (batch,) = loader(Samples(rows), 4)
    assert batch.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


@both_loaders
@pytest.mark.parametrize(
    ("samples", "error", "told"),
    [
        ([Unknown(1), Unknown(2)], TypeError, "must contain tensors, numpy arrays, numbers, dicts or lists"),
        ([None, None], TypeError, "must contain tensors, numpy arrays, numbers, dicts or lists"),
        ([np.array(["a"]), np.array(["b"])], TypeError, "must contain tensors, numpy arrays, numbers, dicts or lists"),
        ([np.array([object()]), np.array([object()])], TypeError, "must contain tensors, numpy arrays"),
        ([[1], [1, 2]], RuntimeError, "each element in list of batch should be of equal size"),
        ([[1, 2], [1]], RuntimeError, "each element in list of batch should be of equal size"),
        ([torch.zeros(2), torch.zeros(3)], RuntimeError, "stack expects each tensor to be equal size"),
        ([{"a": 1}, {"b": 2}], KeyError, "a"),
    ],
    ids=lambda value: re.sub(r" at 0x\w+", "", str(value)),
)
def test_samples_that_make_no_batch(loader: Any, samples: list[Any], error: type[Exception], told: str) -> None:
    """The error is torch's."""
    with pytest.raises(error, match=told):
        next(iter(loader(Samples(samples), 2)))


@both_loaders
def test_without_batches_samples_are_converted(loader: Any) -> None:
    """batch_size=None: arrays become tensors, whatever they lie in; numbers, texts and classes stay what they are."""
    sample = {"a": np.ones(2), "n": 3, "t": "text", "p": Point(np.float32(2), [np.zeros(1)]), "own": OwnList([1])}
    converted = default_convert(sample)  # type: ignore[no-untyped-call]
    for data in (Samples([sample]), Samples([sample, sample])):
        for item in loader(data, batch_size=None):
            assert alike(item, converted)
            assert type(item["n"]) is int
            assert type(item["p"]) is Point
    assert [type(item) for item in loader(Stream(2), batch_size=None)] == [int, int]
    assert list(loader(Samples([1, 2]), batch_size=None, collate_fn=lambda sample: sample * 10)) == [10, 20]


@both_loaders
@pytest.mark.parametrize("native", [True, False], ids=["files", "torch"])
def test_a_collate_fn_gets_a_list_of_samples(folder: ImageFolder, loader: Any, *, native: bool) -> None:
    """Each an (image, label) with the label an int or what the dataset gives; what it returns is the batch."""
    seen: list[Any] = []

    def collate(samples: list[Any]) -> Any:
        seen.append(samples)
        return {"images": torch.stack([image for image, _ in samples]), "labels": [int(label) for _, label in samples]}

    made = loader(folder if native else tensors_of(), 5, collate_fn=collate)
    batches = list(made)
    assert [batch["labels"] for batch in batches] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]
    assert [len(batch["images"]) for batch in batches] == [5, 5, 2]
    assert all(type(samples) is list and type(samples[0]) is tuple for samples in seen)
    assert all(image.dtype == torch.float32 and image.shape == (3, 16, 16) for samples in seen for image, _ in samples)
    assert isinstance(made, DataLoader) is False or isinstance(running(made), Feed) is native


@both_loaders
@pytest.mark.parametrize("native", [True, False], ids=["files", "torch"])
def test_an_error_of_a_collate_fn_comes_through(folder: ImageFolder, loader: Any, *, native: bool) -> None:
    """As it is, without worker processes."""

    def collate(samples: list[Any]) -> Any:
        message = f"{len(samples)} are too many"
        raise LookupError(message)

    with pytest.raises(LookupError, match="5 are too many"):
        next(iter(loader(folder if native else tensors_of(), 5, collate_fn=collate)))


@both_loaders
@pytest.mark.parametrize("native", [True, False], ids=["files", "torch"])
def test_what_a_batch_is_made_of(folder: ImageFolder, loader: Any, *, native: bool) -> None:
    """Images first, then labels as int64; unpacking is the same for both loaders, and so are the values."""
    for n, (images, labels) in enumerate(loader(folder if native else tensors_of(), COUNT)):
        assert n == 0
        assert images.dtype == torch.float32
        assert labels.dtype == torch.int64
        assert torch.allclose(images, tensors_of().tensors[0])
        assert labels.tolist() == list(range(COUNT))
        assert images.is_contiguous()


@both_loaders
def test_classes_with_a_way_of_their_own_stay(loader: Any) -> None:
    """What a collate_fn makes is handed over as it is: a packed sequence, an object, None."""

    def packed(samples: list[torch.Tensor]) -> Any:
        return torch.nn.utils.rnn.pack_sequence(samples, enforce_sorted=False)

    (batch,) = loader(Samples([torch.ones(3), torch.ones(1)]), 2, collate_fn=packed)
    assert isinstance(batch, torch.nn.utils.rnn.PackedSequence)
    (batch,) = loader(Samples([1, 2]), 2, collate_fn=lambda _: Unknown(3))
    assert batch == Unknown(3)
    assert list(loader(Samples([1, 2]), 2, collate_fn=lambda _: None)) == [None]
