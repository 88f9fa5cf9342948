"""BMP headers, read as Pillow reads them (the law of `header.py`)."""

from __future__ import annotations

import struct

from dali_feed.screen.header import Header, UnusableError

__all__ = ["bmp_header"]

_INFO = struct.Struct("<IiiHHI12xI").unpack_from  # header size, width, height, planes, bits, compression, colours
_CORE = struct.Struct("<IHHHH").unpack_from

_HEADERS = (40, 52, 56, 64, 108, 124)  # bytes of the headers that are like the first of them
_BITS = {0: (1, 4, 8, 16, 24, 32), 1: (8,), 2: (4,), 3: (16, 24, 32)}  # by compression: none, RLE8, RLE4, bit fields
_RUNS = (1, 2)


def bmp_header(view: memoryview) -> Header:
    """The size of a BMP whose pixels are all there."""
    (start, header) = struct.unpack_from("<II", view, 10)
    if header == 12:
        _, width, height, planes, bits = _CORE(view, 14)
        compression, colours = 0, 0
    elif header in _HEADERS:
        _, width, height, planes, bits, compression, colours = _INFO(view, 14)
        height = abs(height)  # a negative one counts rows from the top
    else:
        msg = f"BMP with a header of {header} bytes"
        raise UnusableError(msg)
    if planes != 1 or bits not in _BITS.get(compression, ()):
        msg = f"BMP with {bits} bits per pixel, compression {compression} and {planes} planes is not supported"
        raise UnusableError(msg)
    if bits <= 8 and colours > 1 << bits:
        msg = f"BMP damaged: {colours} colours in {bits} bits per pixel"
        raise UnusableError(msg)
    found = Header("bmp", width, height, 4 if bits == 32 else 3)
    palette = 0 if bits > 8 else (colours or 1 << bits) * (3 if header == 12 else 4)
    pixels = 0 if compression in _RUNS else (width * bits + 31) // 32 * 4 * height
    if start < 14 + header + palette or start + max(pixels, 1) > len(view):
        msg = f"BMP cut off or damaged: pixels at byte {start}, at least {pixels} long, in {len(view)} bytes"
        raise UnusableError(msg)
    return found
