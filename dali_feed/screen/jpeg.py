"""JPEG headers: all segments up to the first scan, and an end marker (the law of `header.py`).

And how often a decoder goes over the image: once per scan, and a scan of a whole image can take as little as ten bytes.
The law: the number of scans found is never below what a decoder runs. A baseline JPEG has one, and is not
looked through; of the others the scan headers are looked for, bytes before walks, so that an ordinary one costs a
search at the speed of memory.
"""

from __future__ import annotations

import re
import struct

import numpy as np
from numpy.typing import NDArray

from dali_feed.screen.header import Header, UnusableError

MAX_SEGMENTS = 1 << 16  # header segments and fill bytes
MAX_STRAY = 1 << 16  # bytes in a row that are no segment
TAIL = 2048  # bytes, where an end marker is looked for
SCAN_BYTES = 10  # of the header of a scan of one component: no scan takes less
LEAST = 1 << 10  # pixels that going over a smaller image costs as well
PIECE = 1 << 18  # bytes that are looked through at a time, in a core's cache

_SEGMENT = struct.Struct(">BBH").unpack_from  # 0xff, marker, length
_FRAME = struct.Struct(">BHHB").unpack_from  # precision, height, width, components

_PROGRESSIVE, _SOS, _APP1, _APP14, _TEM = 0xC2, 0xDA, 0xE1, 0xEE, 0x01
_LAST = frozenset((0xD8, 0xD9))  # the end of the image, or a second beginning, which is an error
_MARKER = re.compile(rb"\xff+([^\x00\xff\xd0-\xd7])")  # in image data 0xff is followed by zero or is a restart
_ADOBE = b"\xff\xee\x00\x0eAdobe\x00\x64\0\0\0\0\0"  # four colours as they are, inverted as Photoshop has them
FRAMES = {0xC0, 0xC1, _PROGRESSIVE}  # baseline, extended and progressive, all with Huffman coding
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
        if marker in FRAMES:
            if frame is not None:
                raise UnusableError("JPEG with two frames in its header")
            frame = _jpeg_frame(view, at, length)
        elif marker == _APP1 and bytes(view[at + 4 : at + 10]) == b"Exif\0\0":
            exif += (view[at + 10 : at + 2 + length],)
        elif marker == _APP14:
            adobe = adobe or bytes(view[at + 4 : at + 9]) == b"Adobe"
        at += 2 + length if length else 1
    else:
        raise UnusableError(f"JPEG with more than {MAX_SEGMENTS} header segments")
    if frame is None:
        raise UnusableError("JPEG damaged: image data before any frame header")
    height, width, components = frame
    scanned = view[at + 4]
    if not 1 <= scanned <= components or length != 6 + 2 * scanned:
        raise UnusableError(f"JPEG damaged: scan header of length {length} with {scanned} of {components} components")
    if bytes(view[max(at + 2 + length, len(view) - TAIL) :]).rfind(b"\xff\xd9") < 0:
        raise UnusableError(f"JPEG cut off: no end marker in its last {TAIL} bytes")
    plain = b"".join((*whole, view[kept:])) if whole else None
    if components == 4 and not adobe:  # which Pillow and torchvision take for inverted all the same
        plain = b"\xff\xd8" + _ADOBE + (plain or bytes(view))[2:]
    return Header("jpeg", width, height, components, b"".join(exif), plain)


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
        raise UnusableError(f"JPEG damaged: {stray[0]:02x} {stray[1]:02x} at byte {at}, where a marker should be")
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
    if marker not in SKIPPED and marker not in FRAMES and marker != _SOS:
        raise UnusableError(f"JPEG damaged: marker {marker:02x} at byte {at} has no place before the image data")
    if length < 2 or (marker == _APP1 and length < 8 and bytes(view[at + 4 : at + 10]) == b"Exif\0\0"):
        # a short Exif segment makes the decoder's parser ask for 2**64 bytes
        raise UnusableError(f"JPEG damaged: segment {marker:02x} at byte {at} has length {length}")
    if at + 2 + length > len(view):
        msg = f"JPEG cut off: segment {marker:02x} at byte {at} ends at {at + 2 + length} of {len(view)} bytes"
        raise UnusableError(msg)
    return marker, length


def _jpeg_frame(view: memoryview, at: int, length: int) -> tuple[int, int, int]:
    precision, height, width, components = _FRAME(view, at + 4)
    if precision != 8:
        raise UnusableError(f"JPEG with {precision} bits per sample; the decoders take 8")
    if components not in (1, 3, 4):
        raise UnusableError(f"JPEG with {components} components; the decoders take 1, 3 or 4")
    if length != 8 + 3 * components:
        raise UnusableError(f"JPEG damaged: frame header of length {length} for {components} components")
    for factors in view[at + 11 : at + 10 + 3 * components : 3]:
        if not (1 <= factors >> 4 <= 4 and 1 <= factors & 15 <= 4):
            raise UnusableError(f"JPEG damaged: sampling factors {factors >> 4}x{factors & 15}")
    return height, width, components


def scans(view: memoryview, most: int) -> int:
    """How many scans a JPEG has whose header passed the screen; where that is above `most`, any number above it."""
    at, progressive, components = 2, False, 0
    while marker := _MARKER.search(view, at):
        at, kind = marker.end(), marker[1][0]
        if kind == _SOS:
            break
        if kind in FRAMES:
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
    count = 0
    for first in range(0, len(data), PIECE):
        piece = data[first : first + PIECE + 1]
        count += int(np.count_nonzero((piece[:-1] == 0xFF) & (piece[1:] == _SOS)))
    return count


def _walked(data: memoryview, at: int, most: int) -> int:
    """The scan headers from `at` on up to the end of the image, or one more than `most`."""
    count = 0
    while count <= most and (marker := _MARKER.search(data, at)):
        at, kind = marker.end(), marker[1][0]
        if kind in _LAST:
            break
        count += kind == _SOS
        at += _length(data, at, kind)
    return count


def _length(data: memoryview, at: int, kind: int) -> int:
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
