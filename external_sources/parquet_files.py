"""What Parquet files say of themselves: their columns and row groups, from their footers alone."""

from __future__ import annotations

import functools
import hashlib
from typing import Any

from dali_feed.errors import DataLostError, SourceError
from dali_feed.external_sources.group_table import GroupTable, check_columns, damage, members_given
from dali_feed.packages import needed
from dali_feed.storage.local import LOCAL
from dali_feed.storage.store import Stamp, read_at

__all__ = ["read_group", "tabulated"]

_END = b"PAR1"
_NARROW = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}


def tabulated(paths: tuple[str, ...]) -> GroupTable:
    """Read all footers.

    Raises:
        ConfigError: the files' columns differ.
        SourceDeniedError, SourceNotFoundError: a file cannot be opened.
        DataLostError: it is cut off. SourceError: it is no Parquet file.
    """
    with needed():
        import pyarrow.parquet as pq
    rows, stamps, digests = [], [], []
    sizes: dict[str, int] = {}
    schema: Any = None
    for path in paths:
        stamp, footer = _footer(path)
        try:
            meta = pq.read_metadata(path)
            found = meta.schema.to_arrow_schema().remove_metadata()
            groups = [meta.row_group(group) for group in range(meta.num_row_groups)]
            parts = [_sizes(group) for group in groups]  # names are decoded here, and may be damaged too
        except damage() as error:
            msg = f"{path}: the footer of a Parquet file must be readable; found: {error}; fetch or write it again"
            raise DataLostError(msg) from error
        if schema is not None:
            check_columns(path, found, paths[0], schema)
        schema = found
        rows.append([group.num_rows for group in groups])
        for its in parts:
            for name, size in its.items():
                sizes[name] = sizes.get(name, 0) + size
        stamps.append(stamp)
        digests.append(hashlib.sha256(footer).hexdigest())
    every = max(1, sum(map(sum, rows)))
    means = {name: size / every for name, size in sizes.items()}
    known = members_given(schema)
    return GroupTable.of("ParquetRows", "row group", paths, stamps, rows, known=known, bytes=means, digests=digests)


def read_group(table: GroupTable, group: int, columns: list[str]) -> Any:
    """These columns of a row group, its pages checked where they carry a checksum. Raises what `damage` says."""
    import pyarrow.parquet as pq

    n = int(table.file[group])
    meta = _parsed(table.paths[n], table.stamps[n])
    with pq.ParquetFile(table.paths[n], metadata=meta, page_checksum_verification=True) as file:
        return file.read_row_group(int(table.nth[group]), columns=columns, use_threads=False)


@functools.lru_cache(maxsize=8)
def _parsed(path: str, stamp: Stamp) -> Any:
    """The footer of the file that has that stamp, parsed once, as it says where all of the groups lie."""
    import pyarrow.parquet as pq

    del stamp  # whoever reads compares it with the file's, before and after
    return pq.read_metadata(path)


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
        head, end = read_at(file, 4, 0), read_at(file, 8, max(0, stamp.size - 8))
        if head != _END:
            msg = f"{path}: a Parquet file begins with {_END!r}; found {head!r} in {stamp.size} bytes; check the path"
            raise SourceError(msg)
        size = int.from_bytes(end[:4], "little")
        if end[4:] != _END or size > stamp.size - 12:
            found = f"that it was cut off at byte {stamp.size}"
            msg = f"{path}: a Parquet file ends with a footer and {_END!r}; found {found}; fetch it again"
            raise DataLostError(msg)
        return stamp, read_at(file, size, stamp.size - 8 - size)
    finally:
        file.close()
