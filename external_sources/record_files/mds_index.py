"""The `index.json` of a set in Mosaic's MDS format, and what each of its shard files must be.

The law: nothing in it is believed that a file could not be: names stay in their folder, sizes and counts are what the
files have, and all shards have the same columns. What is not understood is refused with the cure, never guessed.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dali_feed.errors import DataLostError, SourceError, SourceNotFoundError
from dali_feed.external_sources.record_files.kept_index import RecordIndex
from dali_feed.external_sources.record_files.mds_packed import LARGEST, Packed, check_zstandard
from dali_feed.storage.local import LOCAL
from dali_feed.storage.store import Store, read_at

__all__ = ["INDEX", "MdsSet", "MdsShard", "check_packed", "hashes_checked", "is_mds", "read_set", "shard_index"]

INDEX = "index.json"
_UNPACK = {"zstd": "zstd -d", "gz": "gzip -dk", "bz2": "bzip2 -dk"}
_LARGEST = 1 << 30  # bytes of an index.json
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class MdsShard:
    """A shard file as index.json has it: its path, how many samples and bytes, and hashes by their algorithms.

    packed  the file that Zstandard made of it, where that alone is there
    """

    path: str
    samples: int
    bytes: int
    hashes: dict[str, str]
    packed: Packed | None = None


@dataclass(frozen=True, slots=True)
class MdsSet:
    """A set: its shards in order, and the names, encodings and fixed sizes (None: varies) of the columns of all."""

    shards: tuple[MdsShard, ...]
    names: tuple[str, ...]
    encodings: tuple[str, ...]
    sizes: tuple[int | None, ...]


def is_mds(folder: str, store: Store = LOCAL) -> bool:
    """Whether a folder holds an index.json that speaks of MDS shards."""
    try:
        return any(shard.get("format") == "mds" for shard in _told(f"{folder}/{INDEX}", store)["shards"])
    except (SourceError, LookupError, TypeError, AttributeError):
        return False


def read_set(folder: str, store: Store) -> MdsSet:
    """What the index.json of a folder says.

    Raises:
        SourceNotFoundError: there is none.
        SourceError: it is damaged, of another format or version, or its shards are there in compressed form alone, and
            it is not Zstandard's.
        MissingPackageError: it is, and the package that unpacks it is missing.
    """
    path = f"{folder}/{INDEX}"
    told = _told(path, store)
    try:
        shards = [_shard(folder, each, store) for each in told["shards"]]
        columns = [_columns(each) for each in told["shards"]]
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        msg = f"{path}: must describe MDS shards of version 2; found {type(error).__name__}: {error}; copy it again"
        raise SourceError(msg) from error
    if not shards:
        msg = f"{path}: must name at least one shard; found none; copy it again"
        raise SourceError(msg)
    other = next((k for k, each in enumerate(columns) if each != columns[0]), None)
    if other is not None:
        msg = (
            f"{path}: all shards must have the same columns; found {columns[0][0]} in shard 0 and "
            f"{columns[other][0]}, or other encodings, in shard {other}; read the two as separate sets"
        )
        raise SourceError(msg)
    return MdsSet(tuple(shards), *columns[0])


def _told(path: str, store: Store) -> dict[str, Any]:
    try:
        file = store.open(path)
    except SourceNotFoundError as error:
        msg = f"{path}: no such file; a folder of MDS shards has one, and MDSWriter writes it last; finish or copy it"
        raise SourceNotFoundError(msg) from error
    try:
        text = read_at(file, min(file.stamp().size, _LARGEST), 0)
        told = json.loads(text)
        if not isinstance(told, dict) or not isinstance(told["shards"], list):
            raise TypeError("an object with a list of shards is needed")  # noqa: EM101
        return told
    except (ValueError, LookupError, TypeError, RecursionError, OSError) as error:
        msg = f"{path}: must be the JSON that MDSWriter writes; found {error}; copy it again"
        raise SourceError(msg) from error
    finally:
        file.close()


def _shard(folder: str, told: dict[str, Any], store: Store) -> MdsShard:
    if (told["format"], told["version"]) != ("mds", 2):
        msg = f"format {told['format']!r}, version {told['version']!r}"
        raise ValueError(msg)
    raw = told["raw_data"]
    name, samples, size = raw["basename"], _whole(told["samples"]), _whole(raw["bytes"])
    for each in (name, *([told["zip_data"]["basename"]] if told.get("zip_data") else [])):
        if not isinstance(each, str) or "/" in each or "\\" in each or "\0" in each or each in {"", ".", ".."}:
            msg = f"a shard's name must be that of a file in the folder; it is {each!r}"
            raise ValueError(msg)
    path = f"{folder}/{name}"
    packed = None
    if told.get("compression"):
        try:
            store.stamp(path)
        except SourceNotFoundError as error:
            packed = _packed(folder, told, path, size)
            if packed is None:
                how = str(told["compression"]).partition(":")[0]
                there = f"{folder}/{told['zip_data']['basename']}"
                cure = f"unpack all files: {_UNPACK[how]} {there}" if how in _UNPACK else "unpack the files first"
                msg = f"{path}: must be uncompressed, or compressed with zstd; found it compressed with {how}; {cure}"
                raise SourceError(msg) from error
    return MdsShard(path, samples, size, _hashes(raw), packed)


def _packed(folder: str, told: dict[str, Any], path: str, size: int) -> Packed | None:
    """The packed file of a shard; None where it is of another compression than Zstandard's."""
    if str(told["compression"]).partition(":")[0] != "zstd":
        return None
    there = told["zip_data"]
    if size > LARGEST:
        msg = f"{size} bytes of {path}, and an MDS shard has at most {LARGEST}"
        raise ValueError(msg)
    found = Packed(f"{folder}/{there['basename']}", _whole(there["bytes"]), _hashes(there), size)
    check_zstandard(found.path)
    return found


