"""Payloads that are pixels already: a binary PPM of 8 bits needs no decoder, and its window no other pixels.

The law: the pixels are those that the decoder's way gives (`pnm.py`), bit for bit. What is given may be a view of the
payload, so nobody may write into it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["is_usual", "raw_pixels"]

_HEAD = 64  # bytes: a header without comments fits
_PLAIN = re.compile(rb"P6\s+(\d{1,10})\s+(\d{1,10})\s+255\s")
_USUAL = re.compile(rb"P6[ \n](\d{1,5}) (\d{1,5})[ \n]255\n")  # as we write it, and as Pillow does


def is_usual(payload: memoryview) -> bool:
    """Whether it is a file of pixels that any decoder reads as we do: its header as usual, and nothing behind them."""
    found = _USUAL.match(payload[:_HEAD].tobytes())
    return found is not None and found.end() + int(found[1]) * int(found[2]) * 3 == len(payload) > found.end()


def raw_pixels(payload: memoryview, window: Sequence[int] | None) -> NDArray[np.uint8] | None:
    """The image, or its window (y, x, height, width), as an array (height, width, 3); None where it must be decoded."""
    found = _PLAIN.match(payload[:_HEAD].tobytes())
    if found is None:
        return None
    width, height = int(found[1]), int(found[2])
    size = width * height * 3
    if not size or found.end() + size > len(payload):
        return None  # the decoder's way says what is wrong
    pixels = np.frombuffer(payload, np.uint8, size, found.end()).reshape(height, width, 3)
    if window is not None:
        y, x, h, w = window
        pixels = pixels[y : y + h, x : x + w]
    return pixels.copy() if payload.readonly else pixels  # torch warns of memory that it must not write
