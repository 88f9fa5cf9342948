"""JPEG headers: all segments up to the first scan, and an end marker (the law of `header.py`)."""

from __future__ import annotations

import struct

from dali_feed.screen.exif import orientation_in
from dali_feed.screen.header import Header, UnusableError

__all__ = ["SKIPPED", "jpeg_header"]

MAX_SEGMENTS = 1 << 16  # header segments and fill bytes
MAX_STRAY = 1 << 16  # bytes in a row that are no segment
TAIL = 2048  # bytes, where an end marker is looked for

_SEGMENT = struct.Struct(">BBH").unpack_from  # 0xff, marker, length
_FRAME = struct.Struct(">BHHB").unpack_from  # precision, height, width, components

_SOS, _APP1, _APP14 = 0xDA, 0xE1, 0xEE
_ADOBE = b"\xff\xee\x00\x0eAdobe\x00\x64\0\0\0\0\0"  # four colours as they are, inverted as Photoshop has them
_FRAMES = {0xC0, 0xC1, 0xC2}  # baseline, extended and progressive, all with Huffman coding
_OTHER_FRAMES = {
    **dict.fromkeys((0xC5, 0xC6, 0xC7), "hierarchical"),
    **dict.fromkeys((0xC9, 0xCA), "arithmetic-coded"),
    **dict.fromkeys((0xCD, 0xCE, 0xCF), "hierarchical arithmetic-coded"),
    0xC3: "lossless",
    0xCB: "lossless arithmetic-coded",
}
SKIPPED = {0xC4, 0xDB, 0xDC, 0xDD, 0xFE, *range(0xE0, 0xF0)}  # DHT, DQT, DNL, DRI, COM, APP0..15


def jpeg_header(view: memoryview) -> Header:
    """The frame of a JPEG whose header segments are sound up to its first scan, and which has an end marker."""
    frame: tuple[int, int, int] | None = None
    adobe, exif = False, list[memoryview]()
    whole: list[memoryview] = []  # the segments as far as stray bytes stand among them
    at, kept = 2, 0
    for _ in range(MAX_SEGMENTS):
        marker, length = _jpeg_segment(view, at)
        if not marker:
            whole += (view[kept:at],)
            at = kept = _jpeg_marker(view, at)
            continue
        if marker == _SOS:
            break
        if marker in _FRAMES:
            if frame is not None:
                msg = "JPEG with two frames in its header"
                raise UnusableError(msg)
            frame = _jpeg_frame(view, at, length)
        elif marker == _APP1 and bytes(view[at + 4 : at + 10]) == b"Exif\0\0":
            exif += (view[at + 10 : at + 2 + length],)
        elif marker == _APP14:
            adobe = adobe or bytes(view[at + 4 : at + 9]) == b"Adobe"
        at += 2 + length if length else 1
    else:
        msg = f"JPEG with more than {MAX_SEGMENTS} header segments"
        raise UnusableError(msg)
    if frame is None:
        msg = "JPEG damaged: image data before any frame header"
        raise UnusableError(msg)
    height, width, components = frame
    scanned = view[at + 4]
    if not 1 <= scanned <= components or length != 6 + 2 * scanned:
        msg = f"JPEG damaged: scan header of length {length} with {scanned} of {components} components"
        raise UnusableError(msg)
    if bytes(view[max(at + 2 + length, len(view) - TAIL) :]).rfind(b"\xff\xd9") < 0:
        msg = f"JPEG cut off: no end marker in its last {TAIL} bytes"
        raise UnusableError(msg)
    plain = b"".join((*whole, view[kept:])) if whole else None
    if components == 4 and not adobe:  # which Pillow and torchvision take for inverted all the same
        plain = b"\xff\xd8" + _ADOBE + (plain or bytes(view))[2:]
    return Header("jpeg", width, height, components, orientation_in(*exif), plain)


def _jpeg_marker(view: memoryview, at: int) -> int:
    """Where the first marker behind the stray bytes at `at` is: libjpeg skips them, nvImageCodec gives up."""
    start = -1
    for most in (64, MAX_STRAY):
        stray = bytes(view[at : at + most])
        start = stray.find(b"\xff", 1)
        while stray.startswith(b"\xff\0", start):
            start = stray.find(b"\xff", start + 2)
        if start >= 0:
            break
    if start < 0 or at == 2:  # the third byte is part of what everybody knows a JPEG by
        msg = f"JPEG damaged: {stray[0]:02x} {stray[1]:02x} at byte {at}, where a marker should be"
        raise UnusableError(msg)
    return at + start


def _jpeg_segment(view: memoryview, at: int) -> tuple[int, int]:
    """Marker and length of the header segment at `at`, which is whole; length 0 for a fill byte, marker 0 for none."""
    lead, marker, length = _SEGMENT(view, at)
    if lead != 0xFF or marker == 0:
        return 0, 0
    if marker == 0xFF:
        return marker, 0
    if marker in _OTHER_FRAMES:
        msg = f"JPEG is {_OTHER_FRAMES[marker]} (frame type {marker:02x}), which the decoders cannot read"
        raise UnusableError(msg)
    if marker not in SKIPPED and marker not in _FRAMES and marker != _SOS:
        msg = f"JPEG damaged: marker {marker:02x} at byte {at} has no place before the image data"
        raise UnusableError(msg)
    if length < 2 or (marker == _APP1 and length < 8 and bytes(view[at + 4 : at + 10]) == b"Exif\0\0"):
        # a short Exif segment makes the decoder's parser ask for 2**64 bytes
        msg = f"JPEG damaged: segment {marker:02x} at byte {at} has length {length}"
        raise UnusableError(msg)
    if at + 2 + length > len(view):
        msg = f"JPEG cut off: segment {marker:02x} at byte {at} ends at {at + 2 + length} of {len(view)} bytes"
        raise UnusableError(msg)
    return marker, length


def _jpeg_frame(view: memoryview, at: int, length: int) -> tuple[int, int, int]:
    """Height, width and components of the frame header at `at`."""
    precision, height, width, components = _FRAME(view, at + 4)
    if precision != 8:
        msg = f"JPEG with {precision} bits per sample; the decoders take 8"
        raise UnusableError(msg)
    if components not in (1, 3, 4):
        msg = f"JPEG with {components} components; the decoders take 1, 3 or 4"
        raise UnusableError(msg)
    if length != 8 + 3 * components:
        msg = f"JPEG damaged: frame header of length {length} for {components} components"
        raise UnusableError(msg)
    for factors in view[at + 11 : at + 10 + 3 * components : 3]:
        if not (1 <= factors >> 4 <= 4 and 1 <= factors & 15 <= 4):
            msg = f"JPEG damaged: sampling factors {factors >> 4}x{factors & 15}"
            raise UnusableError(msg)
    return height, width, components
