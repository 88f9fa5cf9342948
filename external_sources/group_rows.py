"""Rows of files of tables, which are read group by group: what Parquet files and Arrow files have in common."""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from dali_feed.checks import paths_of
from dali_feed.errors import ConfigError, SourceEmptyError
from dali_feed.external_sources.arrow_columns import is_image
from dali_feed.external_sources.files import EXTENT_BYTES
from dali_feed.external_sources.formatted import forms_of, with_formats
from dali_feed.external_sources.group_reader import Chosen, GroupReader, ReadGroup
from dali_feed.external_sources.group_table import GroupTable
from dali_feed.external_sources.member_source import MemberSource, foremost
from dali_feed.external_sources.shard_reader import check_shard
from dali_feed.formats.format import Format
from dali_feed.records.members import Member
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import LABEL, Reader, Slabs, Snapshot, Source
from dali_feed.storage.local import LOCAL
from dali_feed.storage.paths import matches, unique_names

__all__ = ["GroupRows"]

_LOADING = threading.Lock()  # of the module, so that a source can be pickled


class GroupRows(ABC):
    """Rows of files, file after file; a group of rows is a partition. See `ParquetRows` and `ArrowFiles`."""

    _told: ClassVar[str]  # the source's name
    _kind: ClassVar[str]  # of its files
    _files: ClassVar[str]  # how those of a folder are named together

    def __init__(
        self,
        files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        image: str | None = "image",
        label: str | None = "auto",
        *,
        format: Mapping[str, Format | str] | None = None,  # noqa: A002  what users call it
    ) -> None:
        named = paths_of(f"{self._told}: files", files)
        found = (matches(name, self._told, self._files) for name in named)
        self._paths = tuple(itertools.chain.from_iterable(found))
        if not named or len(set(self._paths)) < len(self._paths):
            msg = f"{self._told}: each file must be named once, and there must be at least one; found {named!r:.200}"
            raise ConfigError(msg)
        self._title = f"{self._told}({', '.join(named[:3])}{', ...' if len(named) > 3 else ''})"
        self._names = unique_names(self._paths)
        self._image, self._label = image, label
        self._forms = forms_of(format, None, self._title)
        self._table: GroupTable | None = None

    @abstractmethod
    def _tabulated(self, paths: tuple[str, ...]) -> GroupTable:
        """Look at all files."""

    @abstractmethod
    def _read(self) -> ReadGroup:
        """What reads groups, for one reader."""

    def __repr__(self) -> str:
        return self._title

    def __getstate__(self) -> dict[str, Any]:
        """Without the footers: another process, perhaps on another machine, looks at its own files."""
        return self.__dict__ | {"_table": None}

    def __len__(self) -> int:
        return int(self._load().count.sum())

    @property
    def paths(self) -> tuple[str, ...]:
        """The files in order."""
        return self._paths

    @property
    def fields(self) -> tuple[str, ...]:
        """('label',) or (); label="auto" needs the footers to know."""
        return () if self._labels() is None else (LABEL,)

    def snapshot(self, pin: Mapping[str, Any] | None = None) -> Snapshot:
        """All rows. The fingerprint is made of the files' names, sizes and footers.

        Raises:
            ConfigError: a pin is given, which only a source that changes has; files with other columns.
            SourceChangedError: a file is not what it was at first. DataLostError: it is gone, or cut.
            SourceError: it is no such file; SourceEmptyError: no row at all.
        """
        if pin is not None:
            msg = f"{self._title}: {self._kind} files are fixed and take no pin; found {dict(pin)!r}"
            raise ConfigError(msg)
        table = self._load()
        for path, stamp in zip(table.paths, table.stamps, strict=True):
            check_shard(LOCAL, path, stamp, self._told)
        if not table.count.any():
            msg = f"{self._title}: {self._kind} files must hold rows; found none in {len(self._paths)} file(s)"
            raise SourceEmptyError(msg)
        digest = hashlib.sha256()
        for name, stamp, footer in zip(self._names, table.stamps, table.digests, strict=True):
            digest.update(f"{name}\0{stamp.size}\0{footer}\n".encode(errors="surrogateescape"))
        asked = [name for name in (self._image, self._labels()) if name in table.known]
        record_bytes = table.record_bytes([name for name in asked if name is not None])
        most = int(table.count.max())
        extent = min(most, max(1, EXTENT_BYTES // record_bytes)) if table.views else most
        return Snapshot(
            source=self._title,
            names=tuple(f"{self._names[f]}[{n}]" for f, n in zip(table.file.tolist(), table.nth.tolist(), strict=True)),
            starts=np.zeros(len(table.count), np.int64),
            stops=table.count.copy(),
            extent=extent,
            record_bytes=record_bytes,
            random_access=table.views,
            interleaved=False,
            fingerprint=digest.hexdigest(),
        )

    def members(self) -> tuple[Member, ...]:
        """The columns, and the parts of structs among them; their mean size as the footers tell it."""
        table = self._load()
        return tuple(Member(name, 1.0, table.record_bytes([name])) for name in table.known)

    def giving(self, image: str | None, members: tuple[str, ...]) -> Source:
        """The same rows with other members; see `records.members`."""
        return with_formats(self._giving, self._forms.get, image, members)

    def _giving(self, image: str | None, members: tuple[str, ...]) -> Source:
        known, told = self._load().known, f"{self._title} has the columns"
        asked = {name: foremost(name, known, told) for name in members}
        picture = None if image is None else self._checked(foremost(image, known, told))
        return _GroupMembers(self, Chosen(picture, asked), image, members)

    def reader(self, slabs: Slabs | None = None, stop: threading.Event | None = None) -> Reader:
        """A reader of images and labels. ConfigError where there is no column of images."""
        known = self._load().known
        if self._image not in known:
            found = f"no column {self._image!r} among {', '.join(known)}"
            msg = f"{self._title}: without columns= a batch has images; found {found}; give image=, or columns="
            raise ConfigError(msg)
        label = self._labels()
        chosen = Chosen(self._checked(str(self._image)), {} if label is None else {LABEL: label}, strict=True)
        return self.opened(chosen, SlabPool() if slabs is None else slabs, stop)

    def where(self, partition: int, position: int) -> str:
        """`train.parquet#1017`, the row in the file."""
        table = self._load()
        return f"{self._names[int(table.file[partition])]}#{int(table.first[partition]) + position}"

    def opened(self, chosen: Chosen, slabs: Slabs, stop: threading.Event | None) -> GroupReader:
        """A reader of those members."""
        return GroupReader(self._title, self._load(), self._read(), chosen, slabs, stop)

    def sized(self, chosen: Chosen) -> int:
        """The mean size of those members of a row."""
        members = [*([] if chosen.image is None else [chosen.image]), *chosen.fields.values()]
        return self._load().record_bytes(members)

    def _load(self) -> GroupTable:
        with _LOADING:
            if self._table is None:
                self._table = self._tabulated(self._paths)
            return self._table

    def _labels(self) -> str | None:
        """The column of labels. ConfigError where it has no integers."""
        from pyarrow import types

        leaf = None if self._label is None else self._load().known.get(LABEL if self._label == "auto" else self._label)
        if leaf is not None and types.is_integer(leaf.kind):
            return ".".join(leaf.path)
        if self._label in (None, "auto"):
            return None
        found = "no such column" if leaf is None else str(leaf.kind)
        msg = f"{self._title}: label must name a column of integers; found {found} at {self._label!r}; give label=None"
        raise ConfigError(msg)

    def _checked(self, image: str) -> str:
        kind = self._load().known[image].kind
        if not is_image(kind):
            rule = "an image is made of binary, of paths as string, or of a struct of bytes and path"
            msg = f"member {image!r}: {rule}; found {kind} in {self._title}"
            raise ConfigError(msg)
        return image


class _GroupMembers(MemberSource):
    """Rows with the members that were asked for. See `records.members.Members.giving`."""

    def __init__(self, source: GroupRows, chosen: Chosen, image: str | None, members: tuple[str, ...]) -> None:
        super().__init__(source, image, members)
        self._rows, self._chosen = source, chosen

    def snapshot(self, pin: Mapping[str, Any] | None = None) -> Snapshot:
        """The files', with the size of these members."""
        return replace(self._rows.snapshot(pin), record_bytes=self._rows.sized(self._chosen))

    def _opened(self, slabs: Slabs, stop: threading.Event) -> Reader:
        return self._rows.opened(self._chosen, slabs, stop)
