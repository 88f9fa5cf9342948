"""A packed set laid over targets: the same shards and indexes as stripes, under a manifest with a layout."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dali_feed.storage.manifest import load_manifest, manifest_bytes
from dali_feed.storage.striping import BLOCK, Layout, StripeWriter


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
