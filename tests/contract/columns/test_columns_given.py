"""What a training loop is given of columns: a collate_fn's samples, infos, views, and what a user's own kinds make."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from kit.images import QUICK
from kit.member_shards import shards
from torchvision.transforms import v2

from dali_feed import DataLoader, Info
from dali_feed.columns import Array, Bytes, Column, Image, JsonValue, Number, Text, Tokens

SMALL = v2.Compose([v2.Resize((8, 8)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])


EVERY: dict[str, Column] = {
    "image": Image("jpg", SMALL),
    "number": Number("cls"),
    "x": Array("f32", "float32", (2, 3)),
    "tokens": Tokens("txt", lambda text: [1] * len(text), 6),
    "text": Text("txt"),
    "json": JsonValue("json"),
    "raw": Bytes("cls"),
    "made": Bytes("f32", decode=lambda data: np.frombuffer(data, "<f4")[::-1]),
}
SAMPLE = {
    "image": (torch.float32, (3, 8, 8)),
    "number": int,
    "x": (torch.float32, (2, 3)),
    "text": str,
    "json": dict,
    "raw": bytes,
    "made": (torch.float32, (6,)),
}


@pytest.mark.parametrize("as_tuple", [False, True])
def test_collate_fn_is_given_a_sample_as_a_batch_is(tmp_path: Path, *, as_tuple: bool) -> None:
    """A dict or a tuple of columns: tensors for images and arrays, Python's numbers, text and bytes as they are."""
    columns: Any = tuple(EVERY.values()) if as_tuple else EVERY
    given: list[list[Any]] = []
    with DataLoader(shards(tmp_path), 6, columns=columns, tuning=QUICK, collate_fn=given.append, info=True) as loader:
        for nothing, info in loader:
            assert nothing is None
            assert isinstance(info, Info)
    second = given[0][1]
    assert type(second) is (tuple if as_tuple else dict)
    sample: Any = dict(zip(EVERY, second, strict=True)) if as_tuple else second
    for name, wanted in SAMPLE.items():
        value = sample[name]
        assert (value.dtype, tuple(value.shape)) == wanted if isinstance(wanted, tuple) else type(value) is wanted
    assert sample["tokens"].ids.tolist() == [1] * 6
    assert sample["number"] == 2
    assert sample["made"].tolist() == [7.0, 6.0, 5.0, 4.0, 3.0, 2.0]


def test_info_comes_last(tmp_path: Path) -> None:
    """Behind the dict of columns, and as one more item of a tuple of them."""
    columns = {"text": Text("txt"), "n": Number("cls")}
    source = shards(tmp_path)
    with DataLoader(source, 6, columns=columns, tuning=QUICK, info=True) as loader:
        batch, info = next(iter(loader))
        assert list(batch) == ["text", "n"]
        assert info.ids.shape == (6,)
    with DataLoader(source, 6, columns=list(columns.values()), tuning=QUICK, info=True) as loader:
        texts, numbers, same = next(iter(loader))
        assert (len(texts), numbers.shape) == (6, (6,))
        assert torch.equal(same.ids, info.ids)
    with DataLoader(source, 6, columns=[Text("txt")], tuning=QUICK) as loader:
        (alone,) = next(iter(loader))
        assert alone == texts


def test_several_views_of_an_image_column_are_a_list(tmp_path: Path) -> None:
    """One tensor per view, those that a loader without columns gives; for a collate_fn a list per sample."""
    two = [v2.Compose([v2.RandomResizedCrop(8), SMALL]), v2.Compose([v2.RandomHorizontalFlip(), v2.Resize((4, 4))])]
    source, columns = shards(tmp_path), {"n": Number("cls"), "image": Image("jpg", two)}
    with DataLoader(source, 6, transform=two, tuning=QUICK) as loader:
        wanted, _ = next(iter(loader))
    with DataLoader(source, 6, columns=columns, tuning=QUICK) as loader:
        found = next(iter(loader))["image"]
    assert [each.shape for each in found] == [(6, 3, 8, 8), (6, 3, 4, 4)]
    assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))
    with DataLoader(source, 6, columns=columns, tuning=QUICK, collate_fn=list) as loader:
        sample = next(iter(loader))[2]
    assert torch.equal(sample["image"][1], wanted[1][2])


class Sized(NamedTuple):
    """Texts, and how long they are."""

    texts: Any
    lengths: Any


@dataclass(frozen=True)
class SizedText(Column):
    """A kind of a user's own, of two parts; from the first record it learns how many letters to keep."""

    member: str
    letters: int = 0

    @property
    def open(self) -> bool:
        """Until it has learnt it."""
        return not self.letters

    def settled(self, first: Any) -> SizedText:
        """As many as the first has."""
        return SizedText(self.member, len(bytes(first).decode()))

    def read(self, values: list[Any], faults: dict[int, str]) -> list[str]:
        """The texts."""
        return Text(self.member).read(values, faults)

    def batch(self, values: list[str]) -> Sized:
        """A list, and an array that torch would warn of."""
        lengths = np.frombuffer(np.array([len(text) for text in values]).tobytes(), np.int64)
        return Sized([text[: self.letters] for text in values], lengths)


def test_a_kind_of_a_users_own_may_give_a_named_tuple(tmp_path: Path) -> None:
    """Its arrays come as tensors and its lists as they are, whole and sample by sample; `open` has it settled."""
    columns = {"text": SizedText("txt"), "n": Number("cls")}
    source = shards(tmp_path)
    with DataLoader(source, 6, columns=columns, tuning=QUICK) as loader:
        batches = list(loader)
    assert [text for batch in batches for text in batch["text"].texts][5:7] == ["sample 10 ", "sample 12 "]
    assert all(type(batch["text"]) is Sized and batch["text"].lengths.dtype == torch.int64 for batch in batches)
    with DataLoader(source, 6, columns=columns, tuning=QUICK, collate_fn=list) as loader:
        first = next(iter(loader))[0]
    assert first["text"].texts == "sample 0 é"
    assert first["text"].lengths.dtype == torch.int64
    assert first["text"].lengths.shape == ()