def _hashes(told: dict[str, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in (told.get("hashes") or {}).items()}


def _columns(told: dict[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...], tuple[int | None, ...]]:
    names, encodings, sizes = (tuple(told[f"column_{what}"]) for what in ("names", "encodings", "sizes"))
    if len({len(names), len(encodings), len(sizes)}) > 1 or len(set(names)) < len(names):
        msg = f"columns {names} of encodings {encodings} and sizes {sizes}"
        raise ValueError(msg)
    if not all(isinstance(text, str) for text in (*names, *encodings)):
        msg = f"columns {names} of encodings {encodings}"
        raise TypeError(msg)
    return names, encodings, tuple(_whole(size) or None if size is not None else None for size in sizes)


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 40:
        msg = f"a count or a size of {value!r}"
        raise ValueError(msg)
    return value


def shard_index(shard: MdsShard, store: Store, columns: bytes) -> RecordIndex:
    """Where the samples of a shard lie: uint32 how many, uint32 where each begins and where the last ends.

    Its digest is made of the columns and the hashes too.

    Raises:
        SourceNotFoundError, SourceDeniedError: the file cannot be opened.
        DataLostError: it is not what index.json says.
    """
    file = store.open(shard.path)
    try:
        stamp = file.stamp()
        if stamp.size != shard.bytes:
            raise _lost(shard, f"{stamp.size} bytes, but {INDEX} says {shard.bytes}")
        head = np.frombuffer(read_at(file, 4 * (shard.samples + 2), 0), "<u4").astype(np.int64)
        if len(head) < shard.samples + 2 or head[0] != shard.samples:
            raise _lost(shard, f"{head[0] if len(head) else 'no'} samples, but {INDEX} says {shard.samples}")
        borders = head[1:]
        if borders[0] < 4 * len(head) or borders[-1] != stamp.size or (np.diff(borders) < 0).any():
            raise _lost(shard, "a table of samples that does not fit the file")
    except OSError as error:
        msg = f"{shard.path}: a shard must be readable; found {error.strerror}; check the disk"
        raise SourceError(msg) from error
    finally:
        file.close()
    told = columns + json.dumps(shard.hashes, sort_keys=True).encode()
    return RecordIndex.of(stamp, borders[:-1], np.diff(borders), told)


def _lost(shard: MdsShard, found: str) -> DataLostError:
    return DataLostError(f"{shard.path}: a shard must be whole; found {found}; copy the shard again")


def hashes_checked(shard: MdsShard, store: Store) -> bool:
    """Read the whole shard and hold it against its hashes; whether it has one that can be computed here.

    A packed one is unpacked for that, which holds it against the hash of the packed file.

    Raises:
        DataLostError: one of them is wrong.
    """
    hashing = _hashing(shard.hashes)
    packed = {} if shard.packed is None else _hashing(shard.packed.hashes)
    if not hashing and not packed:
        return False
    file = store.open(shard.path)
    try:
        for at in range(0, shard.bytes, _PIECE):
            part = read_at(file, min(_PIECE, shard.bytes - at), at)
            for each in hashing.values():
                each.update(part)
    finally:
        file.close()
    if wrong := _wrong(hashing, shard.hashes):
        raise _lost(shard, wrong)
    return True


def check_packed(packed: Packed, held: memoryview) -> None:
    """Hold the bytes of a packed shard against those of its hashes that can be computed here.

    Raises:
        DataLostError: one of them is wrong.
    """
    hashing = _hashing(packed.hashes)
    for each in hashing.values():
        each.update(held)
    if wrong := _wrong(hashing, packed.hashes):
        msg = f"{packed.path}: a packed shard must be whole; found {wrong}; copy the shard again"
        raise DataLostError(msg)


def _hashing(told: Mapping[str, str]) -> dict[str, Any]:
    """What computes the hashes that are told, where something here does."""
    return {name: maker() for name in told if (maker := _maker(name)) is not None}


def _wrong(hashing: Mapping[str, Any], told: Mapping[str, str]) -> str:
    """The first hash that is another than was told; "" where none is."""
    for name, each in hashing.items():
        if each.hexdigest() != told[name]:
            return f"{name} {each.hexdigest()}, but {INDEX} says {told[name]}"
    return ""


def _maker(name: str) -> Callable[[], Any] | None:
    """What computes a hash; None where nothing here does."""
    if name in hashlib.algorithms_available and not name.startswith("shake"):
        return lambda: hashlib.new(name, usedforsecurity=False)
    if not name.startswith("xxh"):
        return None
    try:
        return getattr(importlib.import_module("xxhash"), name, None)  # no need of ours: some sets have such hashes
    except ImportError:
        return None
