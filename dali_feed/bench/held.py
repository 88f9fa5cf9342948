"""The encoded images of a bench in memory, for those that are fed from there."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from dali_feed.bench.contract import Data

__all__ = ["HELD", "payloads_of"]

HELD = 1 << 30  # bytes at most


def payloads_of(data: Data, limit: int = HELD) -> list[bytes]:
    """Each image's file, spread evenly over the classes where they are more than `limit` bytes; read once."""
    return _read(data.files, min(data.count, max(1, limit // max(1, data.mean_bytes))))


@functools.lru_cache(maxsize=1)  # the same bytes objects in every turn
def _read(folder: Path, count: int) -> list[bytes]:
    paths = sorted(path for path in folder.glob("*/*") if path.is_file())
    return [paths[k].read_bytes() for k in np.linspace(0, len(paths) - 1, min(count, len(paths))).round().astype(int)]
