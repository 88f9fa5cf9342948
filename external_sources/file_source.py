"""What sources of files of records share: one partition per file, and members by what a format finds in each record.

The law: order, ids, snapshot and coordinates depend on the files alone, whatever is asked of their records.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from dali_feed.checks import paths_of
from dali_feed.errors import (
    ConfigError,
    DaliFeedError,
    DataLostError,
    SourceChangedError,
    SourceEmptyError,
    SourceError,
)
from dali_feed.external_sources.index import Pread, homes_of, keep, mode_of, write_index
from dali_feed.external_sources.ranges import FileTable, RangeReader, Spans, check_file
from dali_feed.external_sources.request import VALUE, Formatted, MemberSource, foremost, with_formats
from dali_feed.formats.format import Format
from dali_feed.records.live import PassingOn
from dali_feed.records.pieces import Pieces
from dali_feed.records.source import LABEL, Block, Extents, Int64s, Member, Reader, Slabs, Snapshot, Source
from dali_feed.storage.local import LOCAL
from dali_feed.storage.paths import shown, unique_names
from dali_feed.storage.sets import store_for
from dali_feed.storage.store import Stamp, Store, read_at, sizes_and_times

__all__ = [
    "BrokenError",
    "FileSource",
    "Frames",
    "Framing",
    "RecordFiles",
    "RecordIndex",
    "build",
    "called",
    "files_of",
    "load",
    "named_files",
]


NO_LABEL = -1
_UNTOLD = {type(None): "none", memoryview: "bytes"}


@contextmanager
def called(name: str) -> Iterator[None]:
    """What is shared with tar shards names their source in its errors; here it is another one."""
    try:
        yield
    except DaliFeedError as error:
        text = str(error)
        if "ShardSet" not in text:
            raise
        raise type(error)(text.replace("ShardSet", name)) from error.__cause__


class RecordReader(RangeReader):
    """Gives the records' bytes, as payloads where they are images, and as members.

    The law: a record whose checksum is wrong costs its own row; a file that is not what was indexed costs the read.
    What a record holds is a view of the slab, but for a record that its file holds in parts.
    """

    def __init__(
        self,
        source: RecordFiles,
        members: tuple[str, ...],
        image: bool,
        slabs: Slabs,
        stop: threading.Event | None,
    ) -> None:
        self.told, self._value = source.name, source.value
        super().__init__(source.paths, source._spans(), members, slabs, stop, source.store, image=image)

    def read(self, extents: Extents) -> Block:
        """See `MemberReader.read`."""
        with called(self.told):
            return super().read(extents)

    def _given(self, block: Block, members: list[Pieces]) -> None:
        values: list[memoryview | None] = [None] * len(block.ids)
        for k, view in enumerate(members[0].views()):
            found = self._value(cast("memoryview", view))
            if isinstance(found, str):
                block.faults[k] = found
            else:
                values[k] = found
        if self._image:
            block.payloads[:] = [memoryview(b"") if found is None else found for found in values]
        block.fields.update(dict.fromkeys(self._members, values))


class LabelledReader(PassingOn):
    """Gives the member that is the label as an int64 array, the field `label`."""

    def __init__(self, reader: Any, member: str) -> None:
        super().__init__(reader)
        self._member = member

    def read(self, extents: Extents) -> Block:
        """The source's block; a record without an integer for a label is a fault."""
        block: Block = self._reader.read(extents)
        found = np.full(len(block.ids), NO_LABEL, np.int64)
        for row, value in enumerate(block.fields.pop(self._member)):
            if row in block.faults:
                continue
            whole = isinstance(value, int | np.integer) or (isinstance(value, float) and value.is_integer())
            if whole and -(1 << 63) <= value < 1 << 63:
                found[row] = value
            else:
                told = repr(value) if isinstance(value, int | float) else _UNTOLD.get(type(value), "several values")
                block.faults[row] = f"the label {self._member!r} must be an integer of 64 bits; found {told}"
        block.fields[LABEL] = found
        return block


# What a kind of file with records one behind the other is: how its records are framed, and what is inside a frame.


Frames = tuple[Int64s, Int64s]


