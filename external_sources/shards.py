"""Webdataset-style tar shards: many images and their labels in few large files.

A shard is a partition and a sample's index in it is its position. Samples are found through an index of
byte ranges (`tar_index`), so any record costs one read, and neighbours are read in one go.
"""

from __future__ import annotations

import difflib
import json
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dali_feed.checks import paths_of
from dali_feed.errors import ConfigError, DataLostError, FormatError
from dali_feed.external_sources import tar as tar_index
from dali_feed.external_sources.file_source import EXTENT_BYTES, LOADING, FileSource, named_files
from dali_feed.external_sources.ranges import RangeReader, Spans
from dali_feed.external_sources.replay import Replay
from dali_feed.external_sources.request import MemberSource, forms_of, with_formats
from dali_feed.external_sources.tar import TarIndex, expected
from dali_feed.formats.format import Format
from dali_feed.formats.json_text import loads
from dali_feed.formats.named import format_of
from dali_feed.records.pieces import Pieces
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import (
    LABEL,
    Block,
    Int64s,
    Member,
    Reader,
    Slabs,
    Snapshot,
    Source,
    alternatives,
)
from dali_feed.storage.local import LOCAL
from dali_feed.storage.sets import SetStore, store_for
from dali_feed.storage.store import Store, read_at

__all__ = ["ShardSet"]


NO_LABEL = -1


@dataclass(frozen=True, slots=True)
class _ImageSpans(Spans):
    """Where images lie and, where `label` is their suffix and, for JSON, their key, the labels."""

    label: tuple[str, str] | None


class _LabelReader(RangeReader):
    """Reads images, and labels beside them as numbers: `kind` is their suffix and, for JSON, the key."""

    def __init__(
        self,
        paths: tuple[str, ...],
        table: _ImageSpans,
        slabs: Slabs,
        stop: threading.Event | None,
        store: Store,
    ) -> None:
        self._kind = table.label
        super().__init__(paths, table, () if self._kind is None else (LABEL,), slabs, stop, store, image=True)

    def _compare(self, block: Block, row: Int64s, members: list[Pieces]) -> None:
        super()._compare(block, row, members)
        if self._kind is not None:
            block.fields[LABEL] = _labels(members[1], self._kind, block.faults)

    def _named(self) -> tuple[str, ...]:
        return ("the image",) if self._kind is None else ("the image", "the label")


def _labels(texts: Pieces, kind: tuple[str, str], faults: dict[int, str]) -> Int64s:
    """The label of each row, int64; a row without one gets NO_LABEL and, if nothing else is wrong, a fault."""
    quick = texts.decimals() if kind[0] == "cls" else None  # digits in every row, the common case
    if quick is not None:
        quick[list(faults)] = NO_LABEL
        return quick
    found = []
    for k, text in enumerate(texts):
        label = NO_LABEL
        if text is None:
            faults.setdefault(k, f"the sample has no .{kind[0]} member for its label")
        elif k not in faults:
            try:
                label = _label(bytes(text), kind)
            except ValueError as error:
                faults[k] = str(error)
        found.append(label)
    return np.array(found, np.int64)


def _label(text: bytes, kind: tuple[str, str]) -> int:
    """The label in a member; ValueError says why there is none."""
    suffix, key = kind
    value: Any
    if suffix == "cls":
        try:
            value = int(text) if b"_" not in text else None  # to Python 1_0 is a number too
        except ValueError:
            value = None
        if value is None:
            msg = f"the label must be decimal text; found {text[:40]!r}"
            raise ValueError(msg)
    else:
        try:
            record = loads(text)
        except FormatError as error:
            msg = f"the .json member with the label cannot be parsed: {error}"
            raise ValueError(msg) from error
        value = record.get(key) if isinstance(record, dict) else None
        if not isinstance(value, int) or isinstance(value, bool):
            msg = f"the label must be an integer under the key {key!r} of the .json member; found {str(value)[:40]!r}"
            raise ValueError(msg)
    if not -(1 << 63) <= value < 1 << 63:
        msg = "the label must fit in 64 bits"
        raise ValueError(msg)
    return int(value)


