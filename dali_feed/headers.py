"""Image headers, read as strictly as the decoders read them.

The law of this file: whatever a function here accepts, the decoder's own header parser accepts too, with the
same size. That parser's failure is fatal (DALI dies with it), so these walks go as far as its walks go: a
JPEG up to its scan, a PNG up to IEND, a WebP up to its EXIF chunk. What would only make decoding fail
is checked where it costs little; the rest is for the decoder to say.

Offsets are unsigned and every read goes through `struct`, which raises past the end; `screen.header_of`
turns that into "cut off". All walks are bounded.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

__all__ = [
    "SKIPPED",
    "Header",
    "UnusableError",
    "bmp_header",
    "exif_orientation",
    "jpeg_header",
    "png_header",
    "webp_header",
]

MAX_SEGMENTS = 1 << 16  # JPEG header segments and fill bytes
MAX_CHUNKS = 1 << 16  # PNG and WebP
MAX_SIDE = (1 << 31) - 1
TAIL = 2048  # where an end marker is looked for

_SEGMENT = struct.Struct(">BBH").unpack_from  # 0xff, marker, length
_FRAME = struct.Struct(">BHHB").unpack_from  # precision, height, width, components
_CHUNK = struct.Struct(">I4s").unpack_from
_IHDR = struct.Struct(">IIBBBBB").unpack_from
_RIFF_CHUNK = struct.Struct("<4sI").unpack_from
_BMP_INFO = struct.Struct("<IiiHHI12xI").unpack_from  # header size, width, height, planes, bits, compression, colours
_BMP_CORE = struct.Struct("<IHHHH").unpack_from

_SOS, _APP1 = 0xDA, 0xE1
_FRAMES = {0xC0, 0xC1, 0xC2}  # baseline, extended and progressive, all with Huffman coding
_OTHER_FRAMES = {
    **dict.fromkeys((0xC5, 0xC6, 0xC7), "hierarchical"),
    **dict.fromkeys((0xC9, 0xCA), "arithmetic-coded"),
    **dict.fromkeys((0xCD, 0xCE, 0xCF), "hierarchical arithmetic-coded"),
    0xC3: "lossless",
    0xCB: "lossless arithmetic-coded",
}
SKIPPED = {0xC4, 0xDB, 0xDC, 0xDD, 0xFE, *range(0xE0, 0xF0)}  # DHT, DQT, DNL, DRI, COM, APP0..15

_PNG_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
_PNG_COMPONENTS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}


class UnusableError(ValueError):
    """A payload that no decoder may see; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Header:
    """What an image says of itself, as stored: sizes are those before any EXIF rotation.

    format       'jpeg', 'png', 'webp', 'bmp', 'tiff', 'gif' or 'avif'
    components   samples per pixel; 3 for a palette
    orientation  EXIF 1..8; 1 where there is none
    """

    format: str
    width: int
    height: int
    components: int
    orientation: int = 1

    def __post_init__(self) -> None:
        if not (0 < self.width <= MAX_SIDE and 0 < self.height <= MAX_SIDE):
            msg = f"{self.format.upper()} with an impossible size of {self.width}x{self.height}"
            raise UnusableError(msg)


