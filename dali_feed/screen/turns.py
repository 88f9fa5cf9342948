"""Orientations of a batch's payloads, where they are asked for: `screen` itself does not look at them.

Most payloads are JPEGs: their segments are stepped over as in `screen`, up to the scan. All else, and what the steps
do not get through, is read by `header_of`, whose word is final.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dali_feed.screen.exif import SIDEWAYS, orientation_in
from dali_feed.screen.screen import STEPS, Screened, header_of

__all__ = ["orientations", "turned"]

_HEAD = 1024  # bytes copied at a time; most headers fit
_LOOK = 12  # bytes of a segment that a look takes
_MOST = 128  # looks; files of more segments are left to `header_of`
_FRAMES = (0xC0, 0xC1, 0xC2)

Known = tuple[bytes, int, bytes, int]  # what stands before a size, where what follows it begins, that, the orientation
_NOTHING: Known = (bytes(_HEAD + 1), 0, b"", 1)  # longer than a head, which equals none


def turned(found: Screened, payloads: Sequence[memoryview | None]) -> Screened:
    """The screened with sizes of the images as they are once turned, and a third column: their orientations."""
    ways = orientations(payloads, found.sizes)
    sizes = np.column_stack([found.sizes, ways])
    sideways = np.isin(ways, SIDEWAYS)
    sizes[sideways, :2] = sizes[sideways, 1::-1]
    return Screened(sizes, found.reasons, found.plain)


def orientations(payloads: Sequence[memoryview | None], sizes: NDArray[np.int32]) -> NDArray[np.int32]:
    """1..8 for each payload that `screen` has found good, by its size; 1 for the others."""
    out = np.ones(len(payloads), np.int32)
    known = _NOTHING
    for row, (payload, good) in enumerate(zip(payloads, sizes[:, 0].tolist(), strict=True)):
        if payload is None or not good:
            continue
        head = payload[:_HEAD].tobytes()
        before, at, behind, orientation = known
        # Headers that differ in their size alone have one orientation.
        if not (head.startswith(before) and head.startswith(behind, at)):
            orientation, again = _jpeg(payload, head) if head[:2] == b"\xff\xd8" else (0, None)
            known = again or known
        if orientation != 1:
            out[row] = orientation or header_of(payload).orientation
    return out


def _jpeg(view: memoryview, head: bytes) -> tuple[int, Known | None]:
    """A JPEG's orientation, 0 where the steps do not lead to its scan; and, of a short header, what it looks like."""
    base, at, frame = 0, 2, 0
    exif: list[memoryview] = []
    for _ in range(_MOST):
        if at + _LOOK > len(head) and base + len(head) < len(view):
            base += at
            head, at = view[base : base + _HEAD].tobytes(), 0
        segment = head[at : at + 4]
        step = STEPS[segment]
        if not step:
            if segment[:2] == b"\xff\xda":
                orientation = orientation_in(*exif)
                whole = (head[: frame + 5], frame + 9, head[frame + 9 : at + 2], orientation)
                return orientation, whole if frame and not base else None
            if len(segment) < 4 or segment[0] != 0xFF or segment[1] not in _FRAMES:
                break
            step, frame = 2 + (segment[2] << 8 | segment[3]), at
        elif segment[1] == 0xE1 and head.startswith(b"Exif\0\0", at + 4):
            exif.append(view[base + at + 10 : base + at + step])
        at += step
    return 0, None
