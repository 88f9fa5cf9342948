"""What Parquet files say of themselves: their columns and row groups, from their footers alone."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dali_feed.errors import ConfigError, DataLostError, SourceError
from dali_feed.external_sources.arrow_members import Leaf, members_in
from dali_feed.packages import needed
from dali_feed.records.source import Int64s
from dali_feed.storage.contract import piece
from dali_feed.storage.local import LOCAL
from dali_feed.storage.stamp import Stamp

__all__ = ["ParquetTable", "damage", "plain", "tabulated"]

_END = b"PAR1"
_NARROW = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}


@dataclass(frozen=True, slots=True)
class ParquetTable:
    """All row groups of all files, file after file.

    file     which file a group is in, int64 (groups,); `nth` is its number there, `first` the file's row it begins at
    count    rows of each group
    known    the members of a row
    bytes    of each column, a leaf's dotted path: bytes of a row, a mean
    digests  of the footers
    """

    paths: tuple[str, ...]
    stamps: tuple[Stamp, ...]
    file: Int64s
    nth: Int64s
    first: Int64s
    count: Int64s
    known: dict[str, Leaf]
    bytes: dict[str, float]
    digests: tuple[str, ...]

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


def tabulated(paths: tuple[str, ...]) -> ParquetTable:
    """Read all footers.

    Raises:
        ConfigError: the files' columns differ.
        SourceDeniedError, SourceNotFoundError: a file cannot be opened.
        DataLostError: it is cut off. SourceError: it is no Parquet file.
    """
    with needed():
        import pyarrow as pa
        import pyarrow.parquet as pq
    file, nth, first, count, stamps, digests = [], [], [], [], [], []
    sizes: dict[str, int] = {}
    schema: Any = None
    for k, path in enumerate(paths):
        stamp, footer = _footer(path)
        try:
            meta = pq.read_metadata(path)
            found = meta.schema.to_arrow_schema().remove_metadata()
            groups = [meta.row_group(group) for group in range(meta.num_row_groups)]
            parts = [_sizes(group) for group in groups]  # names are decoded here, and may be damaged too
        except damage() as error:
            msg = f"{path}: the footer of a Parquet file must be readable; found: {error}; fetch or write it again"
            raise DataLostError(msg) from error
        if schema is not None and not found.equals(schema):
            odd = next(
                (str(a) for a, b in zip(found, schema, strict=False) if not a.equals(b)), f"{len(found)} columns"
            )
            msg = (
                f"{path}: all files must have the columns of {paths[0]}; found {odd}; give them to sources of their own"
            )
            raise ConfigError(msg)
        schema = found
        row = 0
        for group, (told, its) in enumerate(zip(groups, parts, strict=True)):
            file.append(k)
            nth.append(group)
            first.append(row)
            count.append(told.num_rows)
            row += told.num_rows
            for name, size in its.items():
                sizes[name] = sizes.get(name, 0) + size
        stamps.append(stamp)
        digests.append(hashlib.sha256(footer).hexdigest())
    rows = max(1, sum(count))
    given = pa.schema([part.with_type(plain(part.type)) for part in schema])
    return ParquetTable(
        paths,
        tuple(stamps),
        file=np.array(file, np.int64),
        nth=np.array(nth, np.int64),
        first=np.array(first, np.int64),
        count=np.array(count, np.int64),
        known=members_in(given),
        bytes={name: size / rows for name, size in sizes.items()},
        digests=tuple(digests),
    )


def _sizes(group: Any) -> dict[str, int]:
    """Bytes of each column of a row group, decoded; numbers that are all alike take next to none in the file."""
    columns = [group.column(n) for n in range(group.num_columns)]
    return {
        column.path_in_schema: max(
            _NARROW.get(column.physical_type, 0) * column.num_values, column.total_uncompressed_size
        )
        for column in columns
    }


def _footer(path: str) -> tuple[Stamp, bytes]:
    file = LOCAL.open(path)
    try:
        stamp = file.stamp()
        head, end = piece(file, 4, 0), piece(file, 8, max(0, stamp.size - 8))
        if head != _END:
            msg = f"{path}: a Parquet file begins with {_END!r}; found {head!r} in {stamp.size} bytes; check the path"
            raise SourceError(msg)
        size = int.from_bytes(end[:4], "little")
        if end[4:] != _END or size > stamp.size - 12:
            found = f"it cut off at byte {stamp.size}"
            msg = f"{path}: a Parquet file ends with a footer and {_END!r}; found {found}; fetch it again"
            raise DataLostError(msg)
        return stamp, piece(file, size, stamp.size - 8 - size)
    finally:
        file.close()
