"""Files that cost a decoder much for what they say or are, each made to just pass a bound on pixels.

`python hostile.py EXPONENT [NAME...]` decodes each in a process of its own, at most 2**EXPONENT pixels and sixteen
passes over them, and prints JSON: name -> what became of it, seconds of processor time, MB of memory at its most.
"""

from __future__ import annotations

import functools
import json
import math
import os
import struct
import sys
import time
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kit.kinds import saved, slow_jpeg
from PIL import Image
from zoo import bmp_of, chunk

from dali_feed.engines.host.decode import decoded, new_decoder
from dali_feed.screen.pillow import STRIPS, opened
from dali_feed.screen.screen import screen, turned

__all__ = ["FILES", "JPEG", "LZW", "RAW", "rle", "tiff"]

RAW, LZW, JPEG, DEFLATE, LZMA, ZSTD = 1, 5, 7, 8, 34925, 50000
NAMES = {LZW: "tiff_lzw", DEFLATE: "tiff_adobe_deflate", LZMA: "lzma", ZSTD: "zstd"}
SHARED = [(RAW, "deep"), (LZW, "colour"), (LZW, "gray"), (DEFLATE, "deep"), (LZMA, "deep"), (ZSTD, "deep")]
KINDS = {"deep": (4, 16), "colour": (3, 8), "gray": (1, 8)}  # samples, bits


def tiff(width: int, height: int, data: bytes, pieces: int, how: int, kind: str = "gray", **more: Any) -> bytes:
    """A TIFF whose strips of `rows` or tiles of (width, height) are all the same bytes, or the rest of them."""
    samples, bits = KINDS[kind]
    places = struct.pack(f"<{2 * pieces}I", *[8] * pieces, *[len(data)] * pieces)
    if more.get("apart"):
        places = struct.pack(f"<{2 * pieces}I", *range(8, 8 + pieces), *range(len(data), len(data) - pieces, -1))
    at = 8 + len(data)
    starts, sizes = (at, at + 4 * pieces) if pieces > 1 else struct.unpack("<2I", places)
    depths = at + len(places)
    entries = [(256, 4, 1, width), (257, 4, 1, height), (259, 3, 1, how), (277, 3, 1, samples)]
    entries += [(258, 3, samples, depths if samples > 2 else bits), (262, 3, 1, 2 if samples > 2 else 1)]
    entries += [(338, 3, 1, 2)] * (samples == 4)
    if tile := more.get("tile"):
        entries += [(322, 4, 1, tile[0]), (323, 4, 1, tile[1]), (324, 4, pieces, starts), (325, 4, pieces, sizes)]
    else:
        entries += [(273, 4, pieces, starts), (279, 4, pieces, sizes), (278, 4, 1, more.get("rows", 1))]
    entries += more.get("entries", [])
    body = data + places + struct.pack(f"<{samples}H", *[bits] * samples)
    table = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", *one) for one in sorted(entries)) + bytes(4)
    return struct.pack("<2sHI", b"II", 42, 8 + len(body)) + body + table


@functools.cache
def zeros(how: int, count: int) -> bytes:
    """So many, compressed by libtiff."""
    if how == RAW:
        return bytes(count)
    file = saved(Image.new("L", (count, 1)), "TIFF", compression=NAMES[how])
    tags: Any = opened(file).tag_v2  # type: ignore[attr-defined]
    return file[tags[273][0] : tags[273][0] + tags[279][0]]


