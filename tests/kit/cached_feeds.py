"""Feeds of images with holes and bad ones among them, to be run with a cache and without."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from kit.images import QUICK, Seen, labelled, seen
from torchvision.transforms import v2

from dali_feed import Cache
from dali_feed.feed import Feed
from dali_feed.options import BadRecords, Decode
from dali_feed.plan.order import Shuffle
from dali_feed.testing.scripted import Corrupt, Gap, ScriptedSource

CROP = v2.Compose([v2.RandomResizedCrop(16, scale=(0.3, 1.0)), v2.RandomHorizontalFlip()])
EPOCHS = 3


def scripted(**options: Any) -> ScriptedSource:
    """Images of many sizes, with holes, faults and garbage among them."""
    items: list[Any] = labelled(48, sizes=True)
    for n, item in zip((3, 20, 21, 22), (Gap(), Corrupt(), Corrupt("torn"), Gap()), strict=True):
        items[n] = item
    return ScriptedSource(items, partitions=2, extent=4, **options)


def feed(source: Any, cache: Cache | None, **options: Any) -> Feed:
    """A feed that shuffles."""
    chosen: dict[str, Any] = {"transform": CROP, "shuffle": True, "bad": BadRecords(limit=None), "seed": 7} | options
    return Feed(source, 8, tuning=replace(QUICK, cache=cache), **chosen)


def epochs(made: Feed) -> list[Seen]:
    """What the training loop sees of some epochs."""
    with made:
        return [seen(batch) for _ in range(EPOCHS) for batch in made]


@functools.cache
def without(*, exif: bool = False, runs: bool = False) -> list[Seen]:
    """The same without a cache."""
    shuffle = Shuffle(extent=4, window=2) if runs else True
    return epochs(feed(scripted(random_access=not runs), None, decode=Decode(exif=exif), shuffle=shuffle))
