"""What sources of files share: a file is a partition, a record's number in it its position, and both are found once.

The law: order, ids, snapshot and coordinates depend on the files alone, whatever is asked of their records.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import logging
import os
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from dali_feed.checks import paths_of
from dali_feed.columns import Image, Number
from dali_feed.errors import ConfigError, DataLostError, SourceEmptyError, SourceError
from dali_feed.external_sources.index import DamageError, ReadWindow, RecordIndex, fitting, homes_of, keep, scanned
from dali_feed.external_sources.ranges import EvenSpans, FileTable, RangeReader, Spans, check_file
from dali_feed.records.pieces import Pieces
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import (
    EXTENT_BYTES,
    LABEL,
    Block,
    Extents,
    Int64s,
    Member,
    Reader,
    Snapshot,
    Source,
    check_known,
    check_no_pin,
    fixed_snapshot,
    sampled,
)
from dali_feed.storage.paths import named_twice, shown, unique_names
from dali_feed.storage.sets import store_for
from dali_feed.storage.store import LOCAL, Stamp, Store, sizes_and_times

RECORD = "record"  # what spans of whole records are named
INDEX_THREADS = 8
AT_ONCE = 1 << 13  # records whose index is hashed in less time than threads begin in
AT_HAND = 1e-3  # seconds for which files are looked at in turn: to begin threads takes longer than to look at a few
_log = logging.getLogger("dali_feed")
LOADING = threading.RLock()  # guards the tables of all sources; of the module, so that a source can be pickled


def named_files(
    kind: str, patterns: Sequence[str], matches: Callable[[str, str], Iterable[str]], word: str = "file"
) -> tuple[str, tuple[str, ...]]:
    """The title of a source of that kind, and its files in order: those of each pattern, which `matches` finds.

    Raises ConfigError where nothing is given, or a file is named twice.
    """
    if not patterns:
        msg = f"{kind}: must name at least one {word}; found an empty sequence"
        raise ConfigError(msg)
    paths = tuple(itertools.chain.from_iterable(matches(pattern, kind) for pattern in patterns))
    if twice := named_twice(paths):
        msg = f"{kind}: each {word} may be named once; found {twice} twice; remove one of the two"
        raise ConfigError(msg)
    return f"{kind}({', '.join(map(shown, patterns[:3]))}{', ...' if len(patterns) > 3 else ''})", paths


def files_of(kind: str, paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> tuple[Any, ...]:
    """Title, files and store of what a user gave, a pattern or a path, or several. Raises as `named_files`."""
    patterns = paths_of(kind, paths)
    store = store_for(patterns) if patterns else LOCAL
    return *named_files(kind, patterns, store.matches), store


class FileSource(Source):
    """Files whose records are read by their place. A subclass has `index`, `spans_of`, `sizes_of` and `members`."""

    kind: ClassVar[str]  # of source, in messages
    known = False

    def __init__(self, title: str, paths: tuple[str, ...], store: Store) -> None:
        self._title, self._paths, self._store = title, paths, store
        self._names = unique_names(paths)
        self._table: FileTable | None = None
        self._indexes: list[Any] | None = None  # those that the table was made of, until spans are made of them
        self._spans: dict[tuple[str, ...], Spans | EvenSpans] = {}
        self._sizes = 1, 1

    def __repr__(self) -> str:
        return self._title

    def __getstate__(self) -> dict[str, Any]:
        """Without the indexes: another process, perhaps on another machine, looks at its own files."""
        return self.__dict__ | {"_table": None, "_indexes": None, "_spans": {}}

    @property
    def paths(self) -> tuple[str, ...]:
        """The files in partition order."""
        return self._paths

    @property
    def store(self) -> Store:
        """How their bytes are read."""
        return self._store

    @abstractmethod
    def index(self, path: str) -> Any:
        """Where the records of a file lie, with the file's `stamp` and a `digest`; its length is how many there are."""

    def spans_of(self, indexes: Sequence[Any], members: tuple[str, ...]) -> Spans | EvenSpans:
        """Where what is read for these members lies, by the indexes of all files."""
        raise NotImplementedError

    def sizes_of(self, indexes: Sequence[Any]) -> tuple[int, int]:
        """How many records an extent has, and the mean bytes of one, where `snapshot` is left as it is."""
        del indexes
        return 1, 1

    def finish(self, block: Block, read: list[Pieces], members: tuple[str, ...]) -> None:
        """Make the values of the members of what was read, where they are not that."""

    def table(self) -> FileTable:
        """All records of all files; indexes them where that has not been done."""
        with LOADING:
            if self._table is None:
                indexes = self._indexed()
                self._table = self._tabulated(indexes)
                self._indexes, self._sizes = indexes, self.sizes_of(indexes)
            return self._table

    def spans(self, members: Sequence[str]) -> Spans | EvenSpans:
        """Where what is read for these members lies. Kept; indexes, which are larger, are read again for others."""
        table, wanted = self.table(), tuple(members)
        with LOADING:
            if wanted not in self._spans:
                indexes, self._indexes = self._indexes, None
                if indexes is None:
                    self._check(table)
                    indexes = self._indexed()
                self._spans[wanted] = self.spans_of(indexes, wanted)
            return self._spans[wanted]

    def snapshot(self, pin: Mapping[str, Any] | None = None) -> Snapshot:
        """All records of all files. Indexes the files where that has not been done.

        Raises:
            ConfigError: a pin is given, which only a source that changes has.
            SourceChangedError: a file is not what it was when this source indexed it.
            DataLostError: it is gone, cut off or damaged.
            SourceError: it cannot be indexed; SourceEmptyError: no record at all.
        """
        check_no_pin(self._title, pin)
        table = self._checked_table()
        extent, record_bytes = self._sizes
        return fixed_snapshot(
            *(self._title, self._names, table.counts, self._fingerprint(table)),
            extent=extent,
            record_bytes=record_bytes,
            random_access=self._store.random_access,
        )

    def reader(self, members: Sequence[str], stop: threading.Event | None = None) -> Reader:
        """A reader for one thread; see `dali_feed.records.source.Source`."""
        self.check_members(members)
        wanted = tuple(members)
        return RangeReader(
            self.table(),
            self._store,
            self.spans(wanted),
            stop,
            finish=lambda block, read: self.finish(block, read, wanted),
        )

    def check_members(self, members: Sequence[str]) -> None:
        """Raise ConfigError for a member that no record has."""
        for member in members:
            if not self.can_have(member):
                check_known([member], [each.name for each in self.members()], self._title)

    def file_stamps(self) -> bytes | None:
        """See `dali_feed.records.source.Source.file_stamps`."""
        return sizes_and_times(self.table().stamps)

    def where(self, partition: int, position: int) -> str:
        """`train.tfrecord#118`."""
        return f"{self._names[partition]}#{position}"

    def _fingerprint(self, table: FileTable) -> str:
        digest = hashlib.sha256()
        for name, stamp, count, index in zip(self._names, table.stamps, table.counts, table.digests, strict=True):
            digest.update(f"{name}\0{stamp.size}\0{count}\0{index}\n".encode(errors="surrogateescape"))
        return digest.hexdigest()

    def _checked_table(self) -> FileTable:
        """The table, of files that are what they were when they were indexed."""
        known = self._table
        table = self.table()
        if known is not None:
            self._check(known)
        return table

    def _check(self, table: FileTable) -> None:
        """Check that the files are what they were when they were indexed, before a fingerprint of them is given."""

        def check(path: str, stamp: Stamp) -> None:
            check_file(self._store, path, stamp, self.kind)

        paths, stamps, first = self._paths, table.stamps, 0
        ends = time.monotonic() + AT_HAND
        while first < len(paths) and self._store.random_access and time.monotonic() < ends:
            check(paths[first], stamps[first])
            first += 1
        self._each(check, paths[first:], stamps[first:])

    def _indexed(self) -> list[Any]:
        """The index of each file."""
        return self._each(self.index, self._paths)

    def _each(self, do: Callable[..., Any], *arguments: Iterable[Any]) -> list[Any]:
        """What comes of each file, several at a time; of one alone without a thread."""
        each = list(zip(*arguments, strict=True))
        if len(each) < 2:
            return [do(*one) for one in each]
        with ThreadPoolExecutor(min(INDEX_THREADS, len(each)), "dali-feed-index") as pool:
            return list(pool.map(lambda one: do(*one), each))

    def _tabulated(self, indexes: Sequence[Any]) -> FileTable:
        counts = np.array([len(index) for index in indexes], np.int64)
        if not counts.any():
            msg = f"{self._title}: files must hold records; found none in {len(indexes)} file(s) like {self._paths[0]}"
            raise SourceEmptyError(msg)
        stamps = tuple(index.stamp for index in indexes)
        if counts.sum() <= AT_ONCE:
            digests = [index.digest for index in indexes]
        else:
            digests = self._each(lambda index: index.digest, indexes)
        return FileTable(self.kind, self._paths, stamps, tuple(digests), counts, np.cumsum(counts) - counts)

    def _looked(self, members: Sequence[str]) -> Block:
        """These members of records that are spread over all files."""
        table = self.table()
        file, position = table.located(sampled(int(table.counts.sum())))
        with closing(self.reader(members)) as reader:
            return reader.read(Extents(file, position, position + 1), SlabPool(1 << 20).lease())


