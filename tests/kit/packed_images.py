"""A packed set of small images, for tests of what reads one; the same laid over targets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kit.blocks import taken
from kit.images import jpeg

from dali_feed.external_sources import FileList, ShardSet
from dali_feed.packing import PackedSet, pack
from dali_feed.records.extents import Extents
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


def rows(source: ShardSet) -> tuple[list[bytes], list[int], dict[int, str]]:
    """Payloads, labels and faults of all records."""
    found = source.snapshot()
    reader = source.reader()
    block = reader.read(Extents(np.arange(len(found.names)), found.starts, found.stops))
    result = [taken(each) for each in block.payloads], block.fields["label"].tolist(), dict(block.faults)
    block.lease.release()
    reader.close()
    return result


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
