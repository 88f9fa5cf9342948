"""Keys of samples: what the files of one sample are called, up to the first dot.

The law: a record's key says which record it is, however the set is cut into shards, and no two of a shard are equal.
A record of a topic is `p00003-0000000041872`: thirteen digits hold every offset that a sample id can, so keys sort as
their records do.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from dali_feed.errors import ConfigError
from dali_feed.external_sources import FileList, ShardSet
from dali_feed.external_sources.files import shared_folder
from dali_feed.external_sources.tar import key_length, tar_keys
from dali_feed.records.source import Snapshot, Source

KINDS = ("auto", "own", "number")
_HELD = 8  # shards whose keys are kept


@dataclass(frozen=True, slots=True)
class Keys:
    """`of(partition, position, number)` is a record's key; `kind` says how it is made.

    unique  whether no two records can have the same
    """

    kind: str
    of: Callable[[int, int, int], str]
    unique: bool = True


def keys_of(source: Source, kind: str) -> Keys:
    """How the records of a source are called.

    kind  "number": nine digits, its place in the source. "own": what it is called there: partition and offset of a
          topic, a tar sample's own key, a file's path below the common folder. "auto": its own where that is sure to be
          no other's, else the number

    Raises ConfigError for "own" where records have no names, or the same.
    """
    if kind not in KINDS:
        raise ConfigError(f"keys: must be one of {', '.join(KINDS)}; found {kind!r}")
    if kind == "number":
        return Keys("number", _number)
    if is_log(source) or (isinstance(source, ShardSet) and source.replays):
        return Keys("offset", _offset)
    if isinstance(source, ShardSet):
        return _of_shards(source, kind)
    if isinstance(source, FileList):
        names = _of_files(source.paths)
        if names is not None:
            return Keys("path", lambda _, position, __: names[position])
    if kind == "own":
        raise ConfigError(f'keys="own": records of {source!r} have no names, or the same names; give keys="number"')
    return Keys("number", _number)


def is_log(source: Source) -> bool:
    """Whether records are those of a topic, with headers; asked without loading what reads topics."""
    return source.inner == "value" and not source.any_names and source.can_have("headers.*")


def by_place(keys: Keys, snapshot: Snapshot) -> Keys:
    """The same, numbered by where a record stands in the whole source, and not among some that were chosen."""
    lengths = snapshot.stops - snapshot.starts
    before = (np.cumsum(lengths) - lengths - snapshot.starts).tolist()
    return replace(keys, of=lambda partition, position, _: keys.of(partition, position, before[partition] + position))


def _number(_: int, __: int, number: int) -> str:
    return f"{number:09d}"


def _offset(partition: int, position: int, _: int) -> str:
    return f"p{partition:05d}-{position:013d}"


def _of_files(paths: Sequence[str]) -> list[str] | None:
    """Paths below the common folder, without their endings; None where two would be the same, or one is odd."""
    skip, names = len(shared_folder(min(paths), max(paths))), list[str]()
    for path in paths:
        folder, slash, name = path[skip:].lstrip(os.sep).rpartition("/")
        stem = os.path.splitext(name)[0].replace(".", "_")  # noqa: PTH122  a string
        names.append(f"{folder}{slash}{stem}" if stem else "")
    every = "".join(names)
    try:
        every.encode()
    except UnicodeEncodeError:  # a name in another encoding than the file system's
        return None
    odd = "\0" in every or not all(map(_is_key, names))
    return None if odd or len(set(names)) < len(names) else names


def _is_key(name: str) -> bool:
    """Whether a file of a tar that begins so and goes on with a dot is of a sample that is called so, inside of it."""
    encoded = os.fsencode(name)
    return bool(name) and ".." not in name.split("/") and key_length(encoded + b".") == len(encoded)


def _of_shards(source: ShardSet, kind: str) -> Keys:
    """The samples' own; behind their shard's name where shards count from the start again."""
    firsts = [key for path in source.paths for key in tar_keys(path, 1, source.store)]
    lock = threading.Lock()  # guards the cache, so that a shard's headers are read once

    @lru_cache(_HELD)
    def read(shard: int) -> list[str]:  # an index has no keys
        return tar_keys(source.paths[shard], None, source.store)

    def own(shard: int, sample: int, _: int) -> str:
        with lock:
            return read(shard)[sample]

    if len(set(firsts)) == len(firsts) or kind == "own":
        return Keys("own", own, unique=False)
    names = [name.removesuffix(".tar").replace(".", "_") for name in source.snapshot().names]
    if not all(_is_key(f"{name}/0") for name in names):
        return Keys("number", _number)
    return Keys("shard and own", lambda shard, sample, _: f"{names[shard]}/{own(shard, sample, 0)}", unique=False)
