"""Sources without images: what of them a command can read."""

from __future__ import annotations

from dali_feed.errors import ConfigError
from dali_feed.external_sources import MDS, ArrayShards, ArrowFiles, ParquetRows, RecordIO, TFRecords
from dali_feed.records.source import Source

__all__ = ["imageless"]


def imageless(source: Source) -> Source | None:
    """All members of a source that has no images; None for one that has them, or whose records are images by kind.

    ConfigError where it has no members either, so that nothing can be judged.
    """
    if not isinstance(source, MDS | ArrayShards | ArrowFiles | ParquetRows | RecordIO | TFRecords):
        return None
    try:
        source.reader().close()
    except ConfigError as error:
        names = tuple(member.name for member in source.members())
        if not names:
            msg = f"{source!r}: must have images or members to show; found neither; check the path"
            raise ConfigError(msg) from error
        return source.giving(None, names)
    return None
