"""Webdataset-style tar shards: many images and their labels in few large files.

A shard is a partition and a sample's index in it is its position. Samples are found through an index of
byte ranges (`tar`), so any record costs one read, and neighbours are read in one go.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np

from dali_feed.checks import flag, paths_of
from dali_feed.columns.request import formats_of
from dali_feed.errors import ConfigError, DataLostError, FormatError
from dali_feed.external_sources import tar
from dali_feed.external_sources.file_source import FileSource, images_and_labels, named_files
from dali_feed.external_sources.index import TarIndex
from dali_feed.external_sources.ranges import FileTable, RangeReader, Spans
from dali_feed.external_sources.replay import Replay
from dali_feed.formats import format_of
from dali_feed.formats.format import Format
from dali_feed.formats.json_text import loads
from dali_feed.formats.paths import path_of
from dali_feed.records.source import EXTENT_BYTES, LABEL, Member, Reader, Snapshot, alternatives
from dali_feed.storage.sets import SetStore, store_for
from dali_feed.storage.store import LOCAL, Store, read_at


def _members_of(indexes: Sequence[TarIndex]) -> tuple[Member, ...]:
    """The suffixes of all samples, the most frequent first, then by name."""
    count: dict[bytes, int] = {}
    size: dict[bytes, int] = {}
    for index in indexes:
        for k, suffix in enumerate(index.suffixes):
            has = index.suffix == k
            count[suffix] = count.get(suffix, 0) + int(has.sum())
            size[suffix] = size.get(suffix, 0) + int(index.length[has].sum())
    samples = max(1, sum(map(len, indexes)))
    names = {suffix: suffix.decode(errors="replace") for suffix, n in count.items() if n}
    every = [
        Member(name, min(1.0, count[suffix] / samples), round(size[suffix] / count[suffix]))
        for suffix, name in names.items()
    ]
    return tuple(sorted(every, key=lambda member: (-member.share, member.name)))


def _can_be_named(suffix: str) -> bool:
    """Whether a column can name it."""
    return alternatives(suffix) == (suffix,) and ":" not in suffix and "\ufffd" not in suffix


IMAGE_SUFFIXES = ("jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff", "gif", "avif", "ppm", "pgm")
_ENDINGS = {"json": "json", "npy": "npy", "msgpack": "msgpack", "mp": "msgpack"}


class _First(NamedTuple):
    """The first sample: its shard, whether it has a label's text, and where its JSON lies, -1 for none."""

    shard: int
    cls: bool
    json_at: int
    json_size: int


