"""Feeds of images with holes and bad ones among them, with a cache and without; runs with records on a disk.

As a script: `cached_feeds.py FOLDER STEP`, a run that is killed.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from kit.images import QUICK, Seen, labelled, seen
from kit.named_rows import SOURCES, called, columns_of
from torchvision.transforms import v2

from dali_feed import Cache
from dali_feed.feed import Feed
from dali_feed.feed.disk_rows import DiskRows
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


def keys(folder: Path) -> dict[str, str]:
    """The name of the rows of each source, the same before and after it was read."""
    found = {}
    for name, made in SOURCES.items():
        source, columns = made(folder), columns_of(name, CROP)
        found[name] = called(source, columns)
        with Feed(source, 2, columns=columns, transform=CROP if columns is None else None, tuning=QUICK) as feed:
            list(feed)
        assert called(source, columns) == found[name]
    return found


def _killed(folder: Path, step: int) -> None:
    """A run that ends in the middle of a transaction, so many times 20 steps of SQLite's after its first write."""
    save, left = DiskRows._save, step

    def dying() -> int:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    def watched(self: DiskRows, rows: dict[int, bytes], form: str) -> None:
        with self._connection() as file:
            file.set_progress_handler(dying, 20)  # of this connection, which is the next that is taken
        save(self, rows, form)

    DiskRows._save = watched  # type: ignore[method-assign]
    epochs(feed(scripted(), Cache(disk=folder, disk_limit="1GB")))


if __name__ == "__main__":
    _killed(Path(sys.argv[1]), int(sys.argv[2]))