# Members of tar samples: which suffixes there are, and any of them read in one go with the others of its sample.


def members_of(indexes: Sequence[TarIndex]) -> tuple[Member, ...]:
    """The suffixes of all samples, the most frequent first, then by name."""
    count: dict[bytes, int] = {}
    size: dict[bytes, int] = {}
    for index in indexes:
        for k, suffix in enumerate(index.suffixes):
            has = index.suffix == k
            count[suffix] = count.get(suffix, 0) + int(has.sum())
            size[suffix] = size.get(suffix, 0) + int(index.length[has].sum())
    samples = max(1, sum(map(len, indexes)))
    found = [
        Member(suffix.decode(errors="replace"), min(1.0, n / samples), round(size[suffix] / n))
        for suffix, n in count.items()
        if n
    ]
    return tuple(sorted(found, key=lambda member: (-member.share, member.name)))


class _ShardMembers(MemberSource):
    """Samples of a ShardSet with the members that were asked for. See `records.members.Members.giving`."""

    def __init__(self, shards: ShardSet, image: str | None, members: tuple[str, ...]) -> None:
        super().__init__(shards, members, self._reader)
        self._image = image
        self._shards, self._loading = shards, threading.Lock()  # which guards the table
        self._table: Spans | None = None

    def snapshot(self, pin: Mapping[str, Any] | None = None) -> Snapshot:
        """The ShardSet's, with the size of these members. ConfigError for a member that no sample has."""
        table = self._tabulated()  # first: it reads the indexes, of which the ShardSet then knows all it needs
        found = self._source.snapshot(pin)
        if self._shards.replays:  # an order depends on the size of a record, and is the topic's
            return found
        return replace(found, record_bytes=max(1, round(float(table.size.sum(axis=0).mean()))))

    def _reader(self, slabs: Slabs, stop: threading.Event) -> Reader:
        image, table = self._image is not None, self._tabulated()
        made = RangeReader(self._shards.paths, table, self._members, slabs, stop, self._shards.store, image=image)
        return self._shards._replayed(made)

    def _tabulated(self) -> Spans:
        with self._loading:
            if self._table is None:
                shards, indexes = self._shards._indexed()
                asked = (*(() if self._image is None else (self._image,)), *self._members)
                every = [_rows(name, indexes) for name in asked]
                self._table = Spans(
                    shards.names,
                    shards.stamps,
                    shards.digests,
                    shards.counts,
                    shards.base,
                    at=np.stack([at for at, _ in every]),
                    size=np.stack([size for _, size in every]),
                    crc=tuple(expected(indexes, _suffixes(name)) if self._shards._checked else None for name in asked),
                )
            return self._table


def _suffixes(name: str) -> list[bytes]:
    return [part.lower().encode() for part in alternatives(name)]


def _rows(name: str, indexes: Sequence[TarIndex]) -> tuple[Int64s, Int64s]:
    found = [index.member(_suffixes(name)) for index in indexes]
    at, size = (np.concatenate(each) for each in zip(*found, strict=True))
    if not at.any():
        there = [member.name for member in members_of(indexes)]
        near = difflib.get_close_matches(name, there, n=1)
        cure = f"Did you mean {near[0]!r}?" if near else "`dali-feed inspect` lists them"
        msg = f"member {name!r}: no sample has it; found {', '.join(there[:8])}. {cure}"
        raise ConfigError(msg)
    return at, size


IMAGE_SUFFIXES = ("jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff", "gif", "avif", "ppm", "pgm")
_ENDINGS = {"json": "json", "npy": "npy", "msgpack": "msgpack", "mp": "msgpack"}