class ShardSet(FileSource):
    """Images and labels in tar files.

    shards     one pattern or path, or a sequence of them. Patterns may hold `*`, `?`, `[..]`, `{a,b}` and
               ranges like `{0000..0099}`. One pattern's files are sorted by name; a sequence keeps its order.
               `NAME.dfset` is all of a set that `dali-feed pack` wrote; of a topic's records, as that topic
    image      suffixes of the image member; where a sample has several, the first in this list counts
    label      "cls" (a member with decimal text), "json" (a member whose key "label" is an integer), "json:KEY", where
               KEY may be a path, "json:meta.label", if the first sample has no key of that name; None (no label
               field), or "auto": what the first sample has, cls before json
    index_dir  where indexes are kept; None: beside each shard, else in the user's cache
    storage_options  of the file system, where shards are addresses such as s3://bucket/train-{0000..0099}.tar: what
               obstore takes for it, with secrets as `Secret`. Shown nowhere; see docs/sources.md
    format     what members hold, for `columns=`: suffix -> format, {"meta": "json"}; those that end in json, npy,
               msgpack or mp have it already. A member is then `json:body.label` too; see docs/formats.md
    check      compare what is read with its checksum, where `dali-feed pack` wrote the shard: a record that differs is
               a bad one

    Raises:
        ConfigError: an argument has a value that is not allowed, or a shard is named twice.
        SourceNotFoundError: a pattern matches nothing, or a named file is not there.
    """

    kind, unit, first_of = "ShardSet", "sample", True

    def __init__(
        self,
        shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        image: Sequence[str] = IMAGE_SUFFIXES,
        label: str | None = "auto",
        index_dir: str | os.PathLike[str] | None = None,
        format: Mapping[str, Format | str] | None = None,  # noqa: A002  what users call it
        check: bool = True,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        names = tuple(image) if isinstance(image, Iterable) and not isinstance(image, str) else ()
        if not names or not all(isinstance(name, str) and name for name in names):
            msg = f"ShardSet: image must be a non-empty sequence of suffixes such as ('jpg', 'png'); found {image!r}"
            raise ConfigError(msg)
        known = label in (None, "auto", "cls", "json") or (str(label).startswith("json:") and str(label)[5:])
        if not known:
            msg = f"ShardSet: label must be 'auto', 'cls', 'json', 'json:KEY' or None; found {label!r}"
            raise ConfigError(msg)
        flag("ShardSet: check", check)
        patterns = paths_of("ShardSet: shards", shards)
        store = store_for(patterns, storage_options) if patterns else LOCAL
        title, paths = named_files("ShardSet", patterns, store.matches, "shard")
        super().__init__(title, paths, store)
        self._image = tuple(tar.folded(name).lstrip(".") for name in names)
        self._label, self._checked = label, check
        self._index_dir = index_dir
        self._formats = {tar.folded(name): form for name, form in formats_of(format, None, title).items()}
        self._replay = _replay(store, patterns)
        self._members: tuple[Member, ...] = ()
        self._first: _First | None = None
        self._label_member: str | None = None  # the label's member once the first sample has told it; "": none

    @property
    def replays(self) -> bool:
        """Whether its partitions and positions are those of a topic that it was packed of."""
        return self._replay is not None

    @property
    def preset(self) -> Mapping[str, Any]:
        """`image`, and `label` where there is one; "auto" and a path need the first sample to know."""
        label = self._label_path()
        return images_and_labels(self._title, ";".join(self._image), label, self._label)

    def format_of(self, member: str) -> Format | None:
        """The format of a suffix: the one that was given, else by how the suffix ends; None where it has none."""
        known = self._formats.get(tar.folded(member))
        ending = member.lower().rpartition(".")[2]
        return format_of(_ENDINGS[ending]) if known is None and ending in _ENDINGS else known

    def members(self) -> tuple[Member, ...]:
        """The suffixes of the samples' files, the most frequent first; without those that no column can name."""
        self.table()
        return tuple(member for member in self._members if _can_be_named(member.name))

    @property
    def unnamed(self) -> tuple[str, ...]:
        """The others."""
        self.table()
        return tuple(member.name for member in self._members if not _can_be_named(member.name))

    def can_have(self, member: str) -> bool:
        """Whether a sample has a file of that suffix, or of one of several, in letters of either case."""
        return any(map(super().can_have, alternatives(tar.folded(member))))

    def snapshot(self, pin: Mapping[str, Any] | None = None) -> Snapshot:
        """All samples of all shards, or the topic's that they were packed of. Indexes shards where that was not done.

        Raises:
            ConfigError: a pin is given, which only a source that changes has.
            SourceChangedError: a shard is not what it was when this ShardSet indexed it.
            DataLostError: it is gone.
            SourceError: a shard cannot be indexed (`tar.build` lists how); SourceEmptyError: no sample at all.
        """
        if self._replay is None:
            return super().snapshot(pin)
        return self._replay.snapshot(self._title, self._checked_table().counts, pin)

    def reader(self, members: Sequence[str], stop: threading.Event | None = None) -> Reader:
        """A reader for one thread; see `dali_feed.records.source.Source`."""
        self.check_members(members)
        table, spans = self.table(), self.spans(members)
        if self._replay is None:
            return RangeReader(table, self._store, spans, stop)
        return RangeReader(table, self._store, spans, stop, locate=self._replay.rows, ends=self._replay.ends)

    def dense(self, members: Sequence[str]) -> bool:
        """Of plain members, where positions are samples."""
        return self._replay is None and all(self.can_have(member) and ";" not in member for member in members)

    def where(self, partition: int, position: int) -> str:
        """`train-0007.tar#118`; of a topic's records `train[3]@41872 (train-0007.tar#118)`."""
        if self._replay is not None:
            return self._replay.where(partition, position, self._names, self.table().counts)
        return super().where(partition, position)

    def index(self, path: str) -> TarIndex:
        """See `tar.load`."""
        return tar.load(path, self._index_dir, self._store)

    def spans_of(self, indexes: Sequence[TarIndex], members: tuple[str, ...]) -> Spans:
        """Of each member its bytes in the tar files, and its CRC-32 where the indexes have it."""
        suffixes = [[os.fsencode(tar.folded(part)) for part in alternatives(member)] for member in members]
        places = [[index.member(these) for index in indexes] for these in suffixes]
        at, size = (
            np.array([np.concatenate([its[k] for its in each]) for each in places], np.int64).reshape(len(members), -1)
            for k in (0, 1)
        )
        checked = self._checked and any(index.crc is not None for index in indexes)
        crc = [np.concatenate([index.crc_of(these) for index in indexes]) if checked else None for these in suffixes]
        return Spans(members, at, size, tuple(crc))

    def sizes_of(self, indexes: Sequence[TarIndex]) -> tuple[int, int]:
        """By the files' bytes of a sample, with headers, and those of all its members."""
        samples = sum(map(len, indexes))
        files = sum(index.stamp.size for index in indexes) / samples
        every = sum(int(index.length.sum()) for index in indexes) / samples
        return max(1, round(EXTENT_BYTES / files)), max(1, round(every))

    def _tabulated(self, indexes: Sequence[TarIndex]) -> FileTable:
        table = super()._tabulated(indexes)
        first = int(np.flatnonzero(table.counts)[0])
        cls, json = (indexes[first].member([suffix]) for suffix in (b"cls", b"json"))
        self._first = _First(first, bool(cls[0][0] >= 0), int(json[0][0]), int(json[1][0]))
        self._members = _members_of(indexes)
        return table

    def _label_path(self) -> str | None:
        """The member of the labels or a path in one; for "auto" the first sample decides."""
        if self._label in (None, "cls"):
            return self._label
        key = LABEL if self._label in ("auto", "json") else str(self._label).removeprefix("json:")
        if self._label != "auto" and path_of((key,)) == key:
            return f"json:{key}"
        self.table()
        if self._label_member is None and self._first is not None:
            self._label_member = self._label_by(self._first, key)
        return self._label_member or None

    def _label_by(self, first: _First, key: str) -> str:
        """The member of the labels by the first sample; "" where it has none, and label="auto"."""
        auto, document = self._label == "auto", None
        if auto and (first.cls or first.json_at < 0):
            return "cls" if first.cls else ""
        if first.json_at >= 0:
            with closing(self._store.open(self._paths[first.shard])) as file:
                try:
                    document = loads(read_at(file, first.json_size, first.json_at))
                except FormatError:
                    auto = False  # the reader of such a sample says what is wrong with it
        if isinstance(document, dict) and key in document:
            return f"json:{path_of((key,))}"
        return "" if auto else f"json:{key}"


def _replay(store: Store, patterns: Sequence[str]) -> Replay | None:
    """The topic that a set was packed of."""
    topic = store.replay(patterns) if isinstance(store, SetStore) else None
    try:
        return None if topic is None else Replay.of(topic)
    except (KeyError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        msg = f"{patterns[0]}: the topic of a set must be what `dali-feed pack` wrote; found {what}"
        raise DataLostError(msg) from error
