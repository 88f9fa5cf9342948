"""Reads a whole set, or tar shards that were packed, and says what is not as it was written.

The law: whatever byte of a shard, an index or a manifest is another one, or is missing, is found and named.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

from dali_feed.checks import whole
from dali_feed.errors import DataLostError, SourceError
from dali_feed.external_sources.index import SUFFIX, TarIndex, most_bytes
from dali_feed.storage.manifest import Shard, load_manifest
from dali_feed.storage.sets import SetStore
from dali_feed.storage.store import File, Stamp, read_at, read_whole

PIECE = 8 << 20
SHOWN = 3  # records of a damaged shard that are named
Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Damage:
    """A file that differs from what was packed.

    path     the file, as a path in its set
    what     how it shows
    records  samples of the shard whose bytes differ
    """

    path: str
    what: str
    records: tuple[int, ...] = ()

    def __str__(self) -> str:
        if not self.records:
            return f"{self.path}: {self.what}"
        some = ", ".join(f"#{record}" for record in self.records[:SHOWN])
        more = f" and {len(self.records) - SHOWN:,} more" if len(self.records) > SHOWN else ""
        return f"{self.path}: {self.what}, in {some}{more}"


@dataclass(frozen=True, slots=True)
class Verified:
    """What was read of a set.

    shards   that its manifest names
    samples  in them
    size     bytes of them
    damages  what is not as it was packed
    """

    shards: int
    samples: int
    size: int
    damages: tuple[Damage, ...]


def verify(path: str | os.PathLike[str], *, workers: int = 4, advance: Advance | None = None) -> Verified:
    """Read all of a set. If the manifest is damaged, only that is reported, because nothing else says what the set was.

    Args:
        path: the set, `NAME.dfset`.
        workers: threads, a shard each.
        advance: hears of the bytes of shards that have been read.

    Raises:
        SourceNotFoundError: there is no such set.
        SourceDeniedError: its manifest cannot be read.
    """
    home = os.fspath(path)
    try:
        manifest = load_manifest(home)
    except DataLostError as error:
        return Verified(0, 0, 0, (Damage(home, str(error).removeprefix(f"{home}: ")),))
    store = SetStore()
    tell = advance or (lambda _: None)

    def each(shard: Shard) -> tuple[Damage, ...]:
        return tuple(_shard(store, f"{home}/{shard.name}", shard, tell))

    with ThreadPoolExecutor(whole("workers", workers, 1), "dali-feed-verify") as pool:
        by_shard = pool.map(each, manifest.shards)
        damages = tuple(damage for some in by_shard for damage in some)
    shards = manifest.shards
    return Verified(len(shards), sum(s.samples for s in shards), sum(s.size for s in shards), damages)


def _shard(store: SetStore, path: str, shard: Shard, advance: Advance) -> Iterator[Damage]:
    index, index_path = None, path + SUFFIX
    try:
        with closing(store.open(index_path)) as file:
            whole = read_whole(file, most_bytes(Stamp(0, shard.size, 0, 0)))
        if hashlib.sha256(whole).hexdigest() != shard.index_sha256:
            yield Damage(index_path, "its SHA-256 is not that of the manifest")
        else:
            index = TarIndex.of(whole)
    except (OSError, SourceError, ValueError) as error:
        yield Damage(index_path, str(error).removeprefix(f"{index_path}: "))
    try:
        file = store.open(path)
    except SourceError as error:
        advance(shard.size)
        yield Damage(path, str(error).removeprefix(f"{path}: "))
        return
    try:
        digest = hashlib.sha256()
        for at in range(0, shard.size, PIECE):
            piece = read_at(file, min(PIECE, shard.size - at), at)
            digest.update(piece)
            advance(len(piece))
        if digest.hexdigest() != shard.sha256:
            records = () if index is None else tuple(_records(file, index))
            where = "" if records or index is None else ", in no member: a header, or what lies between"
            yield Damage(path, f"its SHA-256 is not that of the manifest{where}", records)
    except OSError as error:
        yield Damage(path, f"reading it failed: {error.strerror} (errno {error.errno})")
    except SourceError as error:  # a part that is cut while it is read
        yield Damage(path, str(error).removeprefix(f"{path}: "))
    finally:
        file.close()


def _records(file: File, index: TarIndex) -> Iterator[int]:
    """The samples one of whose members has another CRC-32 than the index says."""
    first, offset, length = (column.tolist() for column in (index.first, index.offset, index.length))
    crc = [] if index.crc is None else index.crc.tolist()
    for sample in range(len(first) - 1):
        for k in range(first[sample], first[sample + 1]):
            if crc and zlib.crc32(read_at(file, length[k], offset[k])) != crc[k]:
                yield sample
                break
