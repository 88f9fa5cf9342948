"""Small good files of every kind that the screen takes."""

from __future__ import annotations

import functools
import io
import struct
import zlib

import numpy as np
from kit.images import pixels
from kit.kinds import saved
from numpy.typing import NDArray
from PIL import Image

__all__ = ["big_endian_tiff", "bmp_of", "chunk", "scan_at", "zoo"]

ICC = b"i" * 5000  # longer than what the quick way reads at once


@functools.cache
def big_endian_tiff() -> bytes:
    """A gray 7x5 TIFF in Motorola order."""
    entries = ((256, 7), (257, 5), (258, 8), (259, 1), (262, 1), (273, 122), (277, 1), (278, 5), (279, 35))
    head = b"MM\0*" + struct.pack(">IH", 8, len(entries))
    return head + b"".join(struct.pack(">HHIHH", tag, 3, 1, value, 0) for tag, value in entries) + bytes(4 + 35)


def chunk(name: bytes, body: bytes) -> bytes:
    """A PNG chunk."""
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def interlaced_png(gray: NDArray[np.uint8]) -> bytes:
    """A gray PNG in Adam7 order."""
    passes = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
    rows = [row for y, x, down, right in passes for row in gray[y::down, x::right]]
    head = struct.pack(">IIBBBBB", *gray.shape[::-1], 8, 0, 0, 0, 1)
    body = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


@functools.cache
def zoo() -> dict[str, bytes]:
    """Small good files of every kind that is taken."""
    noise = np.random.default_rng(0).integers(-20, 20, (31, 40, 3))
    colour = Image.fromarray(np.clip(pixels(0, 31, 40) + noise, 0, 255).astype(np.uint8))
    gray, alpha = colour.convert("L"), colour.convert("RGBA")
    wide = Image.fromarray(np.asarray(gray).astype(np.uint16) * 257)
    exif = Image.Exif()
    exif[0x0112] = 6
    pages = io.BytesIO()
    colour.save(pages, "TIFF", save_all=True, append_images=[gray])
    top_down = bytearray(saved(colour, "BMP"))
    struct.pack_into("<i", top_down, 22, -31)
    jpeg, palette = saved(colour), saved(colour.convert("P"), "BMP")
    turned = alpha.resize((41, 33))
    red = [Image.new("RGB", colour.size, "red"), Image.new("RGB", colour.size, "blue")]
    return {
        "jpeg": jpeg,
        "jpeg progressive": saved(colour, progressive=True),
        "jpeg optimized": saved(colour, optimize=True),
        "jpeg gray": saved(gray),
        "jpeg cmyk": saved(colour.convert("CMYK")),
        "jpeg cmyk unmarked": saved(colour.convert("CMYK")).replace(b"\xff\xee\x00\x0eAdobe", b"\xff\xee\x00\x0eJunk!"),
        "jpeg cmyk unmarked, stray": saved(colour.convert("CMYK"))
        .replace(b"Adobe", b"Junk!")
        .replace(b"\xff\xdb", b"abc\xff\xdb", 1),
        "jpeg 4:4:4": saved(colour, subsampling=0),
        "jpeg 4:2:2": saved(colour, subsampling=1),
        "jpeg restarts": saved(colour, restart_marker_rows=1),
        "jpeg exif": saved(colour, exif=exif),
        "jpeg exif of nothing": jpeg[:2] + b"\xff\xe1\0\x08Exif\0\0" + jpeg[2:],
        "jpeg comment": jpeg[:2] + b"\xff\xfe\1\2" + bytes(256) + jpeg[2:],
        "jpeg comment of nothing": jpeg[:2] + b"\xff\xfe\0\2" + jpeg[2:],
        "jpeg icc": saved(colour, icc_profile=ICC, exif=exif),
        "jpeg fill bytes": jpeg[:20] + b"\xff\xff" + jpeg[20:],
        "jpeg trailing junk": jpeg + bytes(1000),
        "jpeg stray bytes": jpeg[:20] + b"stray" + jpeg[20:],
        "jpeg stray zeros": jpeg[:20] + bytes(3) + jpeg[20 : scan_at(jpeg)] + b"\xff\0" + jpeg[scan_at(jpeg) :],
        "jpeg 1x1": saved(colour.resize((1, 1))),
        "png rgb": saved(colour, "PNG"),
        "png rgba": saved(alpha, "PNG"),
        "png palette": saved(colour.convert("P"), "PNG"),
        "png gray": saved(gray, "PNG"),
        "png 1 bit": saved(colour.convert("1"), "PNG"),
        "png 16 bit": saved(wide, "PNG"),
        "png interlaced": interlaced_png(np.asarray(gray)),
        "png exif": saved(colour, "PNG", exif=exif),
        "png animated": saved(colour, "PNG", save_all=True, append_images=red),
        "png animated beside its image": saved(
            colour, "PNG", save_all=True, append_images=red, default_image=True, exif=exif
        ),
        "webp lossy": saved(colour, "WEBP"),
        "webp lossless": saved(colour, "WEBP", lossless=True),
        "webp alpha": saved(alpha.resize((40, 31)), "WEBP"),
        "webp exif": saved(colour, "WEBP", exif=exif),
        "webp alpha exif": saved(turned, "WEBP", exif=exif),
        "webp alpha exif icc": saved(turned, "WEBP", exif=exif, icc_profile=b"x" * 333),
        "webp without its exif": saved(colour, "WEBP", exif=exif).replace(b"EXIF", b"JUNK"),
        "bmp": saved(colour, "BMP"),
        "bmp top down": bytes(top_down),
        "bmp palette": palette,
        "bmp of 16 bits": bmp(40, 16),
        "bmp of os2": os2_bmp(),
        "bmp 565": bmp(40, 16, 0xF800, 0x7E0, 0x1F),
        "bmp 32 bits, header 52": bmp(52, 32, 0xFF0000, 0xFF00, 0xFF),
        "bmp rgba": saved(alpha, "BMP"),
        "tiff": saved(colour, "TIFF"),
        "tiff lzw": saved(colour, "TIFF", compression="tiff_lzw"),
        "tiff gray": saved(gray, "TIFF"),
        "tiff palette": saved(colour.convert("P"), "TIFF"),
        "tiff 16 bit": saved(wide, "TIFF"),
        "tiff pages": pages.getvalue(),
        "tiff big endian": big_endian_tiff(),
        "tiff of one bit": saved(colour.convert("1"), "TIFF"),
        "tiff turned": saved(colour, "TIFF", tiffinfo={274: 6}),
        "pnm ppm": saved(colour, "PPM"),
        "pnm pgm": saved(gray, "PPM"),
        "pnm pbm": saved(colour.convert("1"), "PPM"),
        "pnm of seven levels": b"P6 2 1 7\n\0\1\2\3\4\7",
        "pnm of text": b"P2\n# gray\n3 2\n15\n0 1 2\n3 4 15\n",
    }


