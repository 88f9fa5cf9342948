"""What may be tried: for each field of `Tuning` its values in order, within what the machine may give.

The law: nothing stands here that changes a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dali_feed.options import AutoTuning, Cache, Tuning

__all__ = ["FIELDS", "Ladders", "ladders"]

Ladders = Mapping[str, Sequence[Any]]

FIELDS = ("threads", "readers", "prefetch", "cache")
_THREADS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_READERS = (1, 2, 4, 8, 16)
_PREFETCH = (1, 2, 4, 8)


def ladders(asked: AutoTuning, start: Tuning, *, most_threads: int, data: int | None) -> Ladders:
    """By field, without those that are pinned.

    most_threads  that may decode
    data          bytes of this process's part of an epoch, where a cache may be tried at all; None: it may not
    """
    found: dict[str, Sequence[Any]] = {
        "threads": _rungs(_THREADS, start.threads, most_threads),
        "readers": _rungs(_READERS, start.readers),
        "prefetch": _rungs(_PREFETCH, start.prefetch),
    }
    room = (asked.cap or 0) - start.memory
    if data is not None and room > data:
        found["cache"] = (Cache(room), start.cache, Cache(room, pixels=True))  # each a step away, so each is tried
    return {name: rungs for name, rungs in found.items() if name not in asked.pinned}


def _rungs(usual: Sequence[int], here: Any, most: int | None = None) -> list[int]:
    within = {rung for rung in usual if most is None or rung <= most}
    return sorted(within | ({here} if isinstance(here, int) else set()) | ({most} if most else set()))
