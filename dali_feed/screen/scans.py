"""How often a decoder goes over a JPEG: once per scan, and a scan of a whole image can take as little as ten bytes.

The law: the number of scans it finds is never below what a decoder runs. A baseline JPEG has one, and
is not looked through; of the others the scan headers are looked for, bytes before walks, so that an ordinary one
costs a search at the speed of memory.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

__all__ = ["LEAST", "MAX_WORK", "SCAN_BYTES", "overworked", "scans"]

MAX_WORK = 1 << 31  # pixels times scans: sixteen times over the largest image of `screen.MAX_PIXELS`
SCAN_BYTES = 10  # of the header of a scan of one component: no scan takes less
LEAST = 1 << 10  # pixels that going over a smaller image costs as well
PIECE = 1 << 18  # bytes that are looked through at a time, in a core's cache

_PROGRESSIVE, _SOS, _TEM = 0xC2, 0xDA, 0x01
_FRAMES = frozenset((0xC0, 0xC1, _PROGRESSIVE))
_LAST = frozenset((0xD8, 0xD9))  # the end of the image, or a second beginning, which is an error
_MARKER = re.compile(rb"\xff+([^\x00\xff\xd0-\xd7])")  # in image data 0xff is followed by zero or is a restart


def scans(view: memoryview, most: int) -> int:
    """How many scans a JPEG has whose header passed the screen; where that is above `most`, any number above it."""
    at, progressive, components = 2, False, 0
    while marker := _MARKER.search(view, at):
        at, kind = marker.end(), marker[1][0]
        if kind == _SOS:
            break
        if kind in _FRAMES:
            progressive, components = kind == _PROGRESSIVE, _number(view, at + 7, 1)
        at += _length(view, at, kind)
    else:
        return 0
    if not progressive and _number(view, at + 2, 1) == components:
        return 1
    bound = _pairs(np.frombuffer(view, np.uint8, offset=at - 2))
    return bound if bound <= most else _walked(view, at - 2, most)


def _pairs(data: NDArray[np.uint8]) -> int:
    """How often a scan header's first two bytes are there: in other segments and behind the image as well."""
    found = 0
    for first in range(0, len(data), PIECE):
        piece = data[first : first + PIECE + 1]
        found += int(np.count_nonzero((piece[:-1] == 0xFF) & (piece[1:] == _SOS)))
    return found


def _walked(data: memoryview, at: int, most: int) -> int:
    """The scan headers from `at` on up to the end of the image, or one more than `most`."""
    found = 0
    while found <= most and (marker := _MARKER.search(data, at)):
        at, kind = marker.end(), marker[1][0]
        if kind in _LAST:
            break
        found += kind == _SOS
        at += _length(data, at, kind)
    return found


def _length(data: memoryview, at: int, kind: int) -> int:
    """Bytes of the segment behind a marker."""
    return 0 if kind == _TEM else _number(data, at, 2)


def _number(data: memoryview, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "big")


def overworked(view: memoryview, width: int, height: int, max_work: int) -> str | None:
    """Why an image that passed the screen is too much work to decode: pixels times scans above `max_work`; or None."""
    pixels = max(width * height, LEAST)
    if pixels * (len(view) // SCAN_BYTES) <= max_work or bytes(view[:2]) != b"\xff\xd8":
        return None
    most = max(1, max_work // pixels)
    if scans(view, most) <= most:
        return None
    return (
        f"a JPEG of {width}x{height} in more than {most} scans is more work than the limit of {max_work} (pixels times"
        " scans); see Decode(max_work=...)"
    )
