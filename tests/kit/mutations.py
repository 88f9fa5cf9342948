"""Damaged images without end, each a pure function of its number: bit flips, cuts, splices, headers that lie."""

from __future__ import annotations

import functools
import random
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from kit.kinds import ORIENTATIONS, bmps, levels, made_odd, pnms, saved, tiff
from PIL import Image

WILD = (0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF)


def _picture(height: int, width: int) -> Image.Image:
    y, x = np.mgrid[:height, :width]
    channels = [(x * 5 + y * 3) % 256, (x * y) % 256, (x * 7 - y * 11) % 256]
    return Image.fromarray(np.stack(channels, axis=2).astype(np.uint8))


def _slow(image: Image.Image, times: int) -> bytes:
    """A progressive JPEG whose last scan, which refines the whole image, stands there so many times."""
    whole = saved(image, "JPEG", quality=30, progressive=True)
    scan = whole.rindex(b"\xff\xda")
    return whole[:scan] + times * whole[scan:-2] + whole[-2:]


@functools.cache
def seeds() -> tuple[bytes, ...]:
    """Whole images of every kind that a decoder here takes, of some hundred bytes to some thousand."""
    rgb, small = _picture(61, 83), _picture(17, 9)
    exif = rgb.getexif()
    exif[0x0112] = 6
    gray16 = Image.fromarray((np.arange(61 * 83, dtype=np.uint16) * 13).reshape(61, 83))
    rgba = rgb.copy()
    rgba.putalpha(rgb.convert("L"))
    files = [
        *(saved(rgb, "JPEG", quality=30, subsampling=k) for k in (0, 1, 2)),
        *(saved(rgb, "JPEG", quality=90, subsampling=k, progressive=True) for k in (0, 1, 2)),
        saved(rgb.convert("L"), "JPEG"),
        saved(rgb.convert("CMYK"), "JPEG"),
        saved(rgb, "JPEG", exif=exif.tobytes(), icc_profile=bytes(3000), comment=b"a comment"),
        saved(rgb, "JPEG", optimize=True, restart_marker_blocks=3),
        saved(small, "JPEG"),
        *(saved(image, "PNG") for image in (rgb, rgba, gray16, small)),
        *(saved(image, "PNG") for image in (rgb.convert("L"), rgb.quantize(16), rgb.convert("1"))),
        saved(rgb, "PNG", exif=exif.tobytes()),
        saved(rgb, "WEBP"),
        saved(rgb, "WEBP", lossless=True),
        saved(rgba, "WEBP", exif=exif.tobytes()),
        saved(rgb, "BMP"),
        saved(rgb.quantize(16), "BMP"),
        saved(rgb, "TIFF"),
        saved(rgb, "TIFF", compression="tiff_lzw"),
        saved(rgb.convert("L"), "TIFF", compression="packbits"),
        saved(rgb.quantize(64), "GIF"),
        *(_slow(image, 200) for image in (rgb, rgb.convert("L"), Image.new("L", (2048, 2048), 90))),
        *_kinds(),
    ]
    return tuple(files)


def _kinds() -> Iterator[bytes]:
    """TIFFs of every photometric interpretation, turned and laid out in every way, and what Pillow does not write."""
    ways = ((0, 1), (1, 1), (1, 2), (2, 3), (2, 4), (3, 1), (5, 4), (6, 3), (8, 3))
    for n, turned in enumerate(ORIENTATIONS):
        for k in (n, n + 5):
            photometric, samples = ways[k % len(ways)]
            how: dict[str, Any] = {"tile": (None, 16)[k % 2], "planar": k % 3 == 0, "deflate": k % 4 == 1}
            how["extra"] = (2,) if (photometric, samples) in ((1, 2), (2, 4)) else ()
            yield tiff(levels(samples), photometric=photometric, orientation=turned, **how)
    for dtype in ("u2", "i1", "i2", "f4"):
        yield tiff(levels(1, dtype), photometric=1, orientation=6, order=">")
    yield tiff(levels(3, "u2"), photometric=2, orientation=8, deflate=True)
    yield tiff(levels(1) >> 7, photometric=1, bits=1, orientation=5, without=(258, 277, 339))
    for some, step in ((pnms(), 5), (bmps(), 9), (made_odd(), 11)):
        yield from [payload for _, payload in some][::step]


def late(height: int, width: int) -> bytes:
    """A PNG with whole chunks and checksums, so that it passes the screen, around pixels that no decoder can read."""
    whole = saved(_picture(height, width), "PNG")
    at = whole.index(b"IDAT")
    length = int.from_bytes(whole[at - 4 : at], "big")
    body = whole[at : at + 6] + b"\xff" * (length - 2)
    return whole[:at] + body + zlib.crc32(body).to_bytes(4, "big") + whole[at + 8 + length :]


def _flipped(data: bytearray, rng: random.Random, end: int) -> bytearray:
    for _ in range(rng.choice((1, 1, 2, 4, 16, 64))):
        at = rng.randrange(min(end, len(data)))
        data[at] ^= 1 << rng.randrange(8)
    return data


def _wild_number(data: bytearray, rng: random.Random) -> bytearray:
    size, order = rng.choice((1, 2, 4)), rng.choice(("big", "little"))
    at = rng.randrange(max(1, min(len(data), 400) - size))
    number = rng.choice(WILD) & ((1 << 8 * size) - 1)
    data[at : at + size] = number.to_bytes(size, order)  # type: ignore[arg-type]
    return data


def mutated(number: int) -> bytes:
    """The number-th damaged image; one of sixteen is whole."""
    rng = random.Random(number)
    files = seeds()
    data, other = bytearray(rng.choice(files)), rng.choice(files)
    match rng.randrange(16):
        case 0:
            pass
        case 1 | 2:
            data = _flipped(data, rng, 64)
        case 3 | 4:
            data = _flipped(data, rng, 700)
        case 5 | 6:
            data = _flipped(data, rng, len(data))
        case 7 | 8:
            data = data[: rng.randrange(len(data))]
        case 9:  # cut, with the end put back
            data = data[: rng.randrange(len(data))] + data[-rng.randrange(1, 20) :]
        case 10:  # the beginning of one file and the end of another
            data = data[: rng.randrange(len(data))] + other[rng.randrange(len(other)) :]
        case 11:  # another format's first bytes
            cut = rng.randrange(2, 40)
            data[:cut] = other[:cut]
        case 12:
            a, b = sorted(rng.randrange(len(data)) for _ in range(2))
            data = data[:a] + data[b:]
        case 13:
            at = rng.randrange(len(data))
            data = data[:at] + rng.randbytes(rng.randrange(1, 200)) + data[at:]
        case _:
            data = _wild_number(data, rng)
    return bytes(data)
