"""The reader in a user's graph, as a source of ours: DALI's file reader on a folder becomes a FileList of that folder,
its webdataset reader a ShardSet whose members are the graph's inputs.

The law: what decides which records there are, in which order and on which rank is honoured or refused; how they are
read is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from dali_feed.columns.image import Image
from dali_feed.columns.kind import Kind
from dali_feed.columns.text import Bytes
from dali_feed.engines.dali.graph_reader import GraphReader, readers_in
from dali_feed.engines.dali.read_pipeline import Opened
from dali_feed.errors import ConfigError
from dali_feed.external_sources import FileList, ShardSet
from dali_feed.external_sources.shards import IMAGE_SUFFIXES
from dali_feed.records.members import alternatives
from dali_feed.records.source import LABEL

__all__ = ["ReadByGraph", "read_by_graph"]

_FILES, _SHARDS = "readers__File", "readers__Webdataset"
_TAKEN = {"file_root", "shard_id", "num_shards", "random_shuffle", "shuffle_after_epoch"}
_TAKEN_OF_SHARDS = {
    "paths", "ext", "dtypes", "shard_id", "num_shards", "random_shuffle", "index_paths", "case_sensitive_extensions",
    "missing_component_behavior",
}  # fmt: skip
_IDLE = {  # how to read, not what; and which samples fill up a batch, which the policy decides here
    "name", "seed", "device", "initial_fill", "prefetch_queue_depth", "read_ahead", "lazy_init", "dont_use_mmap",
    "use_o_direct", "tensor_init_bytes", "bytes_per_sample_hint", "skip_cached_images", "pad_last_batch",
    "stick_to_shard", "shuffle_after_epoch_seed", "preserve", "_display_name", "_module",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReadByGraph:
    """The records, whether they are shuffled, and which part this process reads: None where the graph does not say.

    columns  the graph's inputs, where they are not the source's images and labels
    """

    source: FileList | ShardSet
    shuffle: bool
    rank: int | None
    world_size: int | None
    columns: Mapping[str, Kind] | None = None


def read_by_graph(opened: Opened, reader_name: str | None) -> ReadByGraph:
    """The source of a pipeline that was given without one; its reader is replaced by inputs that the source feeds.

    Raises ConfigError with everything that the user must edit where that cannot be done, a SourceError for the folder.
    """
    readers = readers_in(opened.pipe)
    if not readers:
        _refuse(opened, "the graph has no reader to take it from")
    if len(readers) > 1:
        _refuse(opened, f"the graph has {len(readers)} readers, {', '.join(each.name for each in readers)}")
    reader = readers[0]
    given = reader.arguments
    if reader.kind not in (_FILES, _SHARDS):
        ours = "readers.file(file_root=...) and readers.webdataset(paths=, ext=) alone are read by us as they are"
        _refuse(opened, f"its reader is {reader.kind}, and {ours}")
    if reader.kind == _SHARDS:
        return _of_shards(opened, reader, reader_name)
    other = sorted(name for name in given if name not in _TAKEN | _IDLE)
    if other or not given.get("file_root"):
        _refuse(
            opened, f"its reader is given {', '.join(other) or 'no file_root'}, and only a file_root can be read by us"
        )
    _check_name(opened, reader, reader_name)
    root = given["file_root"]
    files = FileList.from_folder(root)
    _check_count(reader, root, len(files))
    reader.replace(("image", LABEL))
    return _read(files, given, None)


def _read(source: FileList | ShardSet, given: Mapping[str, Any], columns: Mapping[str, Kind] | None) -> ReadByGraph:
    """With what the reader was told of order and shards."""
    shards = given.get("num_shards")
    return ReadByGraph(
        source,
        shuffle=bool(given.get("random_shuffle") or given.get("shuffle_after_epoch")),
        rank=None if shards is None else int(given.get("shard_id", 0)),
        world_size=None if shards is None else int(shards),
        columns=columns,
    )


def _check_name(opened: Opened, reader: GraphReader, reader_name: str | None) -> None:
    if reader_name is not None and reader_name != reader.name:
        msg = (
            f"reader_name: must be the name of the reader in the graph of {opened.name}, {reader.name!r};"
            f" found {reader_name!r}"
        )
        raise ConfigError(msg)


def _of_shards(opened: Opened, reader: GraphReader, reader_name: str | None) -> ReadByGraph:
    """A ShardSet, and a column per output: those whose suffix is an image's are screened, others are their bytes."""
    given = reader.arguments
    other = sorted(name for name in given if name not in _TAKEN_OF_SHARDS | _IDLE)
    types = given.get("dtypes") or ()
    if not all(str(kind).endswith(".UINT8") for kind in (types if isinstance(types, list | tuple) else [types])):
        other.append("dtypes other than UINT8")
    if other or not given.get("paths") or not given.get("ext"):
        found = ", ".join(other) or "no paths or no ext"
        _refuse(opened, f"its reader is given {found}, and only paths and ext can be read by us")
    _check_name(opened, reader, reader_name)
    suffixes = [given["ext"]] if isinstance(given["ext"], str) else list(given["ext"])
    columns: dict[str, Kind] = {}
    for k, suffix in enumerate(suffixes):
        parts = alternatives(suffix)
        name = parts[0] if parts and parts[0] not in columns else f"{suffix}-{k}"
        image = all(part.lower().rpartition(".")[2] in IMAGE_SUFFIXES for part in parts)
        columns[name] = Image(suffix) if image else Bytes(suffix)
    source = ShardSet(given["paths"])
    reader.replace(tuple(columns))
    return _read(source, given, columns)


def _check_count(reader: GraphReader, root: str, ours: int) -> None:
    """Refuse a folder where DALI, with one level of folders and other suffixes, counts other records than we do."""
    try:
        theirs = reader.count()
    except RuntimeError as error:
        msg = f"reader {reader.name}: DALI must be able to list {root}; it says {str(error).strip().splitlines()[0]}"
        raise ConfigError(msg) from error
    if theirs != ours:
        msg = (
            f"reader {reader.name}: DALI counts {theirs} files in {root}, and FileList.from_folder, which lists "
            f"images as torchvision does, {ours}. Say which of the two is right: give source=FileList(paths, "
            "labels), and put fn.external_source(name='image'), fn.external_source(name='label') in the "
            "reader's place"
        )
        raise ConfigError(msg)


def _refuse(opened: Opened, why: str) -> NoReturn:
    """Raise the error with everything that the user must edit, at once."""
    msg = (
        f"pipeline {opened.name}: there must be a source to read from, because {why}. Three edits: give the "
        "iterator source=, such as FileList.from_folder(root), ShardSet('train-*.tar') or KafkaTopic(topic, "
        "servers); put fn.external_source(name='image'), fn.external_source(name='label') in the reader's "
        "place; leave out reader_name= and size=, because the iterator knows its size (loop.size, len(loop))"
    )
    raise ConfigError(msg)
