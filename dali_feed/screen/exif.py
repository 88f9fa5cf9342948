"""EXIF: the orientation of an image, as Pillow's `getexif()` finds it.

A block that is cut off or damaged says as much as Pillow gets out of it; where Pillow would raise there is no
orientation. Other than Pillow, numbers that are no integers (rationals, floats) are none here, and XMP is not read.

The law: any bytes give 1..8. The work is bounded by the block, and by 65,535 entries.
"""

from __future__ import annotations

import struct

__all__ = ["MIRRORED_X", "MIRRORED_Y", "SIDEWAYS", "orientation_in"]

# A stored image is mirrored, left to right and top to bottom, and then its axes are exchanged. By orientations:
MIRRORED_X, MIRRORED_Y, SIDEWAYS = (2, 3, 7, 8), (3, 4, 6, 7), (5, 6, 7, 8)

_NAME = b"Exif\0\0"
_ORIENTATION = 0x0112
_ORDERS = {b"II*\0": "<", b"II\0*": "<", b"MM\0*": ">", b"MM*\0": ">"}
_WIDTHS = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}  # by type, bytes
_INTEGERS = {3: "H", 4: "I", 6: "b", 8: "h", 9: "i", 13: "I", 16: "Q"}


def orientation_in(*blocks: memoryview | bytes) -> int:
    """The orientation, 1..8, in EXIF blocks laid end to end; 1 where they say nothing sensible."""
    if not blocks:
        return 1
    block = memoryview(blocks[0] if len(blocks) == 1 else b"".join(blocks))
    start = 0
    while block[start : start + 6] == _NAME:
        start += 6
    order = _ORDERS.get(bytes(block[start : start + 4]))
    try:
        return 1 if order is None else _first(block[start:], order)
    except struct.error:  # cut off
        return 1


def _first(block: memoryview, order: str) -> int:
    """The orientation in the first directory of a TIFF-structured block. Raises struct.error past its end."""
    entry = struct.Struct(order + "HHI").unpack_from
    offset = struct.Struct(order + "I").unpack_from
    (at,) = offset(block, 4)
    (count,) = struct.unpack_from(order + "H", block, at)
    held, size = 0, len(block)
    for _ in range(count):
        at += 12
        if at + 2 > size:
            break
        tag, kind, number = entry(block, at - 10)
        width = _WIDTHS.get(kind)
        if width is None:
            continue
        where, length = at - 2, number * width
        if length > 4:
            (where,) = offset(block, where)
            held += length
            if held > size:
                continue
            if where + length > size:  # Pillow reads no further
                break
        if tag == _ORIENTATION and length:
            code = _INTEGERS.get(kind)
            value = 1 if code is None else struct.unpack_from(order + code, block, where)[0]
            return value if 1 <= value <= 8 else 1
    return 1
