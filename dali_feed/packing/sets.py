"""A set, or any source, as several: each record goes to one part, by its key and a seed.

The law: by shares, a record's part depends on (seed, key, shares) alone: it stays where it is when records are added.
By counts it depends on the other keys too. So a split is the same on any machine.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.checks import paths_of
from dali_feed.errors import ConfigError, DataLostError, StateError
from dali_feed.external_sources.index import SUFFIX
from dali_feed.packing.job import as_source, whole_snapshot
from dali_feed.packing.keys import by_place, keys_of
from dali_feed.packing.plan import name_of
from dali_feed.packing.run import PackedSet, Tell, check_options, pack_some
from dali_feed.packing.work import WorkFolder, folder_at, place, writing
from dali_feed.records.extents import Extents, Int64s, Present, unpack_ids
from dali_feed.storage.manifest import Manifest, Shard, load_plain


def split(
    source: Any,
    out: str | os.PathLike[str],
    parts: Mapping[str, float | int | None],
    *,
    seed: int = 0,
    keys: str = "auto",
    tell: Tell | None = None,
    **options: Any,
) -> dict[str, PackedSet]:
    """Pack each part as a set of its own, `out/NAME.dfset`; returns what was packed, by name.

    Args:
        source: as for `pack`.
        out: the folder that the sets go to; of other formats the folders, `out/NAME`.
        parts: name -> a share, 0..1, all of them together 1; or how many records. None, of one part, is the rest.
        seed: of the draw; the same seed and keys give the same parts.
        keys: as for `pack`; of other formats they are drawn by alone.
        tell: as for `pack`; it hears of one part after the other.
        options: further ones of `pack`.

    Raises:
        ConfigError: parts that cannot be; and what `pack` raises.
    """
    folder, to = folder_at(out), options.get("to", "tar")
    source = as_source(source)
    _check_parts(parts, seed)
    check_options(**options)
    names = {name: f"{name}.dfset" if to == "tar" else name for name in parts}
    return {
        name: pack_some(source, folder / names[name], present=present, keys=keys, tell=tell, **options)
        for name, present in parts_of(source, parts, seed, keys).items()
    }


def _check_parts(parts: Mapping[str, float | int | None], seed: int) -> None:
    """Raise ConfigError for what are no parts."""
    if not isinstance(seed, Integral):
        raise ConfigError(f"seed: must be a whole number; found {seed!r}")
    if not isinstance(parts, Mapping):
        raise ConfigError(f"split: parts must be a mapping of names to shares or counts; found {parts!r:.200}")
    for name, size in parts.items():
        if not isinstance(name, str) or name in {"", ".", ".."} or not {"/", "\0"}.isdisjoint(name):
            raise ConfigError(f"split: a part's name must be one of a file; found {name!r}; give another name")
        if isinstance(size, bool) or not isinstance(size, Real | None):
            raise ConfigError(f"split: a part must be a share, a count, or None for the rest; found {name}={size!r}")


def parts_of(source: Any, parts: Mapping[str, float | int | None], seed: int, keys: str = "auto") -> dict[str, Present]:
    """Which positions of a source's snapshot are in which part."""
    snapshot = whole_snapshot(source)
    key_of = by_place(keys_of(source, keys), snapshot).of
    first, last = snapshot.numbers
    ids = snapshot.located(Extents(np.arange(len(first), dtype=np.int64), first, last)).ids()
    partition, position = unpack_ids(ids)
    rows = zip(partition.tolist(), position.tolist(), strict=True)
    begin = hashlib.blake2b(b"%d\0" % seed, digest_size=8)
    drawn = np.fromiter((_draw(begin, key_of(p, k, 0)) for p, k in rows), np.uint64, len(ids))
    counts = all(isinstance(each, Integral | None) for each in parts.values())
    part = _counts(parts, drawn) if counts else _shares(parts, drawn)
    present = {}
    for k, name in enumerate(parts):
        here = part == k
        if not here.any():
            what = f"{name!r} gets none of {len(ids)}; give it a larger share"
            raise ConfigError(f"split: each part must get at least one record; {what}")
        starts, lengths = snapshot.starts.tolist(), (snapshot.stops - snapshot.starts).tolist()
        flags = [np.zeros(length, np.bool_) for length in lengths]
        for p, start in enumerate(starts):
            flags[p][position[here & (partition == p)] - start] = True
        present[name] = Present.of_flags(starts, flags)
    return present


def _draw(begin: Any, key: str) -> int:
    hasher = begin.copy()
    hasher.update(key.encode("utf-8", "surrogateescape"))
    return int.from_bytes(hasher.digest(), "little")


