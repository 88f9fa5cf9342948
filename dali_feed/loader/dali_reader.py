"""The reader in a user's graph, as a source of ours: DALI's file reader on a folder becomes a FileList of that folder.

The law: what decides which records there are, in which order and on which rank is honoured or refused; how they are
read is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from dali_feed.engines.dali.graph_reader import GraphReader, readers_in
from dali_feed.engines.dali.read_pipeline import Opened
from dali_feed.errors import ConfigError
from dali_feed.external_sources import FileList
from dali_feed.records.source import LABEL

__all__ = ["ReadByGraph", "read_by_graph"]

_FILES = "readers__File"
_TAKEN = {"file_root", "shard_id", "num_shards", "random_shuffle", "shuffle_after_epoch"}
_IDLE = {  # how to read, not what; and which samples fill up a batch, which the policy decides here
    "name", "seed", "device", "initial_fill", "prefetch_queue_depth", "read_ahead", "lazy_init", "dont_use_mmap",
    "use_o_direct", "tensor_init_bytes", "bytes_per_sample_hint", "skip_cached_images", "pad_last_batch",
    "stick_to_shard", "shuffle_after_epoch_seed", "preserve", "_display_name", "_module",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReadByGraph:
    """The files, whether they are shuffled, and which part this process reads: None where the graph does not say."""

    source: FileList
    shuffle: bool
    rank: int | None
    world_size: int | None


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
    if reader.kind != _FILES:
        _refuse(opened, f"its reader is {reader.kind}, and readers.file(file_root=...) alone is read by us as it is")
    other = sorted(name for name in given if name not in _TAKEN | _IDLE)
    if other or not given.get("file_root"):
        _refuse(opened, f"its reader is given {', '.join(other) or 'no file_root'}, and only a file_root is taken over")
    if reader_name is not None and reader_name != reader.name:
        msg = (
            f"reader_name: must be the name of the reader in the graph of {opened.name}, {reader.name!r};"
            f" found {reader_name!r}"
        )
        raise ConfigError(msg)
    root = given["file_root"]
    files = FileList.from_folder(root)
    _check_count(reader, root, len(files))
    reader.replace(("image", LABEL))
    shards = given.get("num_shards")
    return ReadByGraph(
        files,
        shuffle=bool(given.get("random_shuffle") or given.get("shuffle_after_epoch")),
        rank=None if shards is None else int(given.get("shard_id", 0)),
        world_size=None if shards is None else int(shards),
    )


def _check_count(reader: GraphReader, root: str, ours: int) -> None:
    """Refuse a folder where DALI, with one level of folders and other suffixes, counts other records than we do."""
    try:
        theirs = reader.count()
    except RuntimeError as error:
        msg = f"reader {reader.name}: DALI must be able to list {root}; it says {str(error).strip().splitlines()[0]}"
        raise ConfigError(msg) from error
    if theirs != ours:
        msg = (
            f"reader {reader.name}: DALI counts {theirs} files in {root}, and FileList.from_folder, which lists images"
            f" as torchvision does, {ours}. Say which are meant: give source=FileList(paths, labels), and put"
            f" fn.external_source(name='image'), fn.external_source(name='label') in the reader's place"
        )
        raise ConfigError(msg)


def _refuse(opened: Opened, why: str) -> NoReturn:
    """Raise the error with everything that the user must edit, at once."""
    msg = (
        f"pipeline {opened.name}: there must be a source to read from, for {why}. Three edits: give the iterator"
        " source=, such as FileList.from_folder(root), ShardSet('train-*.tar') or KafkaTopic(topic, servers); put"
        " fn.external_source(name='image'), fn.external_source(name='label') in the reader's place; leave out"
        " reader_name= and size=, for the iterator tells its size (loop.size, len(loop))"
    )
    raise ConfigError(msg)
