"""Small whole images of every kind: TIFFs and others written byte by byte, all that Pillow writes, GIFs, slow JPEGs."""

from __future__ import annotations

import functools
import io
import itertools
import struct
import warnings
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
from kit.images import pixels
from numpy.typing import NDArray
from PIL import Image

HEIGHT, WIDTH = 7, 12  # not square: what is turned has another shape
ORIENTATIONS = range(10)  # 1..8 are some, 0 and 9 are none

_RAW, _DEFLATE = 1, 8
_FORMATS = {"u": 1, "i": 2, "f": 3}
# Photometric interpretation, samples, extra samples of 8 bits: white is zero, black is zero, with alpha, colour, ...
_PHOTOMETRICS: dict[str, tuple[int, int, tuple[int, ...]]] = {
    "white is zero": (0, 1, ()),
    "gray": (1, 1, ()),
    "gray and alpha": (1, 2, (2,)),
    "gray and more": (1, 2, (0,)),
    "rgb": (2, 3, ()),
    "rgba": (2, 4, (2,)),
    "rgb premultiplied": (2, 4, (1,)),
    "rgb and more": (2, 5, (0, 0)),
    "rgba unsaid": (2, 4, ()),
    "palette": (3, 1, ()),
    "mask": (4, 1, ()),
    "cmyk": (5, 4, ()),
    "ycbcr": (6, 3, ()),
    "lab": (8, 3, ()),
    "icc lab": (9, 3, ()),
}


def levels(samples: int, dtype: str = "u1", height: int = HEIGHT, width: int = WIDTH) -> NDArray[Any]:
    """Samples (height, width, samples) that differ everywhere: up to 255, or 65280 where they are wide and unsigned."""
    y, x = np.mgrid[0:height, 0:width]
    out = np.stack([(x * (19 - 3 * k) + y * (7 + 11 * k) + 40 * k) % 256 for k in range(samples)], axis=-1)
    if np.dtype(dtype).kind == "u" and np.dtype(dtype).itemsize > 1:
        out = out * 256
    return out.astype(dtype)


def _packed(rows: NDArray[Any], bits: int) -> bytes:
    """Rows of samples in so many bits, each from a byte's upper end on; a row begins a byte."""
    if bits in (8, 16, 32, 64):
        return rows.tobytes()
    flat = rows.reshape(len(rows), -1).astype(np.uint16)
    each = (flat[..., None] >> np.arange(bits - 1, -1, -1)) & 1
    return np.packbits(each.reshape(len(rows), -1).astype(np.uint8), axis=1).tobytes()