def _shares(parts: Mapping[str, float | int | None], drawn: NDArray[np.uint64]) -> Int64s:
    """Of each record its part, by where in 0..1 it was drawn."""
    rest, total = _rest(parts), math.fsum(each for each in parts.values() if each is not None)
    shares = [1 - total if each is None else float(each) for each in parts.values()]
    if not (min(shares) > 0 and (rest is not None or abs(total - 1) <= 1e-9)):
        rule = "add up to 1" if rest is None else f"leave something of 1 for the rest, {rest!r}"
        raise ConfigError(f"split: shares must be above 0 and {rule}; found {_shares_text(parts)}")
    edges = np.cumsum(shares)[:-1]
    return np.searchsorted(edges, drawn.astype(np.float64) / 2.0**64, side="right").astype(np.int64)


def _counts(parts: Mapping[str, float | int | None], drawn: NDArray[np.uint64]) -> Int64s:
    """Of each record its part: the first so many in the order that they were drawn in; -1 for none."""
    rest = _rest(parts)
    wanted = [0 if count is None else int(count) for count in parts.values()]
    if not parts or min(wanted) < 0 or sum(wanted) > len(drawn):
        raise ConfigError(
            f"split: counts must be at most the {len(drawn)} records together; found {_shares_text(parts) or 'no part'}"
        )
    order, part, at = np.argsort(drawn, kind="stable"), np.full(len(drawn), -1, np.int64), 0
    for k, count in enumerate(wanted):
        part[order[at : at + count]] = k
        at += count
    if rest is not None:
        part[part < 0] = list(parts).index(rest)
    return part


def _rest(parts: Mapping[str, float | int | None]) -> str | None:
    """The part that gets what the others leave, if there is one."""
    rests = [name for name, size in parts.items() if size is None]
    if len(rests) > 1:
        raise ConfigError(f"split: one part at most can be the rest; found {_shares_text(parts)}")
    return rests[0] if rests else None


def _shares_text(parts: Mapping[str, float | int | None]) -> str:
    return ", ".join(f"{name}={'rest' if size is None else size}" for name, size in parts.items())


# Several sets as one: their shards are copied as they are, under new names, and one manifest names them all.


def merge(sets: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]) -> Path:
    """Write a set of all shards of `sets`, in order; returns its manifest's path. The old sets stay as they are.

    The new set is compared with their checksums while it is written. A merge that was killed begins again when it is
    called again.

    Args:
        sets: two or more, `NAME.dfset`.
        out: `folder/NAME.dfset`, or a folder.

    Raises:
        ConfigError: fewer than two sets, the same twice, files in the way, a place that cannot be written.
        DataLostError: a shard is not what its manifest says.
        SourceNotFoundError: no such set.
        StateError: a set of that name is being packed.
    """
    folder, name = place(out)
    sets = paths_of("merge", sets)
    if not all(os.fspath(each).strip() for each in sets):
        named = [os.fspath(each) for each in sets]
        raise ConfigError(f"merge: takes the manifests of sets, NAME.dfset; found {named!r}; name them all")
    homes = [os.path.abspath(each) for each in sets]  # noqa: PTH100  links stay as they are
    if len(homes) < 2 or len(set(homes)) < len(homes):
        raise ConfigError(f"merge: takes two or more different sets; found {', '.join(homes) or 'none'}")
    manifests = [load_plain(home) for home in homes]
    every = [(Path(home).parent, shard) for home, part in zip(homes, manifests, strict=True) for shard in part.shards]
    work = WorkFolder(folder, name)
    path = work.manifest
    with work.alone():
        under_way = work.plan()
        if under_way is not None and "merge" not in under_way:
            rule = f"a set that is under way must be finished first; it is packed from {under_way.get('source')}"
            raise StateError(f"{path}: {rule}; finish it, give another name, or remove {work.path} and its shards")
        names = [name_of(work.name, k, len(every)) for k in range(len(every))]
        there = [name for name in (*names, path.name) if (work.out / name).exists()]
        if there and under_way is None:
            msg = f"{work.out}: a new set must not replace files that are there; found {there[0]}; give another name"
            raise ConfigError(msg)
        work.begin({"merge": homes})
        pairs = zip(every, names, strict=True)
        with writing(work.out):
            shards = tuple(_copied(folder, shard, work, name) for (folder, shard), name in pairs)
        work.save(Manifest(shards, {"merged": [dict(each.made) for each in manifests]}))
        work.done()
    return path


def _copied(folder: Path, shard: Shard, work: WorkFolder, name: str) -> Shard:
    for end, digest in ((SUFFIX, shard.index_sha256), ("", shard.sha256)):
        source, fresh = folder / f"{shard.name}{end}", work.path / f"{name}{end}"
        if not source.exists():
            raise DataLostError(f"{source}: a shard must exist to be merged; it was removed; put it back")
        shutil.copyfile(source, fresh)
        with fresh.open("rb+") as file:
            os.fsync(file.fileno())
        if _digest(fresh) != digest:
            msg = f"{source}: a shard must be what its manifest says; its SHA-256 differs; fetch it again"
            raise DataLostError(msg)
        fresh.replace(work.out / f"{name}{end}")
    return replace(shard, name=name)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
