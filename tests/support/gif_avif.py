"""GIF and AVIF files for tests: of every kind that is taken, and put together by hand where Pillow writes none."""

from __future__ import annotations

import functools
import importlib.util
import io
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from kit.images import pixels
from numpy.typing import NDArray
from PIL import Image

__all__ = ["AVIF", "avif", "avifs", "boxes", "gif", "gifs", "hand_made", "opened"]

AVIF = pytest.mark.skipif(importlib.util.find_spec("PIL._avif") is None, reason="this Pillow was built without AVIF")


def picture(n: int = 0, height: int = 31, width: int = 40) -> Image.Image:
    """A picture that tells n."""
    return Image.fromarray(pixels(n, height, width))


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    """An image as a file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def opened(payload: bytes) -> NDArray[np.uint8]:
    """What ImageFolder gets: the first image in RGB."""
    with Image.open(io.BytesIO(payload)) as image:
        return np.array(image.convert("RGB"))


def gif(n: int = 0, height: int = 31, width: int = 40, **options: Any) -> bytes:
    """A GIF of 64 colours whose pixels tell n."""
    return saved(picture(n, height, width).quantize(64), "GIF", **options)


def avif(n: int = 0, height: int = 31, width: int = 40, **options: Any) -> bytes:
    """An AVIF whose pixels tell n."""
    return saved(picture(n, height, width), "AVIF", **options)


def on_canvas(file: bytes, height: int, width: int, y: int, x: int) -> bytes:
    """A GIF of one image without extensions, put at (y, x) of a larger canvas whose background is entry 5."""
    out = bytearray(file)
    at = 13 + (6 << (out[10] & 7))
    assert out[at] == 0x2C
    struct.pack_into("<HH", out, 6, width, height)
    struct.pack_into("<HH", out, at + 1, x, y)
    out[11] = 5
    return bytes(out)


@functools.cache
def gifs() -> dict[str, bytes]:
    """Good GIFs of every kind."""
    plain = gif(interlace=0)
    table = 6 << (plain[10] & 7)
    image = 13 + table  # where the image begins
    local = bytes([plain[image + 9] | 0x80 | plain[10] & 7])
    frames = [picture(n).quantize(64) for n in range(3)]
    return {
        "gif": plain,
        "gif interlaced": gif(interlace=1),
        "gif gray": saved(picture().convert("L"), "GIF"),
        "gif 1 bit": saved(picture().convert("1"), "GIF"),
        "gif transparent": gif(transparency=3, background=7),
        "gif comment": gif(comment=b"by hand " * 100),
        "gif looped": gif(loop=0, duration=40),
        "gif on a canvas": on_canvas(plain, 50, 60, 7, 9),
        "gif interlaced on a canvas": on_canvas(gif(interlace=1), 50, 60, 7, 9),
        "gif local palette": plain[:10]
        + bytes([plain[10] & 0x7F])
        + plain[11:13]
        + plain[image : image + 9]
        + local
        + plain[13:image]
        + plain[image + 10 :],
        "gif without palette": plain[:10] + bytes([plain[10] & 0x7F]) + plain[11:13] + plain[image:],
        "gif animated": saved(frames[0], "GIF", save_all=True, append_images=frames[1:], disposal=2, duration=30),
        "gif without end": plain[:-1],
        "gif 1x1": gif(0, 1, 1),
    }


@functools.cache
def avifs() -> dict[str, bytes]:
    """Good AVIFs of every kind."""
    exif = Image.Exif()
    exif[0x0112] = 6
    alpha = picture()
    alpha.putalpha(Image.linear_gradient("L").resize(alpha.size))
    return {
        "avif": avif(),
        "avif 4:4:4": avif(subsampling="4:4:4"),
        "avif gray": saved(picture().convert("L"), "AVIF"),
        "avif alpha": saved(alpha, "AVIF"),
        "avif turned": avif(exif=exif),
        "avif icc": avif(icc_profile=b"i" * 300),
        "avif animated": saved(picture(), "AVIF", save_all=True, append_images=[picture(1), picture(2)]),
        "avif 1x1": avif(0, 1, 1),
        "avif by hand": hand_made(),
        "avif by hand, wide": hand_made(wide=True),
        "avif in pieces": hand_made(pieces=2),
        "avif grid": hand_made(tiles=2),
    }


def box(kind: bytes, *parts: bytes) -> bytes:
    """A box."""
    body = b"".join(parts)
    return struct.pack(">I4s", 8 + len(body), kind) + body


def full(kind: bytes, version: int, flags: int, *parts: bytes) -> bytes:
    """A box with a version and flags."""
    return box(kind, struct.pack(">I", version << 24 | flags), *parts)


def boxes(body: bytes) -> list[tuple[bytes, int, int]]:
    """Kind, start and end of the contents of the boxes laid end to end."""
    found, at = [], 0
    while at < len(body):
        size, kind = struct.unpack_from(">I4s", body, at)
        found.append((kind, at + 8, at + size))
        at += size
    return found


def coded(side: int = 64) -> tuple[bytes, bytes]:
    """A square picture as AV1 data, with the contents of its box av1C."""
    file = avif(0, side, side)
    at = file.index(b"av1C")
    (size,) = struct.unpack_from(">I", file, at - 4)
    start, end = next((start, end) for kind, start, end in boxes(file) if kind == b"mdat")
    return file[start:end], file[at + 4 : at - 4 + size]


def hand_made(
    *,
    tiles: int = 1,
    pieces: int = 1,
    wide: bool = False,
    size: tuple[int, int] | None = None,
    grid_size: tuple[int, int] | None = None,
    data: bytes | None = None,
    brands: bytes = b"avifmif1miaf",
    without: Sequence[bytes] = (),
    more: bytes = b"",
) -> bytes:
    """A file of 64x64 tiles side by side, or one alone.

    pieces    extents of each item; `wide`: numbers of the sizes that large files take
    size      what `ispe` says of the whole; `grid_size`: what the grid says
    data      of every tile
    without   boxes of the meta box that are left out; `more`: boxes put behind the others
    """
    made, config = coded()
    data = made if data is None else data
    grid = tiles > 1
    whole = size or (64 * tiles, 64)
    item_id = ">I" if wide else ">H"
    ids = range(1, 1 + tiles + grid)  # the grid is the first
    properties = [
        full(b"ispe", 0, 0, struct.pack(">II", *whole)),
        full(b"ispe", 0, 0, struct.pack(">II", 64, 64)),
        box(b"av1C", config),
        full(b"pixi", 0, 0, b"\3\x08\x08\x08"),
    ]
    shown = [(1, 4)] if grid else [(1, 3, 4)]
    uses = shown + [(2, 3, 4)] * (len(ids) - 1)
    index = ">H" if wide else ">B"
    essential = 0x8000 if wide else 0x80
    associations = b"".join(
        struct.pack(item_id, n)
        + bytes([len(use)])
        + b"".join(struct.pack(index, p | (essential if p == 3 else 0)) for p in use)
        for n, use in zip(ids, uses, strict=True)
    )
    ipma = full(b"ipma", int(wide), int(wide), struct.pack(">I", len(ids)), associations)
    entries = [
        full(
            b"infe",
            3 if wide else 2,
            0,
            struct.pack(item_id, n),
            b"\0\0",
            b"grid" if grid and n == 1 else b"av01",
            b"\0",
        )
        for n in ids
    ]
    idat = struct.pack(">4BHH", 0, 0, 0, tiles - 1, *(grid_size or whole))
    parts = {
        b"hdlr": full(b"hdlr", 0, 0, bytes(4), b"pict", bytes(13)),
        b"pitm": full(b"pitm", int(wide), 0, struct.pack(item_id, 1)),
        b"iinf": full(b"iinf", int(wide), 0, struct.pack(item_id, len(ids)), *entries),
        b"iprp": box(b"iprp", box(b"ipco", *properties), ipma),
        b"idat": box(b"idat", idat),
        b"iref": full(
            b"iref",
            int(wide),
            0,
            box(
                b"dimg", struct.pack(item_id, 1), struct.pack(">H", tiles), *(struct.pack(item_id, n) for n in ids[1:])
            ),
        ),
    }
    if not grid:
        del parts[b"idat"], parts[b"iref"]
    parts = {kind: part for kind, part in parts.items() if kind not in without}
    ftyp = box(b"ftyp", b"avif", bytes(4), brands)

    def places(start: int) -> bytes:
        number = ">Q" if wide else ">I"
        step = max(1, -(-len(data) // pieces))
        rows = []
        for n in ids:
            spans = [(at, min(step, len(data) - at)) for at in range(0, len(data), step)]
            in_idat = grid and n == 1
            spans = [(0, len(idat))] if in_idat else spans
            row = struct.pack(item_id, n) + struct.pack(">H", int(in_idat)) + b"\0\0"
            row += struct.pack(number, 0 if in_idat else start) + struct.pack(">H", len(spans))
            rows.append(row + b"".join(struct.pack(number, at) + struct.pack(number, length) for at, length in spans))
        widths = b"\x88\x80" if wide else b"\x44\x40"
        return full(b"iloc", 2 if wide else 1, 0, widths, struct.pack(item_id, len(ids)), *rows)

    def meta(start: int) -> bytes:
        iloc = b"" if b"iloc" in without else places(start)
        return full(b"meta", 0, 0, *parts.values(), iloc, more)

    return ftyp + meta(len(ftyp) + len(meta(0)) + 8) + box(b"mdat", data)
