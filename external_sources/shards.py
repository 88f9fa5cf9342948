"""Webdataset-style tar shards: many images and their labels in few large files.

A shard is a partition and a sample's index in it is its position. Samples are found through an index of
byte ranges (`tar_index`), so any record costs one read, and neighbours are read in one go.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from dali_feed.checks import paths_of
from dali_feed.errors import ConfigError, DataLostError, SourceEmptyError
from dali_feed.external_sources import tar_index
from dali_feed.external_sources.checksums import expected
from dali_feed.external_sources.formatted import forms_of, with_formats
from dali_feed.external_sources.shard_members import ShardMembers, members_of
from dali_feed.external_sources.shard_reader import ShardReader, ShardTable, check_shard, foresee
from dali_feed.external_sources.topic_shards import Replay
from dali_feed.formats.format import Format
from dali_feed.formats.named import format_of
from dali_feed.records.members import Member
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import Coming, Reader, Slabs, Snapshot, Source
from dali_feed.storage.disk_cache import CachedStore, DiskCache
from dali_feed.storage.paths import shown, unique_names
from dali_feed.storage.sets import SetStore, store_for
from dali_feed.storage.store import Store, read_at

__all__ = ["DiskCache", "ShardSet"]

EXTENT_BYTES = 8 << 20
INDEX_THREADS = 8
IMAGE_SUFFIXES = ("jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff", "gif", "avif", "ppm", "pgm")
_ENDINGS = {"json": "json", "npy": "npy", "msgpack": "msgpack", "mp": "msgpack"}
_LOADING = threading.Lock()  # of the module, so that a ShardSet can be pickled


class ShardSet:
    """Images and labels in tar files.

    shards     one pattern or path, or a sequence of them. Patterns may hold `*`, `?`, `[..]`, `{a,b}` and
               ranges like `{0000..0099}`. One pattern's files are sorted by name; a sequence keeps its order.
               `NAME.dfset` is all of a set that `dali-feed pack` wrote; of a topic's records, as that topic
    image      suffixes of the image member; where a sample has several, the first in this list counts
    label      "cls" (a member with decimal text), "json" (a member whose key "label" is an integer), "json:KEY",
               None (no label field), or "auto": what the first sample has, cls before json
    index_dir  where indexes are kept; None: beside each shard, else in the user's cache
    storage_options  of the file system, where shards are addresses such as s3://bucket/train-{0000..0099}.tar: what
               obstore takes for it, with secrets as `FromEnv` and `FromFile`. Shown nowhere; see docs/remote.md
    format     what members hold, for `columns=`: suffix -> format, {"meta": "json"}; those that end in json, npy,
               msgpack or mp have it already. A member is then `json:body.label` too; see docs/formats.md
    check      compare what is read with its checksum, where `dali-feed pack` wrote the shard: a record that differs is
               a bad one
    cache      a `DiskCache` that keeps pieces of the shards, for those on a remote or slow store; docs/caching.md

    Raises:
        ConfigError: an argument has a value that is not allowed, or a shard is named twice.
        SourceNotFoundError: a pattern matches nothing, or a named file is not there.
    """

    def __init__(
        self,
        shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        image: Sequence[str] = IMAGE_SUFFIXES,
        label: str | None = "auto",
        index_dir: str | os.PathLike[str] | None = None,
        format: Mapping[str, Format | str] | None = None,  # noqa: A002  what users call it
        check: bool = True,
        cache: DiskCache | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(image, str) or not isinstance(image, Iterable) or not image or not all(map(str, image)):
            msg = f"ShardSet: image must be a non-empty sequence of suffixes such as ('jpg', 'png'); found {image!r}"
            raise ConfigError(msg)
        known = label in (None, "auto", "cls", "json") or (str(label).startswith("json:") and str(label)[5:])
        if not known:
            msg = f"ShardSet: label must be 'auto', 'cls', 'json', 'json:KEY' or None; found {label!r}"
            raise ConfigError(msg)
        patterns = paths_of("ShardSet: shards", shards)
        if not patterns:
            msg = "ShardSet: shards must name at least one file; found an empty sequence"
            raise ConfigError(msg)
        if not isinstance(cache, DiskCache | None):
            msg = f"ShardSet: cache must be a DiskCache or None; found {cache!r}"
            raise ConfigError(msg)
        self._below = store_for(patterns, storage_options)  # indexes are kept by themselves
        self._store = self._below if cache is None else CachedStore(self._below, cache)
        self._paths = tuple(itertools.chain.from_iterable(self._below.matches(p) for p in patterns))
        if len(set(self._paths)) < len(self._paths):
            twice = next(p for p in self._paths if self._paths.count(p) > 1)
            msg = f"ShardSet: each shard may be named once; found {twice} twice; remove one of the two"
            raise ConfigError(msg)
        self._names = unique_names(self._paths)
        self._title = f"ShardSet({', '.join(map(shown, patterns[:3]))}{', ...' if len(patterns) > 3 else ''})"
        self._image = tuple(s.lower().lstrip(".").encode() for s in image)
        self._label, self._checked = label, check
        self._index_dir = index_dir
        self._forms = {name.lower(): form for name, form in forms_of(format, None, self._title).items()}
        self._table: ShardTable | None = None
        self._replay = _replay(self._below, patterns)

    def __repr__(self) -> str:
        return self._title

    def __getstate__(self) -> dict[str, Any]:
        """Without the index: another process, perhaps on another machine, looks at its own files."""
        return self.__dict__ | {"_table": None}

    @property
    def paths(self) -> tuple[str, ...]:
        """The shard files in partition order."""
        return self._paths

    @property
    def replays(self) -> bool:
        """Whether its partitions and positions are those of a topic that it was packed of."""
        return self._replay is not None

    @property
    def store(self) -> Store:
        """How their bytes are read."""
        return self._store

    @property
    def fields(self) -> tuple[str, ...]:
        """('label',) or (); label="auto" needs the index to know."""
        if self._label == "auto":
            return ("label",) if self._load().label else ()
        return ("label",) if self._label else ()

    def snapshot(self, pin: Mapping[str, Any] | None = None) -> Snapshot:
        """All samples of all shards. Indexes the shards where that has not been done.

        Raises:
            ConfigError: a pin is given, which only a source that changes has.
            SourceChangedError: a shard is not what it was when this ShardSet indexed it.
            DataLostError: it is gone.
            SourceError: a shard cannot be indexed (`tar_index.build` lists how); SourceEmptyError: no sample at all.
        """
        if pin is not None and self._replay is None:
            msg = f"{self._title}: shards are fixed by their files and take no pin; found {dict(pin)!r}"
            raise ConfigError(msg)
        known = self._table
        table = self._load()
        if known is not None:
            self._check(known)
        if self._replay is not None:
            return self._replay.snapshot(self._title, table.counts, pin)
        sizes = [stamp.size for stamp in table.stamps]
        per_sample = sum(sizes) / int(table.counts.sum())
        digest = hashlib.sha256()
        for name, size, count, index in zip(table.names, sizes, table.counts, table.digests, strict=True):
            digest.update(f"{name}\0{size}\0{count}\0{index}\n".encode(errors="surrogateescape"))
        return Snapshot(
            source=self._title,
            names=table.names,
            starts=np.zeros(len(table.counts), np.int64),
            stops=table.counts.copy(),
            extent=max(1, round(EXTENT_BYTES / per_sample)),
            record_bytes=max(1, round(float(table.image_bytes.mean()))),
            random_access=self._store.random_access,
            interleaved=False,
            fingerprint=digest.hexdigest(),
        )

    def members(self) -> tuple[Member, ...]:
        """The suffixes of the samples' files, the most frequent first."""
        return members_of(self._indexed()[1])

    def form_of(self, member: str) -> Format | None:
        """The format of a suffix: the one that was given, else by how the suffix ends; None where it has none."""
        known = self._forms.get(member.lower())
        ending = member.lower().rpartition(".")[2]
        return format_of(_ENDINGS[ending]) if known is None and ending in _ENDINGS else known

    def giving(self, image: str | None, members: tuple[str, ...]) -> Source:
        """The same samples with other members; see `records.members`."""
        return with_formats(self._giving, self.form_of, image, members)

    def _giving(self, image: str | None, members: tuple[str, ...]) -> Source:
        return ShardMembers(
            self, self._paths, self._indexed, self._store, image, members, check=self._checked, replay=self._replay
        )

    def reader(self, slabs: Slabs | None = None, stop: threading.Event | None = None) -> Reader:
        """A reader for one thread; see `dali_feed.records.source.Source`."""
        table = self._load()
        made = ShardReader(self._paths, table, SlabPool() if slabs is None else slabs, stop, self._store)
        return made if self._replay is None else self._replay.reader(made, table.counts)

    def foresee(self, coming: Coming) -> None:
        """Where there is a cache: it evicts what is needed last. See `records.source.Foresees`."""
        if isinstance(self._store, CachedStore):
            table = self._load()
            foresee(self._store, self._paths, table, coming, lambda row: table.spans(row)[1:])

    def where(self, partition: int, position: int) -> str:
        """`train-0007.tar#118`; of a topic's records `train[3]@41872 (train-0007.tar#118)`."""
        if self._replay is not None:
            return self._replay.where(partition, position, self._names, self._load().counts)
        return f"{self._names[partition]}#{position}"

    def _load(self) -> ShardTable:
        with _LOADING:
            if self._table is None:
                self._table = self._tabulated(self._indexes())
            return self._table

    def _indexes(self) -> list[tar_index.TarIndex]:
        with ThreadPoolExecutor(min(INDEX_THREADS, len(self._paths)), "dali-feed-index") as pool:
            return list(pool.map(lambda path: tar_index.load(path, self._index_dir, self._below), self._paths))

    def _indexed(self) -> tuple[ShardTable, list[tar_index.TarIndex]]:
        """The table, and the indexes that it was made of; they are kept on disk and not in memory."""
        with _LOADING:
            indexes, known = self._indexes(), self._table
            table = self._table = self._tabulated(indexes) if known is None else known
        if known is not None:
            self._check(known)
        return table, indexes

    def _check(self, table: ShardTable) -> None:
        """Check that the shards are what they were when they were indexed, before a fingerprint of them is given."""
        with ThreadPoolExecutor(min(INDEX_THREADS, len(self._paths)), "dali-feed-index") as pool:
            for _ in pool.map(partial(check_shard, self._below), self._paths, table.stamps):
                pass

    def _tabulated(self, indexes: list[tar_index.TarIndex]) -> ShardTable:
        counts = np.array([len(index) for index in indexes], np.int64)
        if not counts.any():
            msg = f"{self._title}: shards must hold samples; found none in {len(indexes)} file(s) like {self._paths[0]}"
            raise SourceEmptyError(msg)
        label = self._label_of(indexes)
        images = [index.member(self._image) for index in indexes]
        wanted = [label[0].encode()] if label else []
        labels = [index.member(wanted) for index in indexes]
        return ShardTable(
            names=self._names,
            stamps=tuple(index.stamp for index in indexes),
            digests=tuple(index.digest for index in indexes),
            counts=counts,
            base=np.cumsum(counts) - counts,
            image=np.concatenate([i[0] for i in images]),
            image_bytes=np.concatenate([i[1] for i in images]),
            label=label,
            label_at=np.concatenate([i[0] for i in labels]),
            label_bytes=np.concatenate([i[1] for i in labels]),
            image_crc=expected(indexes, self._image) if self._checked else None,
            label_crc=expected(indexes, wanted) if self._checked and wanted else None,
        )

    def _label_of(self, indexes: list[tar_index.TarIndex]) -> tuple[str, str] | None:
        """Suffix and key of the labels; for "auto" the first sample decides."""
        if self._label is None:
            return None
        if self._label != "auto":
            suffix, _, key = self._label.partition(":")
            return suffix, key or "label"
        shard = next(k for k, index in enumerate(indexes) if len(index))
        index = indexes[shard]
        if index.member([b"cls"])[0][0]:
            return "cls", ""
        at, size = (int(column[0]) for column in index.member([b"json"]))
        if not at:
            return None
        file = self._below.open(self._paths[shard])
        try:
            found = json.loads(read_at(file, size, at))
        except (ValueError, RecursionError):
            return "json", "label"  # the reader of such a sample says what is wrong with it
        finally:
            file.close()
        return ("json", "label") if isinstance(found, dict) and "label" in found else None


def _replay(store: Store, patterns: Sequence[str]) -> Replay | None:
    """The topic that a set was packed of."""
    told = store.replay(patterns) if isinstance(store, SetStore) else None
    try:
        return None if told is None else Replay.of(told)
    except (KeyError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        msg = f"{patterns[0]}: the topic of a set must be what `dali-feed pack` wrote; found {what}"
        raise DataLostError(msg) from error