def images_and_labels(title: str, image: str | None, label: str | None, wanted: object = None) -> dict[str, Any]:
    """The preset of a source of images with labels, where there is one; `wanted` is what the user said of it.

    Raises ConfigError, which `title` begins, where there is no image.
    """
    if image is None:
        msg = f"{title}: without columns= a batch has images; found none; give image=, or ask for columns="
        raise ConfigError(msg)
    if label is None and wanted == "auto":
        _say_unlabelled(title)
    return {"image": Image(image)} | ({} if label is None else {LABEL: Number(label)})


@functools.cache
def _say_unlabelled(title: str) -> None:
    """Once: who unpacks a batch into images and labels would learn it of an error of Python's."""
    _log.warning(
        '%s: label="auto" found no labels, so a batch is its images alone; give label=None if that is right, else what'
        " holds them, or columns=",
        title,
    )


def members_of(values: Mapping[str, Any], rows: int) -> tuple[Member, ...]:
    """What the values of some rows say of the members: how many rows have each, and how large it is."""
    every = list[Member]()
    for name, its in values.items():
        there = [value for value in its if value is not None]
        sizes = [len(value) if isinstance(value, bytes | memoryview | str) else 0 for value in there]
        if there:
            every.append(Member(name, len(there) / rows, round(sum(sizes) / len(there))))
    return tuple(every)


