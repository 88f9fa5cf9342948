"""What sources of files of records share: one partition per file, and members by what a format finds in each record.

The law: order, ids, snapshot and coordinates depend on the files alone, whatever is asked of their records.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from dali_feed.checks import paths_of
from dali_feed.errors import ConfigError, SourceEmptyError
from dali_feed.external_sources.formatted import VALUE, Formatted, with_formats
from dali_feed.external_sources.member_source import MemberSource, foremost
from dali_feed.external_sources.record_files.kept_index import RecordIndex
from dali_feed.external_sources.record_files.reader import Files, LabelledReader, RecordReader, RecordTable, called
from dali_feed.external_sources.shard_reader import check_shard
from dali_feed.formats.format import Format
from dali_feed.records.members import Member
from dali_feed.records.source import LABEL, Extents, Reader, Slabs, Snapshot, Source
from dali_feed.storage.paths import unique_names
from dali_feed.storage.sets import store_for

__all__ = ["RecordFiles", "files_of"]

EXTENT_BYTES = 8 << 20
INDEX_THREADS = 8
LOOKED_AT = 64  # records, for the members that there are
_LOADING = threading.Lock()  # of the module, so that a source can be pickled


def files_of(
    name: str,
    given: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
) -> tuple[str, tuple[str, ...], Any]:
    """The title, the files in order and the store of what a user gave: a pattern or a path, or a sequence of them.

    Raises:
        ConfigError: nothing is given, or a file is named twice.
        SourceNotFoundError: a pattern matches nothing, or a named file is not there.
    """
    patterns = paths_of(name, given)
    if not patterns:
        msg = f"{name}: must name at least one file; found an empty sequence"
        raise ConfigError(msg)
    store = store_for(patterns)
    with called(name):
        paths = tuple(itertools.chain.from_iterable(store.matches(pattern) for pattern in patterns))
    twice = next((path for path in paths if paths.count(path) > 1), None) if len(set(paths)) < len(paths) else None
    if twice is not None:
        msg = f"{name}: each file may be named once; found {twice} twice; remove one of the two"
        raise ConfigError(msg)
    return f"{name}({', '.join(patterns[:3])}{', ...' if len(patterns) > 3 else ''})", paths, store


class RecordFiles:
    """Records of files. A subclass finds them (`_index`) and says what is the image, what is the label and the format.

    form  what reads a record's members; None: a record is bytes, and its one member is `value`
    """

    def __init__(self, title: str, files: Files, form: Format | None) -> None:
        self._title, self._files, self._form = title, files, form
        self._names = unique_names(files.paths)
        self._table: RecordTable | None = None
        self._look: tuple[Member, ...] | None = None

    def __repr__(self) -> str:
        return self._title

    def __getstate__(self) -> dict[str, Any]:
        """Without the index: another process, perhaps on another machine, looks at its own files."""
        return self.__dict__ | {"_table": None, "_look": None}

    @property
    def paths(self) -> tuple[str, ...]:
        """The files in partition order."""
        return self._files.paths

    @property
    def fields(self) -> tuple[str, ...]:
        """('label',) or ()."""
        return (LABEL,) if self._chosen()[1] else ()

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
        known = self._table
        table = self._load()
        if known is not None:
            self._check(known)
        sizes = [stamp.size for stamp in table.stamps]
        digest = hashlib.sha256()
        for name, size, count, index in zip(table.names, sizes, table.counts, table.digests, strict=True):
            digest.update(f"{name}\0{size}\0{count}\0{index}\n".encode(errors="surrogateescape"))
        record_bytes = max(1, round(float(table.size.mean())))
        return Snapshot(
            source=self._title,
            names=table.names,
            starts=np.zeros(len(table.counts), np.int64),
            stops=table.counts.copy(),
            extent=max(1, EXTENT_BYTES // record_bytes),
            record_bytes=record_bytes,
            random_access=self._files.store.random_access,
            interleaved=False,
            fingerprint=digest.hexdigest(),
        )

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

    def where(self, partition: int, position: int) -> str:
        """`train.tfrecord#118`."""
        return f"{self._names[partition]}#{position}"

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
        return _Records(self, self._files, self._load, image, members)

    def _load(self) -> RecordTable:
        with _LOADING:
            if self._table is None:
                self._table = self._tabulated()
            return self._table

    def _tabulated(self) -> RecordTable:
        paths = self._files.paths
        with ThreadPoolExecutor(min(INDEX_THREADS, len(paths)), "dali-feed-index") as pool:
            indexes = list(pool.map(self._index, paths))
        counts = np.array([len(index.at) for index in indexes], np.int64)
        if not counts.any():
            msg = f"{self._title}: files must hold records; found none in {len(paths)} file(s) like {paths[0]}"
            raise SourceEmptyError(msg)
        return RecordTable(
            names=self._names,
            stamps=tuple(index.stamp for index in indexes),
            digests=tuple(index.digest for index in indexes),
            counts=counts,
            base=np.cumsum(counts) - counts,
            at=np.concatenate([index.at for index in indexes]),
            size=np.concatenate([index.size for index in indexes]),
        )

    def _check(self, table: RecordTable) -> None:
        """Check that the files are what they were when they were indexed, before a fingerprint of them is given."""
        check = partial(check_shard, self._files.store)
        with called(self._files.name), ThreadPoolExecutor(min(INDEX_THREADS, len(self._files.paths))) as pool:
            for _ in pool.map(check, self._files.paths, table.stamps):
                pass

    def _looked(self) -> tuple[Member, ...]:
        """The members of records that are spread over all files; of those that cannot be read there are none."""
        table = self._load()
        rows = np.unique(np.linspace(0, len(table.at) - 1, LOOKED_AT).round().astype(np.int64))
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


class _Records(MemberSource):
    """The records as bytes, as payloads or as a member. See `records.members.Members.giving`."""

    def __init__(
        self,
        source: Source,
        files: Files,
        load: Callable[[], RecordTable],
        image: str | None,
        members: tuple[str, ...],
    ) -> None:
        super().__init__(source, image, members)
        self._files, self._load = files, load

    def _opened(self, slabs: Slabs, stop: threading.Event) -> Reader:
        image = self._image is not None
        return RecordReader(self._files, self._load(), slabs, stop, image=image, members=self._members)