class BrokenError(Exception):
    """What is wrong at which byte, in the frame of which record."""

    def __init__(self, record: int, byte: int, what: str) -> None:
        super().__init__(what)
        self.record, self.byte, self.what = record, byte, what


@dataclass(frozen=True, slots=True)
class Framing:
    """A kind of file.

    name    for messages, and what marks an index of its files
    frames  where each record lies, with what of its frame is needed to check it: byte and size, int64 (records,) each,
            of a file that is read by a `Pread` and has so many bytes. It may raise a BrokenError
    other   of a file that begins with these bytes and is broken at once: what it is instead, and the cure; "" where
            that cannot be said
    value   what such a piece holds; a text that says why it cannot be used
    """

    name: str
    frames: Callable[[Pread, int], Frames]
    other: Callable[[bytes, str], str]
    value: Callable[[memoryview], memoryview | str]


# Where the records of a file lie: found once by its frames, and kept beside the file, as tar shards' indexes are.
#
# The law is that of `tar_index`: an index tells the truth about a whole file, or there is none; one that does not
# belong to the file's present size and mtime, or whose own digest is wrong, is built anew; no file of others is
# replaced.
#
# An index file is the magic, the SHA-256 of the rest, and the rest: four int64 (version, the file's bytes, its mtime in
# ns, records), the name of the kind of file in 16 bytes, then `at` and `size` as int64. Little endian.


MAGIC = b"dfeedrec"
VERSION = 1
_HEAD = 48  # bytes of the four numbers and the name


@dataclass(frozen=True, slots=True)
class RecordIndex:
    """The records of a file.

    stamp     what the file was when it was indexed, or when this index was found to fit
    at, size  int64 (records,): where the piece of each lies that `Framing.value` takes
    digest    SHA-256 of the file's size and of both, as hex
    """

    stamp: Stamp
    at: Int64s
    size: Int64s
    digest: str

    @classmethod
    def of(cls, stamp: Stamp, at: Int64s, size: Int64s, told: bytes = b"") -> RecordIndex:
        """With its digest, of which `told` is a part."""
        columns = [np.ascontiguousarray(column, "<i8").tobytes() for column in (at, size)]
        return cls(stamp, at, size, hashlib.sha256(b"%d\n%b" % (stamp.size, told) + b"".join(columns)).hexdigest())


def build(path: str, framing: Framing, store: Store = LOCAL) -> RecordIndex:
    """Index a file by reading its frames.

    Raises:
        SourceNotFoundError, SourceDeniedError: the file cannot be opened.
        SourceError: it is compressed, or the disk fails.
        DataLostError: it is cut off or damaged.
        SourceChangedError: it is being written.
    """
    file = store.open(path)
    try:
        before = file.stamp()
        at, size = framing.frames(lambda count, first: read_at(file, count, first), before.size)
        after = file.stamp()
    except BrokenError as broken:
        other = framing.other(read_at(file, 16, 0), path) if broken.byte == 0 else ""
        if other:
            msg = (
                f"{path}: must be a {framing.name} file that is not compressed, so that records can be read by "
                f"position; found {other}"
            )
            raise SourceError(msg) from None
        msg = (
            f"{path}#{broken.record}: a {framing.name} file must be whole; found at byte {broken.byte} of"
            f" {before.size}: {broken.what}; fetch or write the file again"
        )
        raise DataLostError(msg) from None
    except OSError as error:
        msg = f"{path}: its records must be readable; found {error.strerror}; check the disk"
        raise SourceError(msg) from error
    finally:
        file.close()
    if changed := before.change(after):
        msg = f"{path}: a file must not be written while it is indexed; {changed}; try again later"
        raise SourceChangedError(msg)
    return RecordIndex.of(before, at, size)


def load(
    path: str, framing: Framing, index_dir: str | os.PathLike[str] | None = None, store: Store = LOCAL
) -> RecordIndex:
    """The index of a file: the kept one where it still fits, else a new one, which is then kept as `tar_index` does.

    Raises:
        SourceDeniedError: `index_dir` is given and cannot be written.
        SourceError: as `build`.
    """
    homes = homes_of(path, index_dir, store)
    for home in homes:
        with contextlib.suppress(OSError, ValueError, SourceError):  # absent, unreadable or stale: built anew
            return _read(home, store.stamp(path), framing)
    index = build(path, framing, store)
    keep(path, homes, lambda home: _write(home, index, framing, mode_of(path, store)), index_dir)
    return index