def exif_orientation(block: bytes) -> int:
    """The orientation in a TIFF-structured EXIF block; 1 where it says nothing sensible."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(block[:4])
    if order is None or len(block) < 8:
        return 1
    (first,) = struct.unpack_from(order + "I", block, 4)
    if first + 2 > len(block):
        return 1
    (count,) = struct.unpack_from(order + "H", block, first)
    for at in range(first + 2, min(first + 2 + 12 * count, len(block) - 11), 12):
        tag, kind, number, value = struct.unpack_from(order + "HHIH", block, at)
        if tag == 0x0112:
            return value if kind == 3 and number == 1 and 1 <= value <= 8 else 1
    return 1


def jpeg_header(view: memoryview) -> Header:
    """The frame of a JPEG whose header segments are sound up to its first scan, and which has an end marker."""
    frame: tuple[int, int, int] | None = None
    orientation = 1
    at = 2
    for _ in range(MAX_SEGMENTS):
        marker, length = _jpeg_segment(view, at)
        if marker == _SOS:
            break
        if marker in _FRAMES:
            if frame is not None:
                msg = "JPEG with two frames in its header"
                raise UnusableError(msg)
            frame = _jpeg_frame(view, at, length)
        elif marker == _APP1 and orientation == 1 and bytes(view[at + 4 : at + 10]) == b"Exif\0\0":
            orientation = exif_orientation(bytes(view[at + 10 : at + 2 + length]))
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
    return Header("jpeg", width, height, components, orientation)


def _jpeg_segment(view: memoryview, at: int) -> tuple[int, int]:
    """Marker and length of the header segment at `at`, which is whole; length 0 for a fill byte."""
    lead, marker, length = _SEGMENT(view, at)
    if lead != 0xFF or marker == 0:
        msg = f"JPEG damaged: {lead:02x} {marker:02x} at byte {at}, where a marker should be"
        raise UnusableError(msg)
    if marker == 0xFF:
        return marker, 0
    if marker in _OTHER_FRAMES:
        msg = f"JPEG is {_OTHER_FRAMES[marker]} (frame type {marker:02x}), which the decoders reject"
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


def png_header(view: memoryview) -> Header:
    """The IHDR of a PNG whose chunks are whole up to IEND."""
    length, name = _CHUNK(view, 8)
    if name != b"IHDR" or length != 13:
        msg = "PNG damaged: its first chunk is not IHDR"
        raise UnusableError(msg)
    width, height, depth, colour, compression, filtering, interlace = _IHDR(view, 16)
    if zlib.crc32(view[12:29]) != struct.unpack_from(">I", view, 29)[0]:
        msg = "PNG damaged: the checksum of IHDR is wrong"
        raise UnusableError(msg)
    if depth not in _PNG_DEPTHS.get(colour, ()) or compression or filtering or interlace > 1:
        msg = f"PNG damaged: no such format (bits {depth}, colour type {colour}, interlace {interlace})"
        raise UnusableError(msg)
    seen: set[bytes] = set()
    orientation = 1
    at = 33
    for _ in range(MAX_CHUNKS):
        if at + 12 > len(view):
            msg = "PNG cut off: no IEND chunk"
            raise UnusableError(msg)
        length, name = _CHUNK(view, at)
        if at + 12 + length > len(view):
            msg = f"PNG cut off: chunk {name!r} at byte {at} ends at {at + 12 + length} of {len(view)} bytes"
            raise UnusableError(msg)
        seen.add(name)
        if name == b"IEND":
            break
        if name == b"IHDR" or (name == b"PLTE" and (length % 3 or not 3 <= length <= 768)):
            msg = f"PNG damaged: chunk {name!r} of length {length} at byte {at}"
            raise UnusableError(msg)
        if name == b"eXIf" and orientation == 1:
            orientation = exif_orientation(bytes(view[at + 8 : at + 8 + length]))
        at += 12 + length
    else:
        msg = f"PNG with more than {MAX_CHUNKS} chunks"
        raise UnusableError(msg)
    if b"IDAT" not in seen or (colour == 3 and b"PLTE" not in seen):
        msg = f"PNG damaged: no {'IDAT' if b'IDAT' not in seen else 'PLTE'} chunk"
        raise UnusableError(msg)
    return Header("png", width, height, _PNG_COMPONENTS[colour], orientation)


def webp_header(view: memoryview) -> Header:
    """The size of a WebP whose chunks are whole, from VP8, VP8L or VP8X."""
    (size,) = struct.unpack_from("<I", view, 4)
    if size + 8 > len(view):
        msg = f"WebP cut off: says {size + 8} bytes and has {len(view)}"
        raise UnusableError(msg)
    view = view[: size + 8]
    name, length = _RIFF_CHUNK(view, 12)
    if name != b"VP8X":
        return _webp_image(view, 12)
    flags = view[20]
    width, height = (int.from_bytes(view[at : at + 3], "little") + 1 for at in (24, 27))
    if length < 10 or flags & 2:
        msg = "WebP is animated, which the decoders reject" if flags & 2 else "WebP damaged: VP8X chunk too short"
        raise UnusableError(msg)
    image, orientation, odd = None, 0, length & 1
    at = 20 + length + (length & 1)
    for _ in range(MAX_CHUNKS):
        if at + 8 > len(view):
            break
        name, length = _RIFF_CHUNK(view, at)
        if at + 8 + length > len(view):
            msg = f"WebP cut off: chunk {name!r} at byte {at} ends at {at + 8 + length} of {len(view)} bytes"
            raise UnusableError(msg)
        if name in (b"VP8 ", b"VP8L") and image is None:
            image = _webp_image(view, at)
        elif name == b"EXIF" and flags & 8 and not orientation:
            if odd:  # the decoder's parser forgets the padding byte and runs off the end
                msg = "WebP with an odd-sized chunk before its EXIF chunk, which the decoders cannot read"
                raise UnusableError(msg)
            orientation = exif_orientation(bytes(view[at + 8 : at + 8 + length]).removeprefix(b"Exif\0\0"))
        odd |= length & 1
        at += 8 + length + (length & 1)
    if image is None or (image.width, image.height) != (width, height):
        msg = f"WebP damaged: no image of the canvas size {width}x{height}"
        raise UnusableError(msg)
    if flags & 8 and not orientation:
        msg = "WebP damaged: announces an EXIF chunk and has none"
        raise UnusableError(msg)
    return Header("webp", width, height, 4 if flags & 16 else 3, orientation or 1)


def _webp_image(view: memoryview, at: int) -> Header:
    """The size in the VP8 or VP8L chunk at `at`."""
    name, length = _RIFF_CHUNK(view, at)
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
    msg = f"WebP damaged: chunk {name!r} is no image"
    raise UnusableError(msg)


def bmp_header(view: memoryview) -> Header:
    """The size of a BMP whose pixels are all there."""
    (start, header) = struct.unpack_from("<II", view, 10)
    if header == 12:
        _, width, height, planes, bits = _BMP_CORE(view, 14)
        compression, colours = 0, 0
    elif header >= 40:
        _, width, height, planes, bits, compression, colours = _BMP_INFO(view, 14)
        width, height = abs(width), abs(height)  # a negative height counts rows from the top
    else:
        msg = f"BMP with a header of {header} bytes"
        raise UnusableError(msg)
    if planes != 1 or bits not in {0: (1, 4, 8, 24, 32), 1: (8,), 3: (16, 32)}.get(compression, ()):
        msg = f"BMP with {bits} bits per pixel, compression {compression} and {planes} planes is not supported"
        raise UnusableError(msg)
    if bits <= 8 and colours > 1 << bits:
        msg = f"BMP damaged: {colours} colours in {bits} bits per pixel"
        raise UnusableError(msg)
    palette = 0 if bits > 8 else (colours or 1 << bits) * (3 if header == 12 else 4)
    pixels = 0 if compression == 1 else (width * bits + 31) // 32 * 4 * height
    if start < 14 + header + palette or start + max(pixels, 1) > len(view):
        msg = f"BMP cut off or damaged: pixels at byte {start}, at least {pixels} long, in {len(view)} bytes"
        raise UnusableError(msg)
    return Header("bmp", width, height, 4 if bits == 32 else 3)
