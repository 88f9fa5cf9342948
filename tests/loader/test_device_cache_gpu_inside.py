"""Insides that contract/torch/test_device_cache_gpu.py needs not: they go with what they test."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from kit.images import broken_png, jpeg, png
from kit.inside import running
from torchvision.transforms import v2

from dali_feed import BadRecords, Cache, DataLoader, Decode, Tuning
from dali_feed.feed import Feed
from dali_feed.testing.scripted import Corrupt, Gap, ScriptedSource

pytestmark = pytest.mark.gpu

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CUT = (v2.Resize(40), v2.CenterCrop(32))
FLOATS = (v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD))
HALVES = (v2.ToDtype(torch.bfloat16, scale=True), v2.Normalize(MEAN, STD))

TRANSFORMS: dict[str, Any] = {
    "training": v2.Compose([*CUT, v2.RandomHorizontalFlip(), *FLOATS, v2.RandomErasing(0.6, value=3)]),
    "evaluation": v2.Compose([*CUT, *HALVES]),
    "bytes": v2.Compose([*CUT, v2.RandomVerticalFlip()]),
    "gray": v2.Compose([*CUT, v2.Grayscale(1), v2.RandomHorizontalFlip(), FLOATS[0], v2.Normalize([0.4], [0.2])]),
    "behind the graph": v2.Compose([v2.Resize((32, 32)), v2.RandomAdjustSharpness(2.0, p=1.0), *FLOATS]),
}


def source() -> ScriptedSource:
    """JPEGs and PNGs of several sizes, with holes, faults, and one that only the decoder refuses."""
    items: list[Any] = [((png if n % 3 else jpeg)(n, 60 + n % 4 * 9, 90 - n % 5 * 7), n) for n in range(72)]
    items[5], items[20], items[33] = Gap(), Corrupt(), (broken_png(), 33)
    return ScriptedSource(items, partitions=2, extent=4)


def loader(engine: str, transform: Any, cache: Cache | None, **options: Any) -> DataLoader:
    """A loader that shuffles."""
    chosen: dict[str, Any] = {"shuffle": True, "seed": 3, "info": True, "bad": BadRecords(limit=None)} | options
    return DataLoader(
        source(),
        16,
        transform=transform,
        device="cuda",
        decode=Decode(engine=engine),
        tuning=Tuning(cache=cache),
        **chosen,
    )


@pytest.fixture(params=["dali", "host"])
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine before a GPU."""
    return str(request.param)


def test_a_loader_that_is_closed_holds_no_memory(engine: str) -> None:
    """Of what was kept nothing stays, whoever still holds the loader."""
    made = loader(engine, TRANSFORMS["evaluation"], Cache(device="1GB"))
    with made:
        for _ in made:
            pass
        feed = running(made)
        assert isinstance(feed, Feed)
        kept = feed._machine.on_device
        assert kept is not None
        pieces = [weakref.ref(piece) for rows in kept._rows for _, piece in rows._pieces]
        assert pieces
    assert all(piece() is None for piece in pieces)