def os2_bmp() -> bytes:
    """9x5 pixels behind a header of 12 bytes, with a palette of three bytes a colour."""
    head = struct.pack("<IHHI", 32 + 4 * 5, 0, 0, 32) + struct.pack("<IHHHH", 12, 9, 5, 1, 1)
    return b"BM" + head + bytes(range(6)) + bytes(4 * 5)


def bmp_of(width: int, height: int, bits: int, compression: int, body: bytes, palette: int = 0) -> bytes:
    """A BMP of that size whose body, with so many bytes of a palette first, is as given."""
    start = 54 + palette
    head = struct.pack("<IiiHHI20x", 40, width, height, 1, bits, compression)
    return b"BM" + struct.pack("<IHHI", 54 + len(body), 0, 0, start) + head[:32] + bytes(8) + body


def bmp(header: int, bits: int, *masks: int) -> bytes:
    """A BMP of 5x3 pixels, with bit fields where there are masks."""
    info = struct.pack("<IiiHHI20x", header, 5, 3, 1, bits, 3 if masks else 0)
    info = (info + struct.pack(f"<{len(masks)}I", *masks)).ljust(header, b"\0")
    body = bytes(range(17, 17 + 3 * (-(-5 * bits // 32) * 4)))
    return b"BM" + struct.pack("<IHHI", 14 + len(info) + len(body), 0, 0, 14 + len(info)) + info + body


def scan_at(file: bytes) -> int:
    """Where a JPEG's first scan header starts."""
    return file.index(b"\xff\xda")