class ShardSet(FileSource):
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

    Raises:
        ConfigError: an argument has a value that is not allowed, or a shard is named twice.
        SourceNotFoundError: a pattern matches nothing, or a named file is not there.
    """

    name = "ShardSet"

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
        if isinstance(image, str) or not isinstance(image, Iterable) or not image or not all(map(str, image)):
            msg = f"ShardSet: image must be a non-empty sequence of suffixes such as ('jpg', 'png'); found {image!r}"
            raise ConfigError(msg)
        known = label in (None, "auto", "cls", "json") or (str(label).startswith("json:") and str(label)[5:])
        if not known:
            msg = f"ShardSet: label must be 'auto', 'cls', 'json', 'json:KEY' or None; found {label!r}"
            raise ConfigError(msg)
        patterns = paths_of("ShardSet: shards", shards)
        store = store_for(patterns, storage_options) if patterns else LOCAL
        title, paths = named_files("ShardSet", patterns, store.matches, "shard")
        super().__init__(title, paths, store)
        self._image = tuple(s.lower().lstrip(".").encode() for s in image)
        self._label, self._checked = label, check
        self._index_dir = index_dir
        self._forms = {name.lower(): form for name, form in forms_of(format, None, self._title).items()}
        self._replay = _replay(self._store, patterns)

    @property
    def replays(self) -> bool:
        """Whether its partitions and positions are those of a topic that it was packed of."""
        return self._replay is not None

    @property
    def fields(self) -> tuple[str, ...]:
        """('label',) or (); label="auto" needs the index to know."""
        if self._label == "auto":
            return ("label",) if self._spans().label else ()
        return ("label",) if self._label else ()

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

    def _sizes_of(self, table: _ImageSpans) -> tuple[int, int]:
        per_sample = sum(stamp.size for stamp in table.stamps) / int(table.counts.sum())
        return max(1, round(EXTENT_BYTES / per_sample)), max(1, round(float(table.size[0].mean())))

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
        names = lambda: (member.name for member in self.members())  # noqa: E731
        return with_formats(self._giving, self.form_of, image, members, known=names)

    def _giving(self, image: str | None, members: tuple[str, ...]) -> Source:
        return _ShardMembers(self, image, members)

    def reader(self, slabs: Slabs | None = None, stop: threading.Event | None = None) -> Reader:
        """A reader for one thread; see `dali_feed.records.source.Source`."""
        table = self._spans()
        pool = SlabPool() if slabs is None else slabs
        return self._replayed(_LabelReader(self._paths, table, pool, stop, self._store))

    def _replayed(self, reader: Reader) -> Reader:
        """A reader of samples as one of the topic's records, where these are."""
        return reader if self._replay is None else self._replay.reader(reader, self._spans().counts)

    def where(self, partition: int, position: int) -> str:
        """`train-0007.tar#118`; of a topic's records `train[3]@41872 (train-0007.tar#118)`."""
        if self._replay is not None:
            return self._replay.where(partition, position, self._names, self._spans().counts)
        return super().where(partition, position)

    def _indexes(self) -> list[tar_index.TarIndex]:
        return self._each(lambda path: tar_index.load(path, self._index_dir, self._store), self._paths)

    def _indexed(self) -> tuple[_ImageSpans, list[tar_index.TarIndex]]:
        """The table, and the indexes that it was made of; they are kept on disk and not in memory."""
        with LOADING:
            indexes, known = self._indexes(), self._table
            table = self._table = self._of_indexes(indexes) if known is None else known
        if known is not None:
            self._check(known)
        return table, indexes

    def _tabulated(self) -> _ImageSpans:
        return self._of_indexes(self._indexes())

    def _of_indexes(self, indexes: list[tar_index.TarIndex]) -> _ImageSpans:
        of_files = self._of_files(indexes, np.array([len(index) for index in indexes], np.int64))
        label = self._label_of(indexes)
        wanted = [list(self._image), *([[label[0].encode()]] if label else [])]
        found = [[index.member(suffixes) for index in indexes] for suffixes in wanted]
        return _ImageSpans(
            **of_files,
            at=np.stack([np.concatenate([at for at, _ in each]) for each in found]),
            size=np.stack([np.concatenate([size for _, size in each]) for each in found]),
            crc=tuple(expected(indexes, suffixes) if self._checked else None for suffixes in wanted),
            label=label,
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
        file = self._store.open(self._paths[shard])
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
