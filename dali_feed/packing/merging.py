"""Several sets as one: their shards are copied as they are, under new names, and one manifest names them all."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dali_feed.errors import ConfigError, DataLostError
from dali_feed.external_sources.tar_index import SUFFIX
from dali_feed.packing.output import save
from dali_feed.packing.place import place
from dali_feed.packing.plan import name_of
from dali_feed.packing.work import Work, denied
from dali_feed.storage.manifest import Manifest, Shard, load_plain

__all__ = ["merge"]


def merge(sets: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]) -> Path:
    """Write a set of all shards of `sets`, in order; returns its manifest's path. The old sets stay as they are.

    The new set is compared with their checksums while it is written. A merge that was killed begins again when it is
    called again.

    Args:
        sets: two or more, `NAME.dfset`.
        out: `folder/NAME.dfset`, or a folder.

    Raises:
        ConfigError: fewer than two sets, the same twice, files in the way, a place that cannot be written.
        DataLostError: a shard is not what its manifest says.
        SourceNotFoundError: no such set.
    """
    folder, name = place(out)
    if not all(os.fspath(each).strip() for each in sets):
        msg = (
            f"merge: takes the manifests of sets, NAME.dfset; found {[os.fspath(each) for each in sets]!r}; name "
            "them all"
        )
        raise ConfigError(msg)
    homes = [os.path.abspath(each) for each in sets]  # noqa: PTH100  links stay as they are
    if len(homes) < 2 or len(set(homes)) < len(homes):
        msg = f"merge: takes two or more different sets; found {', '.join(homes) or 'none'}"
        raise ConfigError(msg)
    manifests = [load_plain(home) for home in homes]
    every = [(Path(home).parent, shard) for home, told in zip(homes, manifests, strict=True) for shard in told.shards]
    work = Work(folder, name)
    path = work.out / f"{work.name}.dfset"
    with work.held():
        names = [name_of(work.name, k, len(every)) for k in range(len(every))]
        there = [name for name in (*names, path.name) if (work.out / name).exists()]
        if there and work.plan() is None:
            msg = f"{work.out}: a new set must not replace files that are there; found {there[0]}; give another name"
            raise ConfigError(msg)
        work.begin({"merge": homes})
        try:
            pairs = zip(every, names, strict=True)
            shards = tuple(_copied(folder, shard, work, name) for (folder, shard), name in pairs)
            save(work.path, path, Manifest(shards, {"merged": [dict(told.made) for told in manifests]}))
        except OSError as error:
            raise denied(work.out, error) from error
        work.done()
    return path


def _copied(folder: Path, shard: Shard, work: Work, name: str) -> Shard:
    for end, digest in ((SUFFIX, shard.index_sha256), ("", shard.sha256)):
        source, fresh = folder / f"{shard.name}{end}", work.path / f"{name}{end}"
        if not source.exists():
            msg = f"{source}: a shard must exist to be merged; it was removed; put it back"
            raise DataLostError(msg)
        shutil.copyfile(source, fresh)
        with fresh.open("rb+") as file:
            os.fsync(file.fileno())
        if _digest(fresh) != digest:
            msg = f"{source}: a shard must be what its manifest says; its SHA-256 differs; fetch it again"
            raise DataLostError(msg)
        fresh.replace(work.out / f"{name}{end}")
    return replace(shard, name=name)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
