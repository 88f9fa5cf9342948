"""Rows of Parquet files: a row group is an extent, read by one reader, and only the columns that were asked for."""

from __future__ import annotations

from functools import partial

from dali_feed.external_sources.group_reader import ReadGroup
from dali_feed.external_sources.group_rows import GroupRows
from dali_feed.external_sources.group_table import GroupTable
from dali_feed.external_sources.parquet_files import read_group, tabulated

__all__ = ["ParquetRows"]


class ParquetRows(GroupRows):
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

    _told, _kind, _files = "ParquetRows", "Parquet", "*.parquet"

    def _tabulated(self, paths: tuple[str, ...]) -> GroupTable:
        return tabulated(paths)

    def _read(self) -> ReadGroup:
        return partial(read_group, self._load())
