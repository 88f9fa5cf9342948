"""A packed set of small images, for tests of what reads one; the same laid over targets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from kit.images import jpeg

from dali_feed.external_sources import FileList
from dali_feed.packing import PackedSet, pack
from dali_feed.storage.manifest import load_manifest, manifest_bytes
from dali_feed.storage.striping import BLOCK, Layout, StripeWriter


def packed_images(folder: Path, out: Path, count: int, side: int, shard_bytes: int | None = None) -> PackedSet:
    """Pack `count` images of two classes, taken in turns, square with `side` pixels; their files are in `folder`."""
    for k in range(count):
        (folder / "source" / "ab"[k % 2]).mkdir(parents=True, exist_ok=True)
        (folder / "source" / "ab"[k % 2] / f"{k}.jpg").write_bytes(jpeg(k, side, side))
    return pack(FileList.from_folder(folder / "source"), out, shard_bytes=shard_bytes)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve images of two classes in two shards."""
    folder = tmp_path_factory.mktemp("plain")
    packed_images(folder, folder / "set" / "x.dfset", 12, 48, 20000)
    return folder / "set" / "x.dfset"


def striped(plain: Path, home: Path, targets: int = 3, count: int | None = None, stripe: int = BLOCK) -> Path:
    """The set `plain` again in the folder `home`, over folders t0, t1, ... there."""
    manifest = load_manifest(str(plain))
    layout = Layout(tuple(f"t{k}" for k in range(targets)), count or targets, stripe)
    for name in layout.targets:
        (home / name).mkdir(parents=True)
    for number, shard in enumerate(manifest.shards):
        writer = StripeWriter(home, layout, number, shard.name)
        writer.write((plain.parent / shard.name).read_bytes())
        writer.commit()
        (home / f"{shard.name}.dfidx").write_bytes((plain.parent / f"{shard.name}.dfidx").read_bytes())
    path = home / plain.name
    path.write_bytes(manifest_bytes(replace(manifest, layout=layout)))
    return path
