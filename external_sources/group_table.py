"""What files of tables say of themselves: their columns, and the groups of rows that they are read by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dali_feed.errors import ConfigError
from dali_feed.external_sources.arrow_members import Leaf, members_in
from dali_feed.records.source import Int64s
from dali_feed.storage.store import Stamp

__all__ = ["GroupTable", "check_columns", "damage", "members_given", "plain"]


@dataclass(frozen=True, slots=True)
class GroupTable:
    """All row groups, or record batches, of all files, file after file.

    group    what such a part is called in messages; told, the source
    file     which file a group is in, int64 (groups,); `nth` is its number there, `first` the file's row it begins at
    count    rows of each group
    known    the members of a row
    bytes    of each column, a leaf's dotted path: bytes of a row, a mean
    digests  of the footers, or what a file has instead
    views    whether rows are read where they lie, so that one costs no more than its own bytes
    """

    told: str
    group: str
    paths: tuple[str, ...]
    stamps: tuple[Stamp, ...]
    file: Int64s
    nth: Int64s
    first: Int64s
    count: Int64s
    known: dict[str, Leaf]
    bytes: dict[str, float]
    digests: tuple[str, ...]
    views: bool = False

    @classmethod
    def of(  # noqa: PLR0913  a row of facts for each file
        cls,
        told: str,
        group: str,
        paths: tuple[str, ...],
        stamps: Sequence[Stamp],
        rows: Sequence[Sequence[int]],
        *,
        known: dict[str, Leaf],
        bytes: dict[str, float],  # noqa: A002  the field's name
        digests: Sequence[str],
        views: bool = False,
    ) -> GroupTable:
        """The table of files whose groups have so many `rows`: those of the first file, of the second, ..."""
        groups = np.array([len(its) for its in rows], np.int64)
        file = np.repeat(np.arange(len(rows), dtype=np.int64), groups)
        begins = (np.cumsum(groups) - groups)[file]  # the first group of each group's file
        count = np.array([n for its in rows for n in its], np.int64)
        before = np.cumsum(count) - count
        nth, first = np.arange(len(count), dtype=np.int64) - begins, before - before[begins]
        return cls(
            told, group, paths, tuple(stamps), file, nth, first, count,
            known=known, bytes=bytes, digests=tuple(digests), views=views,
        )  # fmt: skip

    def columns(self, members: Sequence[str]) -> list[str]:
        """The columns that these members are read from."""
        return list(dict.fromkeys(".".join(self.known[name].path) for name in members))

    def record_bytes(self, members: Sequence[str]) -> int:
        """The mean size of these members of a row, as the footers tell it."""
        parts = self.columns(members)
        inside = [size for name, size in self.bytes.items() if any(f"{name}.".startswith(f"{part}.") for part in parts)]
        return max(1, round(sum(inside)))


def plain(kind: Any) -> Any:
    """A column's type as its values are given: of a dictionary that of its values."""
    from pyarrow import types

    return kind.value_type if types.is_dictionary(kind) else kind


def damage() -> tuple[type[BaseException], ...]:
    """What pyarrow raises where a file is not what it should be."""
    import pyarrow as pa

    return (pa.ArrowException, OSError, ValueError, MemoryError)


def check_columns(path: str, found: Any, first: str, schema: Any) -> None:
    """Raise ConfigError where the file at `path` has other columns than the one at `first`."""
    if not found.equals(schema):
        odd = next((str(a) for a, b in zip(found, schema, strict=False) if not a.equals(b)), f"{len(found)} columns")
        msg = f"{path}: all files must have the columns of {first}; found {odd}; make a source of each kind"
        raise ConfigError(msg)


def members_given(schema: Any) -> dict[str, Leaf]:
    """The members of rows of that schema, dictionaries as their values."""
    import pyarrow as pa

    return members_in(pa.schema([part.with_type(plain(part.type)) for part in schema]))