def _name(framing: Framing) -> bytes:
    return framing.name.encode().ljust(16, b"\0")


def _write(home: Path, index: RecordIndex, framing: Framing, mode: int) -> None:
    head = np.array([VERSION, index.stamp.size, index.stamp.mtime_ns, len(index.at)], "<i8").tobytes()
    body = head + _name(framing) + index.at.astype("<i8").tobytes() + index.size.astype("<i8").tobytes()
    write_index(home, MAGIC + hashlib.sha256(body).digest() + body, mode)


def _read(home: Path, stamp: Stamp, framing: Framing) -> RecordIndex:
    """The index at `home`; ValueError where it is stale or damaged, or of another kind of file."""
    with home.open("rb") as file:
        written = os.fstat(file.fileno()).st_mtime_ns
        whole = file.read()
    body = memoryview(whole)[40:]
    if whole[:8] != MAGIC or len(body) < _HEAD or hashlib.sha256(body).digest() != whole[8:40]:
        msg = "damaged"
        raise ValueError(msg)
    version, size, mtime_ns, records = np.frombuffer(body[:32], "<i8").tolist()
    stale = written < stamp.ctime_ns or bytes(body[32:_HEAD]) != _name(framing)
    if (version, size, mtime_ns) != (VERSION, stamp.size, stamp.mtime_ns) or stale:
        msg = "stale"
        raise ValueError(msg)
    at, length = np.frombuffer(body[_HEAD:], "<i8").reshape(2, records)
    if records and (at.min() < 0 or length.min() < 0 or (at > size - length).any()):
        msg = "no index of this file"
        raise ValueError(msg)
    return RecordIndex.of(stamp, at, length)


EXTENT_BYTES = 8 << 20
INDEX_THREADS = 8
LOOKED_AT = 64  # records, for the members that there are
LOADING = threading.Lock()  # of the module, so that a source can be pickled


def named_files(
    name: str, patterns: Sequence[str], matches: Callable[[str], Iterable[str]], word: str = "file"
) -> tuple[str, tuple[str, ...]]:
    """The title of a source, and its files in order: those of each pattern, which `matches` finds.

    Raises ConfigError where nothing is given, or a file is named twice.
    """
    if not patterns:
        msg = f"{name}: must name at least one {word}; found an empty sequence"
        raise ConfigError(msg)
    with called(name):
        paths = tuple(itertools.chain.from_iterable(map(matches, patterns)))
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        msg = f"{name}: each {word} may be named once; found {twice} twice; remove one of the two"
        raise ConfigError(msg)
    return f"{name}({', '.join(map(shown, patterns[:3]))}{', ...' if len(patterns) > 3 else ''})", paths


