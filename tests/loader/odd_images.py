"""Unusual and damaged images, and what a run replaces of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kit import kinds
from kit.images import QUICK, bad_tables, broken_png, jpeg
from numpy.typing import NDArray
from torchvision.transforms import v2

from dali_feed import BadRecords, Decode
from dali_feed.external_sources import DeadLetterFolder
from dali_feed.feed import Feed
from dali_feed.testing import ScriptedSource

LEVELS = kinds.levels(1, "f4")[..., 0]  # 0..255


def gray_tiff(values: NDArray[Any], photometric: int = 1, bits: int | None = None) -> bytes:
    """A TIFF of (height, width) numbers."""
    file: bytes = kinds.tiff(values[..., None], photometric=photometric, bits=bits)
    return file


def odd_and_bad() -> list[bytes]:
    """Good and bad images by turns."""
    stray = jpeg(1)[:20] + b"stray" + jpeg(1)[20:]
    tables = bad_tables()
    return [
        *(jpeg(0), gray_tiff(LEVELS), stray, gray_tiff(LEVELS.astype("u1")), broken_png(), jpeg(2)),
        *(tables[:20] + b"stray" + tables[20:], b"P2 2 2 9 1 2 3 x", jpeg(3), jpeg(4)[:-40], jpeg(5)),
    ]


def quarantined(payloads: Sequence[bytes], engine: str, letters: DeadLetterFolder | None = None) -> dict[str, str]:
    """Where and why, of all that a run replaces."""
    source = ScriptedSource([(payload, n) for n, payload in enumerate(payloads)], extent=4)
    bad = BadRecords(limit=None, dead_letter=letters)
    resize: Any = v2.Resize((8, 8))
    with Feed(source, 4, shuffle=False, transform=resize, decode=Decode(engine=engine), bad=bad, tuning=QUICK) as feed:
        list(feed)
        return dict(feed.stats().recent_bad)
