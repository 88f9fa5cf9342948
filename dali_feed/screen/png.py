"""PNG headers: all chunks up to IEND (the law of `header.py`).

Of an animated PNG the default image is what counts, as for Pillow and torchvision: the decoders here would play the
animation, so it is written anew without one.
"""

from __future__ import annotations

import struct
import zlib

from dali_feed.screen.header import Header, UnusableError

MAX_CHUNKS = 1 << 16

_CHUNK = struct.Struct(">I4s").unpack_from
_IHDR = struct.Struct(">IIBBBBB").unpack_from

_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
_COMPONENTS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}
_ANIMATION = {b"acTL", b"fcTL", b"fdAT"}


def png_header(view: memoryview) -> Header:
    """The IHDR of a PNG whose chunks are whole up to IEND."""
    length, name = _CHUNK(view, 8)
    if name != b"IHDR" or length != 13:
        raise UnusableError("PNG damaged: its first chunk is not IHDR")
    width, height, depth, colour, compression, filtering, interlace = _IHDR(view, 16)
    if zlib.crc32(view[12:29]) != struct.unpack_from(">I", view, 29)[0]:
        raise UnusableError("PNG damaged: the checksum of IHDR is wrong")
    if depth not in _DEPTHS.get(colour, ()) or compression or filtering or interlace > 1:
        raise UnusableError(f"PNG damaged: no such format (bits {depth}, colour type {colour}, interlace {interlace})")
    seen: set[bytes] = set()
    exif = b""  # the last one, as for Pillow
    still: list[memoryview] = []  # the file without its animation, as far as it has one
    at = kept = 33
    for _ in range(MAX_CHUNKS):
        if at + 12 > len(view):
            raise UnusableError("PNG cut off: no IEND chunk")
        length, name = _CHUNK(view, at)
        if at + 12 + length > len(view):
            msg = f"PNG cut off: chunk {name!r} at byte {at} ends at {at + 12 + length} of {len(view)} bytes"
            raise UnusableError(msg)
        seen.add(name)
        if name == b"IEND":
            break
        if name == b"IHDR" or (name == b"PLTE" and (length % 3 or not 3 <= length <= 768)):
            raise UnusableError(f"PNG damaged: chunk {name!r} of length {length} at byte {at}")
        if name == b"eXIf":
            exif = bytes(view[at + 8 : at + 8 + length])
        if name in _ANIMATION:
            still += (view[kept:at],)
            kept = at + 12 + length
        at += 12 + length
    else:
        raise UnusableError(f"PNG with more than {MAX_CHUNKS} chunks")
    if b"IDAT" not in seen or (colour == 3 and b"PLTE" not in seen):
        raise UnusableError(f"PNG damaged: no {'IDAT' if b'IDAT' not in seen else 'PLTE'} chunk")
    plain = b"".join((view[:33], *still, view[kept:])) if b"acTL" in seen else None
    return Header("png", width, height, _COMPONENTS[colour], exif, plain)