def _parts(plane: NDArray[Any], rows: int, tile: int | None) -> Iterator[NDArray[Any]]:
    height, width, _ = plane.shape
    if tile is None:
        yield from (plane[y : y + rows] for y in range(0, height, rows))
        return
    whole = np.zeros((-(-height // tile) * tile, -(-width // tile) * tile, plane.shape[2]), plane.dtype)
    whole[:height, :width] = plane
    for y, x in itertools.product(range(0, len(whole), tile), range(0, whole.shape[1], tile)):
        yield whole[y : y + tile, x : x + tile]


def tiff(
    pixels: NDArray[Any],
    *,
    photometric: int,
    extra: Sequence[int] = (),
    bits: int | None = None,
    planar: bool = False,
    tile: int | None = None,
    rows: int = 3,
    orientation: int | None = None,
    deflate: bool = False,
    order: Literal["<", ">"] = "<",
    without: Sequence[int] = (),
) -> bytes:
    """A TIFF of (height, width, samples) pixels, in strips of `rows` or in square tiles; `without` leaves tags out."""
    pixels = pixels.astype(pixels.dtype.newbyteorder(order))
    height, width, samples = pixels.shape
    bits = bits or 8 * pixels.dtype.itemsize
    planes = [pixels[..., k : k + 1] for k in range(samples)] if planar else [pixels]
    data = [_packed(part, bits) for plane in planes for part in _parts(plane, rows, tile)]
    data = [zlib.compress(part) for part in data] if deflate else data
    starts = [8 + sum(map(len, data[:k])) for k in range(len(data))]
    body = b"".join(data)
    body += bytes(len(body) & 1)
    tags: dict[int, tuple[str, Sequence[int]]] = {
        256: ("I", [width]),
        257: ("I", [height]),
        258: ("H", [bits] * samples),
        259: ("H", [_DEFLATE if deflate else _RAW]),
        262: ("H", [photometric]),
        277: ("H", [samples]),
        284: ("H", [2 if planar else 1]),
        339: ("H", [_FORMATS[pixels.dtype.kind]] * samples),
    }
    tags |= {322: ("I", [tile]), 323: ("I", [tile]), 324: ("I", starts)} if tile else {273: ("I", starts)}
    tags[325 if tile else 279] = ("I", [len(part) for part in data])
    if not tile:
        tags[278] = ("I", [rows])
    if orientation is not None:
        tags[274] = ("H", [orientation])
    if extra:
        tags[338] = ("H", list(extra))
    if photometric == 3:
        tags[320] = ("H", [(k * 31 + 7) % 65536 for k in range(3 << bits)])
    kept = sorted((tag, *value) for tag, value in tags.items() if tag not in without)
    at = 8 + len(body)  # of the directory; what does not fit in it comes behind
    entries, tail, behind = b"", b"", at + 2 + 12 * len(kept) + 4
    for tag, code, values in kept:
        packed = struct.pack(f"{order}{len(values)}{code}", *values)
        where = packed.ljust(4, b"\0") if len(packed) <= 4 else struct.pack(order + "I", behind + len(tail))
        entries += struct.pack(order + "HHI", tag, 3 if code == "H" else 4, len(values)) + where
        tail += packed if len(packed) > 4 else b""
    head = (b"II" if order == "<" else b"MM") + struct.pack(order + "HI", 42, at)
    return head + body + struct.pack(order + "H", len(kept)) + entries + bytes(4) + tail


def tiffs() -> Iterator[tuple[str, bytes]]:
    """Every photometric interpretation in every layout and orientation; every depth and type of number."""
    layouts = (("strips", None), ("tiles", 16))
    for name, (photometric, samples, extra) in _PHOTOMETRICS.items():
        pixels = levels(samples)
        for (layout, tile), planar, turned in itertools.product(layouts, (False, True)[:samples], ORIENTATIONS):
            options: dict[str, Any] = {"tile": tile, "planar": planar, "orientation": turned, "extra": extra}
            what = f"tiff {name}, {layout}{', planar' * planar}, turned {turned}"
            yield what, tiff(pixels, photometric=photometric, **options)
    kinds = [(0, 1, bits, "u1") for bits in (1, 2, 4)] + [(1, 1, bits, "u1") for bits in (1, 2, 4)]
    kinds += [(3, 1, bits, "u1") for bits in (1, 2, 4)] + [(1, 1, 12, "u2"), (2, 3, 12, "u2"), (1, 2, 16, "u2")]
    singles = itertools.product(((0, 1), (1, 1)), ("u2", "u4", "i1", "i2", "i4", "f2", "f4", "f8"))
    several = itertools.product(((2, 3), (2, 4), (5, 4)), ("u2", "u4", "i1", "f4"))
    kinds += [(p, n, 8 * np.dtype(dtype).itemsize, dtype) for (p, n), dtype in (*singles, *several)]
    for photometric, samples, bits, dtype in kinds:
        pixels = levels(samples, dtype)
        if dtype[0] == "u":
            pixels >>= 8 * pixels.dtype.itemsize - bits
        for turned, order, deflate, planar in itertools.product((1, 6), "<>", (False, True), (False, True)[:samples]):
            what = f"tiff of {samples} {dtype} in {bits} bits, photometric {photometric}, {order}"
            what += f"{', deflated' * deflate}{', planar' * planar}, turned {turned}"
            options = {"bits": bits, "planar": planar, "orientation": turned, "deflate": deflate, "order": order}
            yield what, tiff(pixels, photometric=photometric, **options)
    bare = tiff(levels(1) >> 7, photometric=1, bits=1, without=(258, 277, 339))
    yield "tiff of one bit without BitsPerSample", bare
    yield "tiff without StripByteCounts", tiff(levels(3), photometric=2, without=(279,))


def pnms() -> Iterator[tuple[str, bytes]]:
    """PBM, PGM and PPM, of bytes and of text, with comments and every kind of highest level."""
    gray, colour = levels(1)[..., 0], levels(3)
    for kind, whole in ((5, gray), (6, colour)):
        for most in (1, 100, 255, 256, 1000, 65535):
            scaled = (whole.astype(np.int64) * most // 255).astype(">u2" if most > 255 else "u1")
            head = b"P%d\n# a comment\n%d %d\n# more\n%d\n" % (kind, WIDTH, HEIGHT, most)
            yield f"pnm P{kind} up to {most}", head + scaled.tobytes()
            text = b" ".join(b"%d" % level for level in scaled.reshape(-1).tolist())
            head = b"P%d %d %d\n%d\n" % (kind - 3, WIDTH, HEIGHT, most)
            yield f"pnm P{kind - 3} up to {most}", head + text + b"\n# the end\n"
    bits = (gray > 99).astype(np.uint8)
    yield "pnm P4", b"P4 %d %d\n" % (WIDTH, HEIGHT) + np.packbits(bits, axis=1).tobytes()
    yield "pnm P1", b"P1 %d %d\n" % (WIDTH, HEIGHT) + b"\n".join(bytes(row + 48) for row in bits)


def bmps() -> Iterator[tuple[str, bytes]]:
    """BMPs that Pillow does not write: bit fields in every header, 16 bits, runs, from the top."""
    for header, bits, masks in itertools.product(
        (40, 52, 56, 108, 124),
        (16, 32),
        ((0xF800, 0x7E0, 0x1F), (0x7C00, 0x3E0, 0x1F), (0xFF0000, 0xFF00, 0xFF), (0xFF000000, 0xFF0000, 0xFF00)),
    ):
        fields = struct.pack("<4I", *masks, 0)
        info = struct.pack("<IiiHHI", header, WIDTH, HEIGHT, 1, bits, 3) + bytes(20)
        info = info + fields[:12] if header == 40 else (info + fields).ljust(header, b"\0")[:header]
        data = levels(WIDTH * bits // 8, height=HEIGHT, width=1).tobytes()
        start = 14 + len(info)
        yield (
            f"bmp of {bits} bits, header {header}, red {masks[0]:x}",
            b"BM" + struct.pack("<IHHI", 0, 0, 0, start) + info + data,
        )
    info = struct.pack("<IiiHHI", 40, WIDTH, -HEIGHT, 1, 16, 0) + bytes(20)
    yield (
        "bmp of 16 bits, from the top",
        b"BM" + struct.pack("<IHHI", 0, 0, 0, 54) + info + levels(24, width=1).tobytes(),
    )
    palette = bytes(range(256)) * 4
    for bits, compression, runs in ((8, 1, b"\x0c\x55\0\0"), (4, 2, b"\x0c\x5a\0\0")):
        info = struct.pack("<IiiHHI", 40, WIDTH, HEIGHT, 1, bits, compression) + bytes(20)
        colours = palette[: 4 << bits]
        head = b"BM" + struct.pack("<IHHI", 0, 0, 0, 54 + len(colours))
        yield f"bmp of runs in {bits} bits", head + info + colours + runs * HEIGHT + b"\0\1"


def saved(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    """An image as a file."""
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def _exif(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif.tobytes()


def pillows() -> Iterator[tuple[str, bytes]]:
    """All that Pillow writes: each mode in each format and, of TIFF, each compression; turned, too."""
    colour = Image.fromarray(levels(3))
    modes = {mode: colour.convert(mode) for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I", "F")}
    modes["I;16"] = Image.fromarray(levels(1, "u2")[..., 0])
    modes["LAB"] = Image.frombytes("LAB", colour.size, levels(3).tobytes())
    kinds: list[tuple[str, dict[str, Any]]] = [("JPEG", {}), ("PNG", {}), ("WEBP", {}), ("WEBP", {"lossless": True})]
    kinds += [("BMP", {}), ("PPM", {}), ("GIF", {})]
    names = (
        "raw tiff_lzw packbits tiff_adobe_deflate tiff_deflate group3 group4 tiff_ccitt jpeg tiff_jpeg webp zstd lzma"
    )
    kinds += [("TIFF", {"compression": name}) for name in names.split()]
    for (mode, image), (kind, options) in itertools.product(modes.items(), kinds):
        all_ways = kind in ("JPEG", "PNG", "WEBP") or options.get("compression") == "raw"
        for turned in ORIENTATIONS if all_ways else (1, 6) if kind == "TIFF" else (1,):
            more: dict[str, Any] = {"tiffinfo": {274: turned}} if kind == "TIFF" else {"exif": _exif(turned)}
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    file = saved(image, kind, **options, **(more if kind not in ("BMP", "PPM", "GIF") else {}))
            except (OSError, ValueError, KeyError, RuntimeError, SystemError):
                continue  # it has no such thing
            yield f"{kind.lower()} of Pillow, {mode} {options}, turned {turned}", file


def jpegs() -> Iterator[tuple[str, bytes]]:
    """JPEGs with stray bytes between their segments."""
    whole = saved(Image.fromarray(levels(3)), "JPEG", quality=95)
    places = [whole.index(marker) for marker in (b"\xff\xdb", b"\xff\xc0", b"\xff\xc4", b"\xff\xda")]
    for at, stray in itertools.product(places, (b"\0", b"abc", b"\xff\0\xff\0", bytes(range(1, 101)))):
        yield f"jpeg with {len(stray)} stray bytes at {at}", whole[:at] + stray + whole[at:]


def made_odd() -> Iterator[tuple[str, bytes]]:
    """What other decoders read and nvImageCodec stumbles over: animated PNG, WebP with alpha and EXIF, stray bytes."""
    yield from jpegs()
    colour = Image.fromarray(levels(3))
    others = [Image.new("RGB", colour.size, name) for name in ("red", "blue")]
    for default in (False, True):
        yield (
            f"png animated, default {default}",
            saved(colour, "PNG", save_all=True, append_images=others, default_image=default),
        )
    for size, lossless in itertools.product(((WIDTH, HEIGHT), (41, 33), (16, 16)), (False, True)):
        image = colour.resize(size).convert("RGBA")
        image.putalpha(image.convert("L"))
        for turned in ORIENTATIONS:
            more = {"exif": _exif(turned), "lossless": lossless, "icc_profile": b"x" * (turned * 11)}
            yield f"webp with alpha of {size}, lossless {lossless}, turned {turned}", saved(image, "WEBP", **more)


def picture(n: int = 0, height: int = 31, width: int = 40) -> Image.Image:
    """A picture that tells n."""
    return Image.fromarray(pixels(n, height, width))


def opened(payload: bytes) -> NDArray[np.uint8]:
    """What ImageFolder gets: the first image in RGB."""
    with Image.open(io.BytesIO(payload)) as image:
        return np.array(image.convert("RGB"))


def gif(n: int = 0, height: int = 31, width: int = 40, **options: Any) -> bytes:
    """A GIF of 64 colours whose pixels tell n."""
    return saved(picture(n, height, width).quantize(64), "GIF", **options)


def broken_gif() -> bytes:
    """It passes the screen, and its codes name entries that nobody has made."""
    payload = bytearray(gif(interlace=0))
    at = 13 + (6 << (payload[10] & 7)) + 12
    payload[at : at + 40] = b"\xff" * 40
    return bytes(payload)


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


_RUN = 32767  # blocks that one code passes over
_ONE_CODE = bytes([1, *[0] * 15])  # a Huffman table of the one code "0"


def slow_jpeg(side: int, scans: int, *, between: bytes = b"") -> bytes:
    """A gray progressive JPEG of side x side pixels; `between` stands before each scan but the first.

    Each scan after the first two refines all coefficients of all blocks, and there is none to refine.
    """
    blocks = (-(-side // 8)) ** 2
    bits = ("0" + 14 * "1") * -(-blocks // _RUN)
    bits += "1" * (-len(bits) % 8)
    body = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    parts = [
        b"\xff\xd8\xff\xdb\0\x43\0" + 64 * b"\1",
        b"\xff\xc2" + struct.pack(">HBHHB", 11, 8, side, side, 1) + b"\1\x11\0",
        b"\xff\xc4\0\x14\0" + _ONE_CODE + b"\0",
        b"\xff\xc4\0\x14\x10" + _ONE_CODE + b"\xe0",  # the end of a band, for a run of blocks in 14 bits
        b"\xff\xda\0\x08\1\1\0\0\0\0" + bytes(-(-blocks // 8)),
    ]
    parts += [between + b"\xff\xda\0\x08\1\1\0\1\x3f" + (b"\x10" if n else b"\1") + body for n in range(scans - 1)]
    return b"".join(parts) + b"\xff\xd9"
