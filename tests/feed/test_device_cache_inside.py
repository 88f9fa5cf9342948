"""Insides that contract/feed/test_device_cache.py needs not: they go with what they test."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from kit.cached_feeds import feed
from kit.images import broken_png, labelled
from torchvision.transforms import v2

from dali_feed import Cache
from dali_feed.testing.scripted import Corrupt, Gap, ScriptedSource

FLOATS = (v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
CUT = (v2.Resize(20), v2.CenterCrop(16))
TRAIN = v2.Compose([*CUT, v2.RandomHorizontalFlip(), *FLOATS, v2.RandomErasing(0.5)])
CACHE = Cache(device="1MB")


def scripted(**options: Any) -> ScriptedSource:
    """Images of many sizes; with holes, faults, and some that only the decoder refuses."""
    items: list[Any] = labelled(48, sizes=True)
    broken = (broken_png(1), 30), (broken_png(2), 31)
    for n, item in zip((3, 20, 21, 22, 30, 31), (Gap(), Corrupt(), Corrupt("torn"), Gap(), *broken), strict=True):
        items[n] = item
    return ScriptedSource(items, partitions=2, extent=4, **options)


def test_another_snapshot_is_another_cache() -> None:
    """What was kept of a source as it was is not given of the source as it is."""
    source = scripted()
    with feed(source, CACHE, transform=TRAIN) as made:
        for _ in made:
            pass
        kept = made._machine.on_device
        assert kept is not None
        snapshot = source.snapshot()
        kept.begin(snapshot.fingerprint, len(snapshot))
        assert kept.counted[2] == 42
        kept.begin("another", len(snapshot))
        assert kept.counted[2:] == (0, 0)


def test_a_feed_that_is_closed_holds_no_memory() -> None:
    """Of what was kept nothing stays, whoever still holds the feed."""
    made = feed(scripted(), CACHE, transform=TRAIN)
    with made:
        for _ in made:
            pass
        kept = made._machine.on_device
        assert kept is not None
        pieces = [weakref.ref(piece) for rows in kept._rows for _, piece in rows._pieces]
        assert pieces
    assert all(piece() is None for piece in pieces)
