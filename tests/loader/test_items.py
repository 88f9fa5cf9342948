"""Tensors moved to a device, whatever they lie in; and a loop of looks, which sees new batches after some."""

from __future__ import annotations

import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from kit.both_loaders import OURS_BY_TORCH, Numbers
from kit.by_hand import tar
from kit.images import QUICK, labelled

from dali_feed import DataLoader, ShardSet, Tuning
from dali_feed.columns import Bytes
from dali_feed.feed.passes import LOOKS
from dali_feed.loader import arguments, items
from dali_feed.testing import ScriptedSource


class Pair(NamedTuple):
    """What a dataset may give."""

    value: torch.Tensor
    number: int


def test_batches_of_any_class_move() -> None:
    """Mappings, lists, named tuples and packed sequences keep their class; on the CPU nothing is touched."""
    packed = torch.nn.utils.rnn.pack_sequence([torch.zeros(3), torch.zeros(2)])
    pair = Pair(torch.zeros(2), 1)
    item = {"a": [torch.zeros(2), "text"], "b": OrderedDict(x=torch.zeros(1)), "c": packed, "d": pair}
    assert items.moved(item, torch.device("cpu")) is item
    there = items.moved({key: item[key] for key in ("a", "b", "d")}, torch.device("meta"))
    assert there["a"][0].is_meta
    assert there["b"]["x"].is_meta
    assert there["d"].value.is_meta
    assert (type(there["b"]), type(there["d"])) == (OrderedDict, Pair)


def test_a_batch_of_bytes_costs_the_loop_no_call_for_each() -> None:
    """Nor one of texts: as many calls of Python functions for a thousand of them as for ten."""

    def calls(values: list[Any]) -> int:
        seen = list[Any]()
        sys.setprofile(lambda frame, event, _: seen.append(frame.f_code) if event == "call" else None)
        try:
            given = items.as_tensors("raw", values, lambda _: torch.zeros(0), lambda tensor: tensor)
        finally:
            sys.setprofile(None)
        assert given == values
        return len(seen)

    for value in (memoryview(b"bytes"), "text"):
        assert calls([value] * 1000) == calls([value] * 10)


def test_arrays_among_other_values_of_a_list_are_tensors() -> None:
    """One of them, or of a class that inherits from theirs."""
    values = ["text", np.arange(3), None, np.arange(2).view(np.recarray)]
    given = items.as_tensors("mixed", values, lambda _: torch.zeros(0), lambda tensor: tensor)
    assert [type(value) for value in given] == [str, torch.Tensor, type(None), torch.Tensor]


@pytest.mark.parametrize("size", [5, 30_000])
def test_bytes_are_given_as_bytes(tmp_path: Path, size: int) -> None:
    """By decode=bytes: those that a function would be called for, of records that windows gather and of large ones."""
    texts = [bytes([n]) * (size + n) for n in range(20)]
    shard = tmp_path / "a.tar"
    tar(shard, [(f"{n:03d}", {"txt": text}) for n, text in enumerate(texts)])
    columns = {"given": Bytes("txt", decode=bytes)}, {"given": Bytes("txt", decode=lambda view: b"".join([view]))}

    def batches(its: dict[str, Bytes]) -> list[list[bytes]]:
        with DataLoader(
            ShardSet(str(shard)), 8, columns=its, shuffle=True, seed=1, device="cpu", tuning=QUICK
        ) as loader:
            return [batch["given"] for batch in loader]

    given, called = map(batches, columns)
    assert given == called
    assert {type(value) for batch in given for value in batch} == {bytes}
    assert {value for batch in given for value in batch} == set(texts)


@OURS_BY_TORCH
@pytest.mark.parametrize("kind", ["source", "torch"])
def test_a_loop_of_looks_sees_new_batches(kind: str) -> None:
    """Whoever trains with next(iter(loader)) is not given one batch for ever."""

    def make() -> DataLoader:
        dataset: Any = ScriptedSource(labelled(12)) if kind == "source" else Numbers(12)
        return DataLoader(dataset, 2, shuffle=True, device="cpu", tuning=QUICK if kind == "source" else Tuning())

    def labels(batch: Any) -> list[int]:
        found: list[int] = (batch[1] if isinstance(batch, tuple | list) else batch).tolist()
        return found

    with make() as loader:
        epochs = [[labels(batch) for batch in loader] for _ in range(4)]
    with make() as loader:
        seen = [labels(next(iter(loader))) for _ in range(LOOKS + 4)]
    assert seen == [epochs[0][0]] * LOOKS + [epoch[0] for epoch in epochs]


def test_ranks_by_the_environment_are_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A process that some launcher has numbered reads its part alone, and may not know of it."""
    monkeypatch.setattr(arguments, "_warned", set())
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert arguments.ranks(None, None) == arguments.ranks(None, None) == (1, 2)
    (said,) = (each.getMessage() for each in caplog.records if each.levelname == "WARNING")
    assert said.startswith("rank and world_size: 1 of 2, by RANK and WORLD_SIZE, ")
    assert "rank=0, world_size=1" in said
    assert "rank=1, world_size=2" in said
