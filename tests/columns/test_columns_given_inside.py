"""Insides that contract/columns/test_columns_given.py needs not: they go with what they test."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from kit.images import QUICK
from kit.member_shards import shards

from dali_feed import DataLoader
from dali_feed.columns import Kind, Number, Text
from dali_feed.columns.column import Faults


class Sized(NamedTuple):
    """Texts, and how long they are."""

    texts: Any
    lengths: Any


@dataclass(frozen=True)
class SizedText(Kind):
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

    def read(self, values: list[Any], faults: Faults) -> list[str]:
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
