"""Rows of Parquet files: a row group is an extent, read by one reader, and only the columns that were asked for."""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dali_feed.errors import ConfigError, SourceEmptyError
from dali_feed.external_sources.arrow_columns import is_image
from dali_feed.external_sources.formatted import forms_of, with_formats
from dali_feed.external_sources.member_source import MemberSource, foremost
from dali_feed.external_sources.parquet_files import ParquetTable, tabulated
from dali_feed.external_sources.parquet_reader import Chosen, ParquetReader
from dali_feed.external_sources.shard_reader import check_shard
from dali_feed.formats.contract import Format
from dali_feed.records.members import Member
from dali_feed.records.slabs import SlabPool
from dali_feed.records.source import LABEL, Reader, Slabs, Snapshot, Source
from dali_feed.storage.local import LOCAL
from dali_feed.storage.paths import matches, unique_names

__all__ = ["ParquetRows"]

_LOADING = threading.Lock()  # of the module, so that a ParquetRows can be pickled


class ParquetRows:
    """Rows of Parquet files, file after file. A row group is a partition.

    files   a pattern or path, or several, as `ShardSet` takes them
    image   the column of encoded images of batches without `columns=`: binary, paths as string, or a struct of `bytes`
            and `path` as Hugging Face's datasets keep them. None: there is none
    label   the column of integers beside them; None for none, "auto": `label` where there is such a column
    format  what columns of bytes or texts hold, for `columns=`: column -> format; see docs/formats.md

    Shuffling is by row groups, in windows of several: `Shuffle(window=...)` says how many. Its members are its columns,
    and the parts of structs, `image.bytes`.

    Raises:
        ConfigError: a file is named twice. SourceNotFoundError: a pattern matches nothing, or a file is not there.
    """

    def __init__(
        self,
        files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        image: str | None = "image",
        label: str | None = "auto",
        *,
        format: Mapping[str, Format | str] | None = None,  # noqa: A002  what users call it
    ) -> None:
        named = [os.fspath(each) for each in ([files] if isinstance(files, str | os.PathLike) else files)]
        found = (matches(name, "ParquetRows", "*.parquet") for name in named)
        self._paths = tuple(itertools.chain.from_iterable(found))
        if not named or len(set(self._paths)) < len(self._paths):
            msg = f"ParquetRows: files must be named once each, and one at least; found {named!r:.200}"
            raise ConfigError(msg)
        self._title = f"ParquetRows({', '.join(named[:3])}{', ...' if len(named) > 3 else ''})"
        self._names = unique_names(self._paths)
        self._image, self._label = image, label
        self._forms = forms_of(format, None, self._title)
        self._table: ParquetTable | None = None

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
            SourceError: it is no Parquet file; SourceEmptyError: no row at all.
        """
        if pin is not None:
            msg = f"{self._title}: Parquet files are fixed as they are and take no pin; found {dict(pin)!r}"
            raise ConfigError(msg)
        table = self._load()
        for path, stamp in zip(table.paths, table.stamps, strict=True):
            check_shard(LOCAL, path, stamp, "ParquetRows")
        if not table.count.any():
            msg = f"{self._title}: Parquet files must hold rows; found none in {len(self._paths)} file(s)"
            raise SourceEmptyError(msg)
        digest = hashlib.sha256()
        for name, stamp, footer in zip(self._names, table.stamps, table.digests, strict=True):
            digest.update(f"{name}\0{stamp.size}\0{footer}\n".encode(errors="surrogateescape"))
        asked = [name for name in (self._image, self._labels()) if name in table.known]
        return Snapshot(
            source=self._title,
            names=tuple(f"{self._names[f]}[{n}]" for f, n in zip(table.file.tolist(), table.nth.tolist(), strict=True)),
            starts=np.zeros(len(table.count), np.int64),
            stops=table.count.copy(),
            extent=int(table.count.max()),
            record_bytes=table.record_bytes([name for name in asked if name is not None]),
            random_access=False,
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
        return _ParquetMembers(self, Chosen(picture, asked), image, members)

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

    def opened(self, chosen: Chosen, slabs: Slabs, stop: threading.Event | None) -> ParquetReader:
        """A reader of those members."""
        return ParquetReader(self._title, self._load(), chosen, slabs, stop)

    def sized(self, chosen: Chosen) -> int:
        """The mean size of those members of a row."""
        members = [*([] if chosen.image is None else [chosen.image]), *chosen.fields.values()]
        return self._load().record_bytes(members)

    def _load(self) -> ParquetTable:
        with _LOADING:
            if self._table is None:
                self._table = tabulated(self._paths)
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


class _ParquetMembers(MemberSource):
    """Rows with the members that were asked for. See `records.members.Members.giving`."""

    def __init__(self, source: ParquetRows, chosen: Chosen, image: str | None, members: tuple[str, ...]) -> None:
        super().__init__(source, image, members)
        self._rows, self._chosen = source, chosen

    def snapshot(self, pin: Mapping[str, Any] | None = None) -> Snapshot:
        """The files', with the size of these members."""
        return replace(self._rows.snapshot(pin), record_bytes=self._rows.sized(self._chosen))

    def _opened(self, slabs: Slabs, stop: threading.Event) -> Reader:
        return self._rows.opened(self._chosen, slabs, stop)
