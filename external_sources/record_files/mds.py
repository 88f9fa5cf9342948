"""Sets of Mosaic Streaming's MDS shards, read where they lie."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from dali_feed.checks import path_of
from dali_feed.errors import ConfigError
from dali_feed.external_sources.record_files.kept_index import RecordIndex
from dali_feed.external_sources.record_files.mds_index import check_packed, hashes_checked, read_set, shard_index
from dali_feed.external_sources.record_files.mds_packed import PackedStore
from dali_feed.external_sources.record_files.mds_sample import INTEGERS, MdsSample
from dali_feed.external_sources.record_files.reader import Files, RecordTable
from dali_feed.external_sources.record_files.source import INDEX_THREADS, RecordFiles
from dali_feed.records.source import Snapshot
from dali_feed.storage.sets import store_for
from dali_feed.storage.store import Store

__all__ = ["MDS"]

AUTO = "auto"
IMAGES = ("image", "jpg", "jpeg", "png", "img")  # what people call them, the foremost counts
LABELS = ("label", "class", "cls", "target", "y")
_log = logging.getLogger("dali_feed")


class MDS(RecordFiles):
    """Samples of a folder that MDSWriter wrote: index.json and the shards that it names, in its order.

    folder  of one split, with index.json in it
    image   the column that is the image, of encoding jpeg, png or bytes; "auto": the first of jpeg or png, else one of
            bytes that is called `image` or the like; None: there is none, and samples are read with `columns=`
    label   the column of integers that is the label; "auto": one that is called `label` or the like, else none; None
    check   whether all shards are read whole first and held against the hashes in index.json, where it has some

    Members are the columns. Bytes, images, texts and JSON are views, numbers and arrays are what they are. Pickles
    (`pkl`) are never read. Shards that Zstandard packed (`MDSWriter(compression="zstd")`) are unpacked in memory, one
    at a time for each reader, and nothing is written: so a shuffle moves whole shards, and mixes those of a window.

    Raises:
        ConfigError: an argument has a value that is not allowed.
        SourceNotFoundError: no index.json in the folder.
        SourceError: it is damaged, of another version, or its shards are compressed, and not by Zstandard.
        MissingPackageError: they are, and `zstandard` is not installed.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        image: str | None = AUTO,
        label: str | None = AUTO,
        check: bool = False,
    ) -> None:
        given = path_of("MDS: folder", folder)
        root = given.rstrip("/") or "/"
        root = root if "://" in root else os.path.expanduser(root)
        store = store_for([root])
        self._set = read_set(root, store)
        form = MdsSample(self._set.names, self._set.encodings, self._set.sizes)
        paths = tuple(shard.path for shard in self._set.shards)
        if len(set(paths)) < len(paths):
            twice = next(path for path in paths if paths.count(path) > 1)
            msg = f"MDS({given}): each shard may be named once; found {twice} twice in index.json; copy it again"
            raise ConfigError(msg)
        super().__init__(f"MDS({given})", Files("MDS", paths, self._over(store), _whole), form)
        self._shards = {shard.path: shard for shard in self._set.shards}
        self._hashed = check
        encodings = dict(zip(self._set.names, self._set.encodings, strict=True))
        for name, known in ((image, ("jpeg", "png", "bytes")), (label, INTEGERS)):
            if name not in (None, AUTO) and encodings.get(name) not in known:
                found = f"{encodings[name]!r}" if name in encodings else f"the columns {', '.join(encodings)}"
                msg = f"MDS({given}): {name!r} must be a column of encoding {', '.join(known)}; found {found}"
                raise ConfigError(msg)
        self._image = _image(encodings) if image == AUTO else image
        self._label = _named(encodings, LABELS, INTEGERS) if label == AUTO else label

    def _over(self, store: Store) -> Store:
        """The store of the shards as they were before they were packed."""
        packed = {shard.path: shard.packed for shard in self._set.shards if shard.packed is not None}
        return PackedStore(store, packed, check_packed) if packed else store

    def snapshot(self, pin: Mapping[str, Any] | None = None) -> Snapshot:
        """All samples; see `RecordFiles.snapshot`. Of packed shards each is an extent, which is unpacked once."""
        found, packed = super().snapshot(pin), isinstance(self._files.store, PackedStore)
        return replace(found, extent=max(found.extent, int(found.stops.max()))) if packed else found

    def _index(self, path: str) -> RecordIndex:
        return shard_index(self._shards[path], self._files.store, repr(self._form).encode())

    def _tabulated(self) -> RecordTable:
        found = super()._tabulated()
        if self._hashed:
            with ThreadPoolExecutor(INDEX_THREADS, "dali-feed-hash") as pool:
                checked = list(pool.map(lambda shard: hashes_checked(shard, self._files.store), self._set.shards))
            if not all(checked):
                msg = (
                    "%s: %d of %d shards have no hash in index.json that can be checked, so damaged bytes are "
                    "not noticed"
                )
                _log.warning(msg, self._title, checked.count(False), len(checked))
        return found

    def _chosen(self) -> tuple[str | None, str | None]:
        return self._image, self._label


def _whole(sample: memoryview) -> memoryview:
    return sample


def _image(encodings: dict[str, str]) -> str | None:
    pictures = [name for name, encoding in encodings.items() if encoding in {"jpeg", "png"}]
    return pictures[0] if pictures else _named(encodings, IMAGES, ("bytes",))


def _named(encodings: dict[str, str], names: tuple[str, ...], known: Any) -> str | None:
    return next((name for name in names if encodings.get(name) in known), None)