# What a kind of file with records one behind the other is: how its records are framed, and what is inside a frame.


Frames = tuple[Int64s, Int64s]


@dataclass(frozen=True, slots=True)
class Framing:
    """A kind of file.

    name    for messages, and what marks an index of its files
    frames  where each record lies, with what of its frame is needed to check it: byte and size, int64 (records,) each,
            of a file of so many bytes. It may raise a DamageError
    """

    name: str
    frames: Callable[[ReadWindow, int], Frames]


def load(
    path: str, framing: Framing, index_dir: str | os.PathLike[str] | None = None, store: Store = LOCAL
) -> RecordIndex:
    """The index of a file: the kept one where it still fits, else one by reading its frames, which is then kept."""
    homes, stamp = homes_of(path, index_dir, store), store.stamp(path)
    kept = fitting(homes, stamp, lambda whole: RecordIndex.of(whole, framing.name, stamp))
    if kept is None:
        stamp, (at, size) = scanned(path, store, f"{framing.name} file", partial(_framed, path, framing))
        kept = RecordIndex(stamp, at, size)
        keep(path, homes, kept.to_bytes(framing.name), index_dir, store)
    return kept


def _framed(path: str, framing: Framing, piece: ReadWindow, end: int) -> Frames:
    try:
        return framing.frames(piece, end)
    except DamageError as damage:
        if damage.byte == 0 and (packed := _packed(piece(0, 2))):
            rule = f"must be a {framing.name} file that is not compressed, so that records can be read by position"
            msg = f"{path}: {rule}; found a file compressed by {packed}; unpack it"
            raise SourceError(msg) from None
        msg = (
            f"{path}#{damage.record}: a {framing.name} file must be whole; found at byte {damage.byte} of"
            f" {end}: {damage.what}; fetch or write the file again"
        )
        raise DataLostError(msg) from None


def _packed(head: bytes) -> str:
    """What compressed a file that begins with these two bytes; "" where that cannot be said."""
    if head == b"\x1f\x8b":
        return "GZIP"
    zlib = len(head) == 2 and head[0] & 15 == 8 and int.from_bytes(head, "big") % 31 == 0  # RFC 1950
    return "ZLIB" if zlib else ""


class RecordFiles(FileSource):
    """Files of which records are read whole: a subclass finds them (`index`) and makes members of them (`finish`)."""

    def __init__(self, title: str, paths: tuple[str, ...], store: Store) -> None:
        super().__init__(title, paths, store)
        self._look: tuple[Member, ...] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without what was looked at."""
        return super().__getstate__() | {"_look": None}

    def spans(self, members: Sequence[str]) -> Spans | EvenSpans:
        """Of whole records, whatever is asked of them."""
        del members
        return super().spans((RECORD,))

    def spans_of(self, indexes: Sequence[RecordIndex], members: tuple[str, ...]) -> Spans:
        """Of whole records."""
        at, size = (np.concatenate([getattr(index, name) for index in indexes]) for name in ("at", "size"))
        return Spans.one(members[0], at, size)

    def sizes_of(self, indexes: Sequence[RecordIndex]) -> tuple[int, int]:
        """By the mean record."""
        record_bytes = max(1, round(float(np.concatenate([index.size for index in indexes]).mean())))
        return max(1, EXTENT_BYTES // record_bytes), record_bytes

    def members(self) -> tuple[Member, ...]:
        """What some of the records have."""
        if self._look is None:
            self._look = self.looked()
        return self._look

    def looked(self) -> tuple[Member, ...]:
        """The members of some records."""
        block = self._looked(self.readable())
        block.lease.release()
        return members_of(block.values, len(block.ids))

    @abstractmethod
    def readable(self) -> Sequence[str]:
        """The members that are read of a record to see which it has."""
