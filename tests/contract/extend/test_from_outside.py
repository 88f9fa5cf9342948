"""A source, a column and a transform written outside the package, by `dali_feed.extend` alone, train a model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from kit.images import QUICK, jpeg

from dali_feed import DataLoader
from dali_feed.columns import Image
from dali_feed.extend import (
    Block,
    Column,
    Draws,
    Extents,
    Fault,
    Lease,
    Member,
    Op,
    Pieces,
    Reader,
    Snapshot,
    Source,
)
from dali_feed.testing import assert_resumes_anywhere

WORDS = ["one", "two words", "now three words", ""]


class Shelf(Source):
    """Pictures with a text each, in memory."""

    def __init__(self, count: int) -> None:
        self.records = [{"picture": jpeg(n), "text": WORDS[n % 3].encode()} for n in range(count)]

    def members(self) -> tuple[Member, ...]:
        """A picture and a text."""
        return Member("picture", 1.0, 600), Member("text", 1.0, 8)

    def snapshot(self, pin: Any = None) -> Snapshot:
        """All of them."""
        stops = np.array([len(self.records)])
        digest = hashlib.sha256(b"".join(record["picture"] for record in self.records))
        return Snapshot("shelf", ("shelf",), 0 * stops, stops, 4, 600, True, False, digest.hexdigest())

    def where(self, partition: int, position: int) -> str:
        """`shelf, place 3`."""
        return f"shelf, place {position}"

    def reader(self, members: Sequence[str], stop: Any = None) -> Reader:
        """Of these members."""
        return ShelfReader(self, members)


class ShelfReader(Reader):
    """Copies what it was asked for into the lease."""

    def __init__(self, shelf: Shelf, members: Sequence[str]) -> None:
        self._shelf, self._members = shelf, members

    def read(self, extents: Extents, lease: Lease) -> Block:
        """Those records; the third place is damaged."""
        runs = zip(extents.start.tolist(), extents.stop.tolist(), strict=True)
        places = [place for a, b in runs for place in range(a, b)]
        values: dict[str, Any] = {}
        for name in self._members:
            found = [self._shelf.records[place][name] for place in places]
            sizes = np.array(list(map(len, found)))
            memory = lease.room(int(sizes.sum()))
            memory[:] = b"".join(found)
            values[name] = Pieces([memory], 0 * sizes, np.cumsum(sizes) - sizes, sizes)
        faults = {row: Fault("source", "the picture is torn") for row, place in enumerate(places) if place == 2}
        return Block(extents.ids(), values, lease, faults)

    def close(self) -> None:
        """Nothing is open."""


@dataclass(frozen=True)
class WordCount(Column):
    """How many words a text has, float32 (n,)."""

    member: str

    def read(self, values: Any, faults: dict[int, str]) -> Any:
        """Counted as they are read."""
        return np.array([len(bytes(value).split()) for value in values], np.float32)


@dataclass(frozen=True, slots=True)
class Negative(Op):
    """Every level from the other end."""

    def image(self, image: Any, *row: Any, **_: Any) -> Any:
        """One image of the host engine."""
        return 255 - image


@dataclass(frozen=True, slots=True)
class Dimmed(Op):
    """Every level times a factor of 0 to 1, which each sample draws."""

    names = ("factor",)
    streams = 1

    def draw(self, d: Draws) -> Mapping[str, Any]:
        """The factors, float32 (n,)."""
        return {"factor": d.u()[0]}

    def image(self, image: Any, factor: Any, **_: Any) -> Any:
        """One image of the host engine."""
        return (image * float(factor)).to(torch.uint8)


def columns(transform: Op | None = None) -> dict[str, Any]:
    """A picture, changed by that, and the count of its words."""
    return {"image": Image("picture", transform), "words": WordCount("text")}


def test_two_batches_train_a_model() -> None:
    """They hold the pictures' negatives and the counts; the torn one is replaced, and gradients reach the weights."""
    shelf, model = Shelf(8), torch.nn.Linear(3 * 16 * 16, 1)
    before = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with DataLoader(shelf, 4, columns=columns(), device="cpu", tuning=QUICK) as loader:
        plain = [batch["image"].clone() for batch in loader]
    with DataLoader(shelf, 4, columns=columns(Negative()), device="cpu", tuning=QUICK) as loader:
        for n, batch in enumerate(loader):
            assert torch.equal(batch["image"], 255 - plain[n])
            places = [0, 1, 3, 3] if n == 0 else [4, 5, 6, 7]
            assert batch["words"].tolist() == [len(WORDS[place % 3].split()) for place in places]
            loss = (model(batch["image"].flatten(1) / 255)[:, 0] - batch["words"]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert [reason for _, reason in loader.stats().recent_bad] == ["the picture is torn"]
    assert n == 1
    assert not torch.equal(model.weight, before)


def test_a_transform_draws_by_the_sample() -> None:
    """Its numbers depend on seed, epoch and sample alone: not on the batches that the samples stand in."""

    def images(seed: int, batch_size: int, epoch: int = 0) -> torch.Tensor:
        options: dict[str, Any] = {"columns": columns(Dimmed()), "device": "cpu", "seed": seed, "tuning": QUICK}
        with DataLoader(Shelf(8), batch_size, **options) as loader:
            loader.set_epoch(epoch)
            return torch.cat([batch["image"] for batch in loader])

    assert torch.equal(images(1, 4), images(1, 2))
    assert not torch.equal(images(1, 4), images(2, 4))
    assert not torch.equal(images(1, 4), images(1, 4, epoch=1))


def test_it_resumes_anywhere() -> None:
    """The law that holds the sources of the package holds this one, and its transform."""
    assert_resumes_anywhere(Shelf(19), columns=columns(Dimmed()), positions=3, absent=0)
