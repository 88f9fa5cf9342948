"""WebP headers: all chunks up to the end (the law of `header.py`).

The decoders' parser forgets the padding byte of a chunk of odd size and then fails to find an EXIF chunk behind it; so
such a file is written anew without EXIF, of which only the orientation matters; that is read here.
"""

from __future__ import annotations

import struct

from dali_feed.screen.exif import orientation_in
from dali_feed.screen.header import Header, UnusableError

__all__ = ["webp_header"]

MAX_CHUNKS = 1 << 16

_CHUNK = struct.Struct("<4sI").unpack_from
_ANIMATION, _EXIF, _ALPHA = 2, 8, 16  # flags of VP8X


def webp_header(view: memoryview) -> Header:
    """The size of a WebP whose chunks are whole, from VP8, VP8L or VP8X."""
    (size,) = struct.unpack_from("<I", view, 4)
    if size + 8 > len(view):
        msg = f"WebP cut off: says {size + 8} bytes and has {len(view)}"
        raise UnusableError(msg)
    view = view[: size + 8]
    name, length = _CHUNK(view, 12)
    if name != b"VP8X":
        return _image(view, 12)
    flags = view[20]
    width, height = (int.from_bytes(view[at : at + 3], "little") + 1 for at in (24, 27))
    if length < 10 or flags & _ANIMATION:
        msg = "WebP is animated, which is not supported" if flags & _ANIMATION else "WebP damaged: VP8X chunk too short"
        raise UnusableError(msg)
    image, orientation, odd = None, 0, length & 1
    others: list[memoryview] = []  # chunks, without EXIF
    at = 20 + length + (length & 1)
    for _ in range(MAX_CHUNKS):
        if at + 8 > len(view):
            break
        name, length = _CHUNK(view, at)
        end = at + 8 + length
        if end > len(view):
            msg = f"WebP cut off: chunk {name!r} at byte {at} ends at {end} of {len(view)} bytes"
            raise UnusableError(msg)
        if name in (b"VP8 ", b"VP8L") and image is None:
            image = _image(view, at)
        if name != b"EXIF":
            others += (view[at : end + (length & 1)],)
            odd |= 0 if orientation else length & 1
        elif flags & _EXIF and not orientation:
            orientation = orientation_in(view[at + 8 : end])
        at = end + (length & 1)
    if image is None or (image.width, image.height) != (width, height):
        msg = f"WebP damaged: no image of the canvas size {width}x{height}"
        raise UnusableError(msg)
    plain = None
    if flags & _EXIF and (odd or not orientation):
        chunks = b"".join((b"WEBPVP8X", (10).to_bytes(4, "little"), bytes((flags & ~_EXIF,)), view[21:30], *others))
        plain = b"RIFF" + (len(chunks) + (len(chunks) & 1)).to_bytes(4, "little") + chunks + bytes(len(chunks) & 1)
    return Header("webp", width, height, 4 if flags & _ALPHA else 3, orientation or 1, plain)


def _image(view: memoryview, at: int) -> Header:
    """The size in the VP8 or VP8L chunk at `at`."""
    name, length = _CHUNK(view, at)
    if at + 8 + length > len(view):
        msg = f"WebP cut off: chunk {name!r} ends at {at + 8 + length} of {len(view)} bytes"
        raise UnusableError(msg)
    at += 8
    if name == b"VP8 " and length >= 10 and bytes(view[at + 3 : at + 6]) == b"\x9d\x01\x2a" and not view[at] & 1:
        width, height = struct.unpack_from("<HH", view, at + 6)
        return Header("webp", width & 0x3FFF, height & 0x3FFF, 3)
    if name == b"VP8L" and length >= 5 and view[at] == 0x2F:
        (bits,) = struct.unpack_from("<I", view, at + 1)
        if bits >> 29 == 0:
            return Header("webp", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, 4 if bits >> 28 & 1 else 3)
    msg = f"WebP damaged: chunk {name!r} is not an image"
    raise UnusableError(msg)
