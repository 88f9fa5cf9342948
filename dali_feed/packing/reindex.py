"""Indexes of shards, written before anybody trains on them: with checksums, or, of a set, again."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from dali_feed.checks import whole
from dali_feed.errors import ConfigError, DataLostError
from dali_feed.external_sources import ShardSet
from dali_feed.external_sources import tar as tar_index
from dali_feed.external_sources.index import SUFFIX as INDEX
from dali_feed.packing.work import folder_at, writing
from dali_feed.storage.durable import sync_folder, write_whole
from dali_feed.storage.manifest import SUFFIX, load_plain
from dali_feed.storage.store import LOCAL, read_at


def index(shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *, workers: int = 4) -> int:
    """Write an index with checksums beside each shard, which reads all of it; returns how many were written.

    An index with checksums belongs to its shard by the shard's size: whoever changes a shard calls this again.

    Args:
        shards: patterns of tar files, as ShardSet takes them; or `NAME.dfset`, whose indexes are written again and
            must then be what its manifest says.
        workers: threads, a shard each.

    Raises:
        DataLostError: of a set, a shard is not what the manifest says.
        ConfigError: the folder of a shard cannot be written.
        SourceError: a shard cannot be read, or is no tar file.
    """
    if isinstance(shards, str | os.PathLike) and os.fspath(shards).endswith(SUFFIX):
        home = Path(shards)
        wanted = {str(home.parent / shard.name): shard.index_sha256 for shard in load_plain(str(home)).shards}
    else:
        wanted = dict.fromkeys(ShardSet(shards).paths, "")
    for folder in sorted({Path(path).parent for path in wanted}):
        folder_at(folder, "beside shards, in a folder")  # said before all bytes are read
    with ThreadPoolExecutor(whole("workers", workers, 1), "dali-feed-index") as pool:
        for _ in pool.map(_indexed, wanted, wanted.values()):
            pass
    return len(wanted)


def _indexed(path: str, digest: str) -> None:
    index = tar_index.build(path)
    with closing(LOCAL.open(path)) as file:
        members = zip(index.offset.tolist(), index.length.tolist(), strict=True)
        crc = [zlib.crc32(read_at(file, size, at)) for at, size in members]
    if index.unread:
        raise ConfigError(
            f"{path}: a shard must have no bytes after its archive, which ends before byte {index.unread}; write it "
            "again"
        )
    whole = replace(index, crc=np.array(crc, np.uint32)).to_bytes()
    if digest and hashlib.sha256(whole).hexdigest() != digest:
        msg = f"{path}: a shard must be what its manifest says; the index made of it differs; fetch the shard again"
        raise DataLostError(msg)
    home = Path(path + INDEX)
    with writing(home):
        write_whole(home, whole)
        sync_folder(home.parent)