class FileSource:
    """Files whose records are read by their place: a file is a partition, a record's number in it its position.

    A subclass indexes them (`_tabulated`), reads them (`reader`), and says how large records are (`_sizes_of`).
    """

    name: str  # of the source, in messages

    def __init__(self, title: str, paths: tuple[str, ...], store: Store) -> None:
        self._title, self._paths, self._store = title, paths, store
        self._names = unique_names(paths)
        self._table: Any = None

    def __repr__(self) -> str:
        return self._title

    def __getstate__(self) -> dict[str, Any]:
        """Without the index: another process, perhaps on another machine, looks at its own files."""
        return self.__dict__ | {"_table": None}

    @property
    def paths(self) -> tuple[str, ...]:
        """The files in partition order."""
        return self._paths

    @property
    def store(self) -> Store:
        """How their bytes are read."""
        return self._store

    def snapshot(self, pin: Mapping[str, Any] | None = None) -> Snapshot:
        """All records of all files. Indexes the files where that has not been done.

        Raises:
            ConfigError: a pin is given, which only a source that changes has.
            SourceChangedError: a file is not what it was when this source indexed it.
            DataLostError: it is gone, cut off or damaged.
            SourceError: it cannot be indexed; SourceEmptyError: no record at all.
        """
        if pin is not None:
            msg = f"{self._title}: its files are fixed and take no pin; found {dict(pin)!r}"
            raise ConfigError(msg)
        table = self._checked_table()
        digest = hashlib.sha256()
        for name, stamp, count, index in zip(table.names, table.stamps, table.counts, table.digests, strict=True):
            digest.update(f"{name}\0{stamp.size}\0{count}\0{index}\n".encode(errors="surrogateescape"))
        extent, record_bytes = self._sizes_of(table)
        return Snapshot(
            source=self._title,
            names=table.names,
            starts=np.zeros(len(table.counts), np.int64),
            stops=table.counts.copy(),
            extent=extent,
            record_bytes=record_bytes,
            random_access=self._store.random_access,
            interleaved=False,
            fingerprint=digest.hexdigest(),
        )

    def file_stamps(self) -> bytes:
        """See `records.source.Stamped`."""
        return sizes_and_times(self._spans().stamps)

    def where(self, partition: int, position: int) -> str:
        """`train.tfrecord#118`."""
        return f"{self._names[partition]}#{position}"

    def _spans(self) -> Any:
        """Where all records lie; looks at the files where that has not been done."""
        with LOADING:
            if self._table is None:
                self._table = self._tabulated()
            return self._table

    def _checked_table(self) -> Any:
        """The same, of files that are what they were when they were indexed."""
        known = self._table
        table = self._spans()
        if known is not None:
            self._check(known)
        return table

    def _check(self, table: FileTable) -> None:
        """Check that the files are what they were when they were indexed, before a fingerprint of them is given."""
        with called(self.name):
            self._each(lambda path, stamp: check_file(self._store, path, stamp), self._paths, table.stamps)

    def _each(self, do: Callable[..., Any], *given: Iterable[Any]) -> list[Any]:
        """What comes of each file, several at a time."""
        with ThreadPoolExecutor(min(INDEX_THREADS, len(self._paths)), "dali-feed-index") as pool:
            return list(pool.map(do, *given))

    def _of_files(self, indexes: Sequence[Any], counts: Int64s) -> dict[str, Any]:
        """The fields of a `FileTable`. SourceEmptyError where no file has a record."""
        if not counts.any():
            msg = f"{self._title}: files must hold records; found none in {len(indexes)} file(s) like {self._paths[0]}"
            raise SourceEmptyError(msg)
        return {
            "names": self._names,
            "stamps": tuple(index.stamp for index in indexes),
            "digests": tuple(index.digest for index in indexes),
            "counts": counts,
            "base": np.cumsum(counts) - counts,
        }

    def _tabulated(self) -> Any:
        """Index all files."""
        raise NotImplementedError

    def _sizes_of(self, table: Any) -> tuple[int, int]:
        """How many records an extent has, and the mean bytes of one."""
        raise NotImplementedError