def tiled(how: int, kind: str, n: int) -> bytes:
    """All tiles share the same few bytes."""
    side, (samples, bits) = math.isqrt(n), KINDS[kind]
    data = zeros(how, 256 * 256 * samples * bits // 8)
    return tiff(side, side, data, (side // 256) ** 2, how, kind, tile=(256, 256))


def tiled_jpeg(n: int, edge: int, scans: int) -> bytes:
    """All tiles share a JPEG of many scans."""
    side = math.isqrt(n)
    data = slow_jpeg(edge, scans) if scans > 1 else saved(Image.new("L", (edge, edge)))
    return tiff(side, side, data, (side // edge) ** 2, JPEG, tile=(edge, edge))


def gif(*parts: bytes, canvas: int = 16, image: int = 16) -> bytes:
    """A small one with parts before its image, on a canvas of another size."""
    file = bytearray(saved(Image.new("P", (16, 16)), "GIF", interlace=0))
    at = 13 + (6 << (file[10] & 7))
    struct.pack_into("<HH", file, 6, canvas, canvas)
    struct.pack_into("<HH", file, at + 5, image, image)
    return bytes(file[:at]) + b"".join(parts) + bytes(file[at:])


def rle(width: int, height: int, body: bytes, bits: int = 8) -> bytes:
    """A compressed BMP."""
    return bmp_of(width, height, bits, 1 if bits == 8 else 2, bytes(4 << bits) + body, 4 << bits)


def png(n: int, *more: bytes, depth: int = 16, interlace: int = 0, whole: bool = True) -> bytes:
    """One of zeros, of four samples a pixel, with chunks before them."""
    side = math.isqrt(n)
    squeeze = zlib.compressobj(1)
    row = bytes(1 + side * depth // 2 + 8 * interlace)
    body = b"".join(squeeze.compress(row) for _ in range(side if whole else 1)) + squeeze.flush()
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, depth, 6, 0, 0, interlace))
    return b"".join((b"\x89PNG\r\n\x1a\n", head, *more, chunk(b"IDAT", body), chunk(b"IEND", b"")))


@functools.cache
def _much() -> bytes:
    """128 MB of zeros, compressed: a block of them, so many times."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = deflate.compress(bytes(1 << 20)) + deflate.flush(zlib.Z_FULL_FLUSH)
    return b"\x78\xda" + 128 * block + b"\3\0" + struct.pack(">HH", (1 << 27) % 65521, 1)


def squeezed(name: bytes, before: bytes) -> bytes:
    """A chunk that is large once it is decompressed."""
    return chunk(name, before + _much())


def with_exif(entries: int, size: int, segments: int) -> bytes:
    """A JPEG whose EXIF has many entries that all name the same bytes."""
    table = b"".join(struct.pack("<HHII", 20_000 + k, 1, size, 8) for k in range(entries))
    first = b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", entries) + table
    blocks = [first, *[b"Exif\0\0" + bytes(60_000)] * segments]
    file = saved(Image.new("L", (16, 16)))
    return file[:2] + b"".join(b"\xff\xe1" + struct.pack(">H", len(one) + 2) + one for one in blocks) + file[2:]


def webp_canvas(n: int) -> bytes:
    """A small image that says it has a large canvas."""
    file = bytearray(saved(Image.new("RGBA", (16, 16), (1, 2, 3, 4)), "WEBP", lossless=True, exif=b"Exif\0\0"))
    for at in (24, 27):
        file[at : at + 3] = (math.isqrt(n) - 1).to_bytes(3, "little")
    return bytes(file)


def square(n: int, kind: str, mode: str = "RGB", **options: Any) -> bytes:
    """An image of one colour, of all pixels that there may be."""
    side = min(math.isqrt(n), 16383)
    return saved(Image.new(mode, (side, side)), kind, **options)


def frames(n: int) -> bytes:
    """A WebP of three hundred images."""
    del n
    more = [Image.new("RGB", (64, 64), (k % 256, 0, 0)) for k in range(300)]
    return saved(more[0], "WEBP", save_all=True, append_images=more[1:])


def pnm(kind: int, n: int, most: str, body: bytes) -> bytes:
    """One that says it is a square of n pixels."""
    return b"P%d %d %d %s\n" % (kind, math.isqrt(n), math.isqrt(n), most.encode()) + body


FILES: dict[str, Callable[[int], bytes]] = {
    **{f"tiff tiles shared, {how} {kind}": functools.partial(tiled, how, kind) for how, kind in SHARED},
    "tiff jpeg tiles of 16": lambda n: tiled_jpeg(n, 16, 1),
    "tiff jpeg tiles of 64": lambda n: tiled_jpeg(n, 64, 1),
    "tiff jpeg tiles of scans": lambda n: tiled_jpeg(n, math.isqrt(n) // 4, 14),
    "tiff raw strips": lambda n: tiff(16, n >> 9, bytes(16), n >> 9, RAW),
    "tiff lzma strips": lambda n: tiff(16, n >> 9, zeros(LZMA, 16), n >> 9, LZMA),
    "tiff raw strips, too many": lambda n: tiff(1, 16 * STRIPS, bytes(1), 16 * STRIPS, RAW),
    "tiff strips that overlap": lambda n: tiff(16, 60_000, os.urandom(1 << 20), 60_000, DEFLATE, apart=True),
    "tiff jpegs that overlap": lambda n: tiff(16, 16 * 9000, slow_jpeg(16, 9000), 9000, JPEG, rows=16, apart=True),
    "tiff tile larger than its image": lambda n: tiff(4, 4, zeros(LZW, 16), 1, LZW, tile=(1 << 15, 1 << 15)),
    "tiff tiles wider than their image": lambda n: tiff(1, n >> 11, zeros(LZW, 1 << 15), n >> 15, LZW, tile=(2048, 16)),
    "tiff of nothing": lambda n: tiff(math.isqrt(n), math.isqrt(n), b"abc", 1, DEFLATE, "deep", rows=math.isqrt(n)),
    "tiff tags that overlap": lambda n: tiff(
        4, 4, os.urandom(1 << 20), 1, RAW, rows=4, entries=[(40_000 + k, 1, 1 << 20, 8) for k in range(4000)]
    ),
    "gif": lambda n: square(n, "GIF", "P"),
    "gif of a large canvas": lambda n: gif(canvas=math.isqrt(n)),
    "gif beyond its canvas": lambda n: gif(image=1024),
    "gif cleared after a large image": lambda n: gif(b"!\xf9\4\x08\0\0\0\0", canvas=65535, image=65535),
    "gif of comments": lambda n: gif(b"!\xfe" + b"\1a" * 1_000_000 + b"\0"),
    "gif of extensions": lambda n: gif(b"!\xfe\0" * 1_000_000),
    "gif of many images": lambda n: gif()[:-1] + gif()[13 + 768 :][:-1] * 50_000 + b";",
    "bmp of nothing": lambda n: bmp_of(math.isqrt(n), math.isqrt(n), 32, 0, b"abc"),
    "bmp of one bit": lambda n: bmp_of(math.isqrt(n), math.isqrt(n), 1, 0, bytes(8 + n // 8), 8),
    "bmp runs": lambda n: rle(math.isqrt(n // 22), math.isqrt(n // 22), b"\1a" * (n // 22)),
    "bmp runs of 4 bits": lambda n: rle(math.isqrt(n // 22), math.isqrt(n // 22), b"\xff\x12" * (n // 22), 4),
    "bmp ends of lines": lambda n: rle(n >> 14, 1, b"\1a\0\0"),
    "bmp ends of a long line": lambda n: rle(n, 1, b"\1a\0\0"),
    "bmp skips": lambda n: rle(n >> 14, 1, b"\0\2\xff\xff"),
    "bmp skips of long lines": lambda n: rle(n, 1, b"\0\2\xff\xff"),
    "pnm of nothing": lambda n: pnm(6, n, "255", b""),
    "pnm of 16 bits": lambda n: pnm(6, n, "65535", bytes(6 * n)),
    "pnm of seven levels": lambda n: pnm(6, n, "7", bytes(3 * n)),
    "pnm of text": lambda n: pnm(3, n // 48, "255", b"1 " * (n // 16)),
    "pnm of text, large": lambda n: pnm(3, n, "255", b"1 " * n),
    "pnm of bits as text": lambda n: pnm(1, n, "", b"1" * n),
    "pnm of comments": lambda n: pnm(3, 10_000, "255", b"#\n" * (1 << 21)),
    "pnm with a comment": lambda n: b"P6\n#" + b"a" * (10 << 20),
    "webp": lambda n: square(n, "WEBP", method=0),
    "webp lossless": lambda n: square(n, "WEBP", "RGBA", lossless=True, method=0),
    "webp of a large canvas": webp_canvas,
    "webp of many images": frames,
    "png of 16 bits": png,
    "png interlaced": lambda n: png(n, interlace=1),
    "png of nothing": lambda n: png(n, whole=False),
    "png of text": lambda n: png(64 * 64, squeezed(b"zTXt", b"a\0\0"), squeezed(b"iTXt", b"a\0\1\0\0\0")),
    "png of a profile": lambda n: png(64 * 64, squeezed(b"iCCP", b"a\0\0")),
    "png of chunks": lambda n: png(64 * 64, chunk(b"tEXt", b"a\0b") * 65_000),
    "jpeg of scans": lambda n: slow_jpeg(math.isqrt(n), 16),
    "jpeg of scans, too many": lambda n: slow_jpeg(math.isqrt(n), 3000),
    "jpeg progressive": lambda n: square(n, "JPEG", progressive=True, subsampling=0),
    "jpeg of segments": lambda n: b"\xff\xd8" + b"\xff\xfe\0\2" * 65_000 + saved(Image.new("L", (16, 16)))[2:],
    "jpeg exif that overlaps": lambda n: with_exif(5000, 60_000, 0),
    "jpeg exif of many segments": lambda n: with_exif(5000, 5_000_000, 200),
}


def cost(payload: bytes, most: int) -> tuple[str, float, float]:
    """What became of it, seconds of processor time, and MB that it took at its most."""
    Path("/proc/self/clear_refs").write_text("5")  # the highest so far is forgotten
    before, began = _memory("VmRSS"), time.process_time()
    view = memoryview(payload)
    found = turned(screen([view], most), [view])
    what = found.reasons.get(0, "decoded")
    if not found.reasons:
        try:
            decoded(new_decoder(), found.plain.get(0, view), None)
        except ValueError as error:  # an UnusableError
            what = str(error)
    return what, time.process_time() - began, _memory("VmHWM") - before


def _memory(name: str) -> float:
    text = Path("/proc/self/status").read_text()
    return int(text.partition(f"{name}:")[2].split(maxsplit=1)[0]) / 1024


def main() -> None:
    """Print what each file costs at 2**EXPONENT pixels; of these names alone, where some are given."""
    warnings.simplefilter("ignore")
    screen([memoryview(gif())])  # so that Pillow has been imported
    most, costs = 1 << int(sys.argv[1]), {}
    for name in sys.argv[2:] or FILES:
        payload, (reading, writing) = FILES[name](most), os.pipe()
        if not os.fork():
            os.write(writing, json.dumps(cost(payload, most)).encode())
            os._exit(0)
        os.close(writing)
        costs[name] = json.loads(os.read(reading, 1 << 16) or '["died", 0, 0]')
        os.close(reading)
        os.wait()
    print(json.dumps(costs), flush=True)  # noqa: T201  its answer


if __name__ == "__main__":
    main()
