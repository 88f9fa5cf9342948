"""Indexes of tar shards for DALI's own `fn.readers.webdataset`, in the form v1.2 of its tool `wds2idx`.

The first line is the version and how many samples there are, then a line per sample: of each member its suffix, the
byte where its data begins, how many there are, and its path. Blanks stand between them, so that no path may have one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from dali_feed.errors import ConfigError, SourceError
from dali_feed.external_sources import ShardSet
from dali_feed.external_sources.tar_headers import members
from dali_feed.external_sources.tar_index import key_length, reads_of
from dali_feed.packing.place import folder_at
from dali_feed.storage.durable import sync_folder, write_whole
from dali_feed.storage.sets import store_for

__all__ = ["dali_index"]

VERSION = b"v1.2"
_BLANKS = b" \t\r\n\v\f"


def dali_index(
    shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], folder: str | os.PathLike[str]
) -> list[Path]:
    """Write an index of each shard into a folder; returns their paths, in the shards' order.

    shards  tar files as ShardSet takes them
    folder  where the indexes go; it is made where it is not there

    `fn.readers.webdataset(paths=[...], index_paths=[...])` takes both lists. `SHARD.tar` gets `SHARD.idx`.

    Raises:
        ConfigError: two shards of one name, a path with a blank in it, or the folder cannot be written.
        SourceError: a shard cannot be indexed; `ShardSet` lists how.
    """
    home = folder_at(folder, "a folder of indexes")
    given = ShardSet(shards, label=None)
    given.snapshot()  # what is wrong with a shard is said as everywhere
    names = [f"{Path(path).name.removesuffix('.tar')}.idx" for path in given.paths]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        msg = (
            f"{home}: each shard needs an index of its own; {twice} would be the index of two; index their folders "
            "separately"
        )
        raise ConfigError(msg)
    made = []
    try:
        home.mkdir(parents=True, exist_ok=True)
        for path, name in zip(given.paths, names, strict=True):
            write_whole(home / name, _told(path))
            made.append(home / name)
        sync_folder(home)
    except OSError as error:
        msg = f"{home}: indexes must lie where it can be written; found: {error.strerror or error}; give another folder"
        raise ConfigError(msg) from error
    return made


def _told(path: str) -> bytes:
    """The index of a shard. An odd sample, such as one of no suffix, is passed over as ShardSet does."""
    lines: list[bytes] = []
    last = b""
    file = store_for([path]).open(path)
    try:
        for member, at, size in members(reads_of(file), file.stamp().size):
            dot = key_length(member)
            if not dot:
                continue
            if any(blank in _BLANKS for blank in member):
                found = member.decode(errors="replace")
                msg = (
                    f"{path}: paths in DALI's index must have no spaces; found {found!r}; pack it again, keys='number'"
                )
                raise ConfigError(msg)
            part = b"%s %d %d %s" % (member[dot + 1 :], at, size, member)
            if member[:dot] != last:
                last = member[:dot]
                lines.append(part)
            else:
                lines[-1] += b" " + part
    except OSError as error:
        msg = f"{path}: its headers must be readable; found {error.strerror}; check the disk"
        raise SourceError(msg) from error
    finally:
        file.close()
    return b"%s %d\n" % (VERSION, len(lines)) + b"".join(line + b"\n" for line in lines)