def files_of(name: str, given: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> tuple[Any, ...]:
    """Title, files and store of what a user gave: a pattern or a path, or a sequence of them.

    Raises:
        ConfigError: nothing is given, or a file is named twice.
        SourceNotFoundError: a pattern matches nothing, or a named file is not there.
    """
    patterns = paths_of(name, given)
    store = store_for(patterns) if patterns else LOCAL
    return *named_files(name, patterns, store.matches), store


class RecordFiles(FileSource):
    """Records of files. A subclass finds them (`_index`) and says what is the image, what is the label and the format.

    value  what a piece of a file holds (see `Framing.value`)
    form   what reads a record's members; None: a record is bytes, and its one member is `value`
    """

    def __init__(
        self,
        title: str,
        paths: tuple[str, ...],
        store: Store,
        value: Callable[[memoryview], memoryview | str],
        form: Format | None,
    ) -> None:
        super().__init__(title, paths, store)
        self.value, self._form = value, form
        self._look: tuple[Member, ...] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without what was looked at."""
        return super().__getstate__() | {"_look": None}

    @property
    def fields(self) -> tuple[str, ...]:
        """('label',) or ()."""
        return (LABEL,) if self._chosen()[1] else ()

    def members(self) -> tuple[Member, ...]:
        """What some of the records have: `value`, or what the format finds in them."""
        if self._look is None:
            self._look = self._looked()
        return self._look

    def giving(self, image: str | None, members: tuple[str, ...]) -> Source:
        """The same records with other members; see `records.members`."""
        if self._form is None:
            return self._giving(image, members)
        chosen = {name: self._foremost(name) for name in members}

        def made(base: Source, inside: Any, asked: tuple[Any, ...], openers: Any) -> Source:
            by = {each.name: each for each in asked}
            return Formatted(base, inside, tuple(replace(by[chosen[name]], name=name) for name in members), openers)

        image = None if image is None else self._foremost(image)
        names, forms = tuple(dict.fromkeys(chosen.values())), {VALUE: self._form}
        return with_formats(self._giving, forms.get, image, names, full=f"{VALUE}:{{}}".format, made=made)

    def reader(self, slabs: Slabs | None = None, stop: threading.Event | None = None) -> Reader:
        """A reader for one thread; see `dali_feed.records.source.Source`.

        Raises:
            ConfigError: there is no image to give without `columns=`.
        """
        image, label = self._chosen()
        if image is None:
            msg = f"{self._title}: without columns= a batch has images; found none; give image=, or ask for columns="
            raise ConfigError(msg)
        reader = self.giving(image, (label,) if label else ()).reader(slabs, stop)
        return LabelledReader(reader, label) if label else reader

    def _foremost(self, name: str) -> str:
        """Of names that all records have or none, the foremost that is known; any other as it is."""
        known = getattr(self._form, "names", None)
        return name if known is None else foremost(name, known, f"records of {self._title} have the members")

    def _chosen(self) -> tuple[str | None, str | None]:
        """The members that are the image and the label where nobody asks for columns."""
        raise NotImplementedError

    def _index(self, path: str) -> RecordIndex:
        """The records of a file."""
        raise NotImplementedError

    def _giving(self, image: str | None, members: tuple[str, ...]) -> Source:
        for name in (*(() if image is None else (image,)), *members):
            foremost(name, (VALUE,), f"records of {self._title} are bytes, and have the member")
        return MemberSource(self, members, partial(RecordReader, self, members, image is not None))

    def _tabulated(self) -> Spans:
        indexes = self._each(self._index, self._paths)
        of_files = self._of_files(indexes, np.array([len(index.at) for index in indexes], np.int64))
        at, size = (np.concatenate([getattr(index, name) for index in indexes])[None] for name in ("at", "size"))
        return Spans(**of_files, at=at, size=size, crc=(None,))

    def _sizes_of(self, table: Spans) -> tuple[int, int]:
        record_bytes = max(1, round(float(table.size[0].mean())))
        return max(1, EXTENT_BYTES // record_bytes), record_bytes

    def _looked(self) -> tuple[Member, ...]:
        """The members of records that are spread over all files; of those that cannot be read there are none."""
        table = self._spans()
        rows = np.unique(np.linspace(0, table.at.shape[1] - 1, LOOKED_AT).round().astype(np.int64))
        partition = np.searchsorted(table.base + table.counts, rows, side="right")
        position = rows - table.base[partition]
        reader = self._giving(None, (VALUE,)).reader()
        sizes: dict[str, list[int]] = {}
        try:
            block = reader.read(Extents(partition, position, position + 1))
            for value in block.fields[VALUE]:
                if value is not None:
                    for name, size in self._sizes(value).items():
                        sizes.setdefault(name, []).append(size)
            block.lease.release()
        finally:
            reader.close()
        return tuple(Member(name, len(each) / len(rows), round(sum(each) / len(each))) for name, each in sizes.items())

    def _sizes(self, value: memoryview) -> dict[str, int]:
        if self._form is None:
            return {VALUE: len(value)}
        try:
            found = self._form.members(value)
        except Exception:  # noqa: BLE001 - a format may raise anything; the record's reader will say so
            return {}
        return {
            name: len(each) if isinstance(each, bytes | memoryview | str) else 0
            for name, each in found.items()
            if each is not None
        }
