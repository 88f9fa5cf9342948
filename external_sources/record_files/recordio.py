"""RecordIO files, as MXNet's im2rec and `mxnet.recordio` write them."""

from __future__ import annotations

import os
from collections.abc import Sequence

from dali_feed.external_sources.record_files.irheader import IRHeader
from dali_feed.external_sources.record_files.kept_index import RecordIndex, load
from dali_feed.external_sources.record_files.reader import Files
from dali_feed.external_sources.record_files.recordio_frames import RECORDIO
from dali_feed.external_sources.record_files.source import RecordFiles, files_of

__all__ = ["RecordIO"]


class RecordIO(RecordFiles):
    """Records of `.rec` files with MXNet's header. A file is a partition, a record's index in it is its position.

    paths      one pattern or path, or a sequence of them; patterns as in `TFRecords`
    label      whether the header's label is given: a whole number, of which there is one. Vectors are read with
               `columns=`, as `Array("label", "float32", (k,))`
    index_dir  where indexes are kept; None: beside each file, else in the user's cache

    Members are `image` (the bytes after the header), `label`, `id` and `id2`. The `.idx` file is not needed: records
    come in the order in which they lie in the file. There is no checksum in the format.

    Raises:
        ConfigError: an argument has a value that is not allowed, or a file is named twice.
        SourceNotFoundError: a pattern matches nothing, or a named file is not there.
    """

    def __init__(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        label: bool = True,
        index_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        title, found, store = files_of("RecordIO", paths)
        super().__init__(title, Files("RecordIO", found, store, RECORDIO.value), IRHeader())
        self._label, self._index_dir = label, index_dir

    def _index(self, path: str) -> RecordIndex:
        return load(path, RECORDIO, self._index_dir, self._files.store)

    def _chosen(self) -> tuple[str, str | None]:
        return "image", "label" if self._label else None
