"""A set, or any source, as several: each record goes to one part, by its key and a seed.

The law: by shares, a record's part depends on (seed, key, shares) alone: it stays where it is when records are added.
By counts it depends on the other keys too. So a split is the same on any machine.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.errors import ConfigError
from dali_feed.packing.chosen import Chosen
from dali_feed.packing.job import as_source
from dali_feed.packing.keys import keys_of
from dali_feed.packing.place import folder_at
from dali_feed.packing.run import PackedSet, Tell, pack
from dali_feed.records.extents import Extents, Int64s, unpack_ids
from dali_feed.records.present import Present

__all__ = ["parts_of", "split"]


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
        out: the folder that the sets go to.
        parts: name -> a share, 0..1, all of them together 1; or how many records. None, of one part, is the rest.
        seed: of the draw; the same seed and keys give the same parts.
        keys: as for `pack`.
        tell: as for `pack`; it hears of one part after the other.
        options: further ones of `pack`.

    Raises:
        ConfigError: parts that cannot be; and what `pack` raises.
    """
    folder = folder_at(out)
    source = as_source(source)
    found = parts_of(source, parts, seed, keys)
    return {
        name: pack(Chosen(source, present), folder / f"{name}.dfset", keys=keys, tell=tell, **options)
        for name, present in found.items()
    }


def parts_of(source: Any, parts: Mapping[str, float | int | None], seed: int, keys: str = "auto") -> dict[str, Present]:
    """Which positions of a source's snapshot are in which part."""
    snapshot = source.snapshot()
    key_of = Chosen.keys(source, keys_of(source, keys)).of
    first, last = snapshot.numbers
    ids = snapshot.located(Extents(np.arange(len(first), dtype=np.int64), first, last)).ids()
    partition, position = unpack_ids(ids)
    rows = zip(partition.tolist(), position.tolist(), strict=True)
    begin = hashlib.blake2b(b"%d\0" % seed, digest_size=8)
    drawn = np.fromiter((_draw(begin, key_of(p, k, 0)) for p, k in rows), np.uint64, len(ids))
    part = _shares(parts, drawn) if any(isinstance(each, float) for each in parts.values()) else _counts(parts, drawn)
    found = {}
    for k, name in enumerate(parts):
        here = part == k
        if not here.any():
            msg = (
                f"split: each part must get at least one record; {name!r} gets none of {len(ids)}; give it a larger "
                "share"
            )
            raise ConfigError(msg)
        found[name] = Present.of_flags(snapshot.starts.tolist(), _flags(snapshot, partition[here], position[here]))
    return found


def _draw(begin: Any, key: str) -> int:
    told = begin.copy()
    told.update(key.encode("utf-8", "surrogateescape"))
    return int.from_bytes(told.digest(), "little")


def _shares(parts: Mapping[str, float | int | None], drawn: NDArray[np.uint64]) -> Int64s:
    """Of each record its part, by where in 0..1 it was drawn."""
    rest, given = _rest(parts), math.fsum(each for each in parts.values() if each is not None)
    shares = [1 - given if each is None else float(each) for each in parts.values()]
    if not (min(shares) > 0 and (rest is not None or abs(given - 1) <= 1e-9)):
        rule = "add up to 1" if rest is None else f"leave something of 1 for the rest, {rest!r}"
        msg = f"split: shares must be above 0 and {rule}; found {_told(parts)}"
        raise ConfigError(msg)
    edges = np.cumsum(shares)[:-1]
    return np.searchsorted(edges, drawn.astype(np.float64) / 2.0**64, side="right").astype(np.int64)


def _counts(parts: Mapping[str, float | int | None], drawn: NDArray[np.uint64]) -> Int64s:
    """Of each record its part: the first so many in the order that they were drawn in; -1 for none."""
    rest = _rest(parts)
    wanted = [0 if count is None else int(count) for count in parts.values()]
    if not parts or min(wanted) < 0 or sum(wanted) > len(drawn):
        msg = f"split: counts must be at most the {len(drawn)} records together; found {_told(parts) or 'no part'}"
        raise ConfigError(msg)
    order, part, at = np.argsort(drawn, kind="stable"), np.full(len(drawn), -1, np.int64), 0
    for k, count in enumerate(wanted):
        part[order[at : at + count]] = k
        at += count
    if rest is not None:
        part[part < 0] = list(parts).index(rest)
    return part


def _rest(parts: Mapping[str, float | int | None]) -> str | None:
    """The part that gets what the others leave, if there is one."""
    found = [name for name, size in parts.items() if size is None]
    if len(found) > 1:
        msg = f"split: one part at most can be the rest; found {_told(parts)}"
        raise ConfigError(msg)
    return found[0] if found else None


def _told(parts: Mapping[str, float | int | None]) -> str:
    return ", ".join(f"{name}={'rest' if size is None else size}" for name, size in parts.items())


def _flags(snapshot: Any, partition: Int64s, position: Int64s) -> list[NDArray[np.bool_]]:
    flags = [np.zeros(n, np.bool_) for n in (snapshot.stops - snapshot.starts).tolist()]
    for p, start in enumerate(snapshot.starts.tolist()):
        flags[p][position[partition == p] - start] = True
    return flags
