"""A packed set of small images, for tests of what reads one."""

from __future__ import annotations

from pathlib import Path

from kit.images import jpeg

from dali_feed.external_sources import FileList
from dali_feed.packing import PackedSet, pack


def packed_images(folder: Path, out: Path, count: int, side: int, shard_bytes: int | None = None) -> PackedSet:
    """Pack `count` images of two classes, taken in turns, square with `side` pixels; their files are in `folder`."""
    for k in range(count):
        (folder / "source" / "ab"[k % 2]).mkdir(parents=True, exist_ok=True)
        (folder / "source" / "ab"[k % 2] / f"{k}.jpg").write_bytes(jpeg(k, side, side))
    return pack(FileList.from_folder(folder / "source"), out, shard_bytes=shard_bytes)
