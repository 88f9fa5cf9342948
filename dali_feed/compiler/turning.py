"""Turning: how a stored image becomes the upright one, and where the upright one's windows lie in it. Pure arithmetic.

The law: recipes and draws know the upright image alone, its sizes and its windows; decoders know the stored one. What
lies between is one row for each sample, and is the same for every engine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.screen.header import MIRRORED_X, MIRRORED_Y, SIDEWAYS

__all__ = ["stored", "turns"]


def turns(sizes: NDArray[Any]) -> NDArray[np.int32] | None:
    """A row per sample of `sizes` (n, 3: height, width, orientation); None where they have no orientations.

    int32 (n, 5): whether the stored image is mirrored top to bottom, left to right, and whether its axes are exchanged
    then; its height and width, as stored.
    """
    if sizes.shape[1] < 3:
        return None
    high, wide, way = sizes.T
    sideways = np.isin(way, SIDEWAYS)
    found = np.isin(way, MIRRORED_Y), np.isin(way, MIRRORED_X), sideways
    return np.stack([*found, np.where(sideways, wide, high), np.where(sideways, high, wide)], axis=1).astype(np.int32)


def stored(windows: NDArray[Any], rows: NDArray[np.int32]) -> NDArray[np.int32]:
    """Windows (n, 4: y, x, height, width) of upright images as windows of the stored ones, by the `turns` of each."""
    mirrored, sideways, size = rows[:, :2] != 0, rows[:, 2:3] != 0, rows[:, 3:]
    start = np.where(sideways, windows[:, 1::-1], windows[:, :2])
    edges = np.where(sideways, windows[:, :1:-1], windows[:, 2:])
    start = np.where(mirrored, size - start - edges, start)
    return np.concatenate([start, edges], axis=1).astype(np.int32)
