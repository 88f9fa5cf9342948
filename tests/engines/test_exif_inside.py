"""Insides that contract/pixels/test_exif.py needs not: they go with what they test."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kit.images import QUICK

from dali_feed.compiler.program import stored, turns
from dali_feed.engines.host.decode import turned
from dali_feed.feed import Feed
from dali_feed.options import Decode
from dali_feed.testing.scripted import ScriptedSource

WAYS = range(1, 9)


def feed(payloads: Any, transform: Any = None, size: int = 8, **options: Any) -> Feed:
    """The payloads in turn."""
    options = {"decode": Decode(exif=True), "seed": 3, "tuning": QUICK, **options}
    return Feed(ScriptedSource(payloads), size, transform=transform, **options)


@pytest.mark.parametrize("way", WAYS)
def test_windows_of_the_upright_image_in_the_stored_one(way: int) -> None:
    """A window decoded from the stored image and turned is the window of the turned image, for any window."""
    rng = np.random.default_rng(way)
    whole = rng.integers(0, 255, (13, 21, 3), np.uint8)
    high, wide = (21, 13) if way > 4 else (13, 21)
    starts = rng.integers(0, (high, wide), (50, 2))
    windows = np.concatenate([starts, rng.integers(1, (high, wide) - starts + 1)], axis=1)
    rows = turns(np.full((50, 3), (high, wide, way)))
    assert rows is not None
    upright = turned(whole, rows[0, :3].tolist())
    assert upright.shape == (high, wide, 3)
    for (y, x, h, w), (b, a, height, width), row in zip(windows, stored(windows, rows), rows, strict=True):
        part = turned(whole[b : b + height, a : a + width], row[:3].tolist())
        np.testing.assert_array_equal(part, upright[y : y + h, x : x + w])
