"""WebP, TIFF, BMP, GIF and PNM: Pillow's own classes, chosen by a file's first bytes; nvImageCodec gets none of them.

It does not know GIF, and the others have crashed it or got other pixels than from all other decoders. Pixels are those
of Pillow's `Image.open(file).convert("RGB")`, but where that would not be the picture: gray of 12 and 16 bits, which
Pillow cuts off at 255, gives its upper eight bits; floats and integers of 32 bits, of which nobody knows where white
is, are refused.

The laws: any bytes give pixels of the size that the header said, or an UnusableError with the reason; and no header
costs more than `Header.work` tells. Nothing of Pillow's own state is changed. Neither its bound on pixels nor
the user's filters of warnings decide about an image: so classes are called and not `Image.open`, and those
parts of them are replaced that look at the bound.
"""

from __future__ import annotations

import functools
import importlib
import io
import operator
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dali_feed.packages import needed
from dali_feed.screen.header import SIDEWAYS, Header, UnusableError, calmly

if TYPE_CHECKING:
    from PIL.Image import Image

NETPBM_HEADER = 1 << 16  # bytes; comments are part of it
COMMENTS = 1 << 10
TILE = 1 << 22  # pixels that a TIFF's tiles may cover whatever its image has: a decoder makes room for whole ones
STRIPS = 1 << 16  # of a TIFF: Pillow makes a list of them
BLOCKS = 1 << 16  # of a GIF, up to its first image: Pillow reads them one by one
# Work of a decoder, in pixels that one in C goes over:
STRIP, JPEG_STRIP = 1 << 12, 1 << 14  # to begin with a strip or tile
PYTHON = 96  # a sample, or a byte of the file, in a decoder of Pillow's that is written in Python
DELTA = 256  # rows that an escape in a compressed BMP can skip at once

_KINDS = ((b"GIF8", "gif"), (b"BM", "bmp"), (b"II*\0", "tiff"), (b"MM\0*", "tiff"))
_PLAIN = re.compile(rb"P6\s+(\d{1,10})\s+(\d{1,10})\s+255\s")  # in so many bytes a header without comments fits:
_USUAL = re.compile(rb"P6[ \n](\d{1,5}) (\d{1,5})[ \n]255\n")  # as we write it, and as Pillow does
_COMMENT = re.compile(rb"#[^\r\n]*")
_HEAD = 64

# Tags of TIFF.
_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC, _ORIENTATION, _SAMPLES = 256, 257, 258, 259, 262, 274, 277
_STRIPS, _ROWS, _STRIP_BYTES, _PLANAR, _EXTRA, _FORMAT = 273, 278, 279, 284, 338, 339
_TILE_WIDTH, _TILE_HEIGHT, _TILES, _TILE_BYTES = 322, 323, 324, 325
_RAW, _JPEGS, _PLANES, _SIGNED, _WHITE_IS_ZERO = 1, (6, 7), 2, 2, 0
_SCAN = b"\xff\xda"

T = TypeVar("T")


def kind_of(start: bytes) -> str | None:
    """The format of a payload that begins so, of those that are read here."""
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "webp"
    if start[:1] == b"P" and start[1:2] in b"123456" and start[2:3].isspace():
        return "pnm"
    return next((kind for magic, kind in _KINDS if start.startswith(magic)), None)


def pillow_header(view: memoryview, kind: str) -> Header:
    """The header of a payload of that kind. Raises UnusableError, and MissingPackageError where there is no Pillow."""
    if kind == "pnm":
        plain = _PLAIN.match(view[:_HEAD].tobytes())
        if plain:
            return Header(kind, int(plain[1]), int(plain[2]), 3)
        view = view[:NETPBM_HEADER]
    return _reasoned(lambda: _header(view, kind), f"{_name(kind)} damaged, or none that Pillow reads")


def _header(view: memoryview, kind: str) -> Header:
    if kind == "webp":
        decoder, size, frames, mode = _webp(view)
        if frames > 1:
            raise UnusableError("WebP is animated, which is not supported")
        return Header(kind, *size, 4 if mode == "RGBA" else 3, decoder.get_chunk("EXIF") or b"")
    image = _image(view, kind)
    components = 3 if image.mode == "P" else len(image.getbands())
    width, height = image.size
    work = image.work if kind == "tiff" else _work(image, len(view))
    return Header(kind, width, height, components, work=work)


def _work(image: Any, size: int) -> int:
    """What a decoder that is written in Python costs; 0 for one in C."""
    from PIL import Image

    name = image.tile[0][0] if image.tile else ""
    if name not in Image.DECODERS or name == "ppm":  # that one is not used
        return 0
    width, height = image.size
    rows = height + (DELTA if image.format == "BMP" else 0)
    return PYTHON * int(width * rows * len(image.getbands()) + size)


def opened(payload: memoryview | bytes) -> Image:
    """Pillow's image of a screened payload of any format, whose pixels have not been read yet. As `Image.open` has it.

    Raises:
        UnusableError: there is none.
    """
    start = bytes(payload[:16])
    kind = "jpeg" if start[:2] == b"\xff\xd8" else "png" if start[:4] == b"\x89PNG" else kind_of(start)
    if kind is None:
        raise UnusableError("no image of a format that is read")
    image: Image = _reasoned(lambda: _image(payload, kind), f"{_name(kind)} that Pillow cannot open")
    return image


def decode(payload: memoryview, window: Sequence[int] | None = None) -> NDArray[np.uint8]:
    """The image, or its window (y, x, height, width), as a contiguous array (height, width, 3) of its own.

    Any number of threads may call it at once.

    Raises:
        UnusableError: there is no such image in the payload; the text says why.
    """
    kind = kind_of(bytes(payload[:16]))
    if kind is None:
        raise UnusableError("decoder: of no format that Pillow is used for")
    pixels = _reasoned(lambda: _pixels(payload, kind), "decoder: Pillow cannot decode it")
    y, x, height, width = window or (0, 0, *pixels.shape[:2])
    return pixels[y : y + height, x : x + width].copy()


def raw_pixels(payload: memoryview, window: Sequence[int] | None) -> NDArray[np.uint8] | None:
    """The image, or its window, of a payload that is pixels already: a PPM of 8 bits; None where it must be decoded.

    The bits are those of `decode`. What is given may be a view of the payload, so nobody may write into it.
    """
    header = _PLAIN.match(payload[:_HEAD].tobytes())
    if header is None:
        return None
    width, height = int(header[1]), int(header[2])
    size = width * height * 3
    if not size or header.end() + size > len(payload):
        return None  # the decoder's way says what is wrong
    pixels = np.frombuffer(payload, np.uint8, size, header.end()).reshape(height, width, 3)
    if window is not None:
        y, x, h, w = window
        pixels = pixels[y : y + h, x : x + w]
    return pixels.copy() if payload.readonly else pixels  # torch warns of memory that it must not write


def is_usual(payload: memoryview) -> bool:
    """Whether it is a file of pixels that any decoder reads as we do: its header as usual, and nothing behind them."""
    header = _USUAL.match(payload[:_HEAD].tobytes())
    return header is not None and header.end() + int(header[1]) * int(header[2]) * 3 == len(payload) > header.end()


def pnm(pixels: NDArray[np.uint8]) -> bytes:
    """The file of (height, width, 3) pixels: a PPM, from which every decoder reads them as they are."""
    height, width, _ = pixels.shape
    return b"".join((b"P6 %d %d 255\n" % (width, height), np.ascontiguousarray(pixels).data))


def _name(kind: str) -> str:
    return "WebP" if kind == "webp" else kind.upper()


def _reasoned(read: Callable[[], T], what: str) -> T:
    """What `read` returns. Whatever Pillow raises becomes a reason that begins with `what`."""
    with needed():
        importlib.import_module("PIL")
    try:
        return calmly(read)
    except UnusableError:
        raise
    except Exception as error:  # its parsers are Python and may raise anything
        raise UnusableError(f"{what}: {type(error).__name__}: {error}") from error


def _webp(payload: memoryview | bytes) -> tuple[Any, tuple[int, int], int, str]:
    """Pillow's decoder of a WebP, its size, number of frames and mode: Pillow's class would look at its bound."""
    from PIL import _webp

    decoder = _webp.WebPAnimDecoder(bytes(payload))
    size, *more = decoder.get_info()
    width, height = (size, more.pop(0)) if isinstance(size, int) else size  # older ones give two numbers
    return decoder, (width, height), more[-2], more[-1]


def _image(payload: memoryview | bytes, kind: str) -> Any:
    """Pillow's image of that kind; of a WebP its pixels have been read."""
    from PIL import Image

    if kind == "pnm" and bytes(payload[1:2]) in b"123":
        payload, comments = _COMMENT.subn(b"", payload, COMMENTS + 1)  # of a megabyte Pillow makes seconds of work
        if comments > COMMENTS:
            raise UnusableError(f"PNM with more than {COMMENTS} comments")
    if kind != "webp":
        return _classes()[kind](io.BytesIO(payload))
    decoder, size, _, mode = _webp(payload)
    frame = decoder.get_next()
    if frame is None:
        raise OSError("failed to decode its first frame")
    return Image.frombuffer(mode, size, frame[0], "raw", mode, 0, 1)


@functools.cache
def _classes() -> dict[str, Any]:
    from PIL import Image
    from PIL.BmpImagePlugin import BmpImageFile
    from PIL.GifImagePlugin import GifImageFile
    from PIL.JpegImagePlugin import JpegImageFile
    from PIL.PngImagePlugin import PngImageFile
    from PIL.PpmImagePlugin import PpmImageFile
    from PIL.TiffImagePlugin import TiffImageFile

    class Gif(GifImageFile):
        """Its first image alone, on its canvas: for a next one, or a larger canvas, Pillow would look at its bound."""

        disposal_method = property(lambda _: 0, lambda _, __: None)
        blocks = 0

        def data(self) -> bytes | None:
            self.blocks += 1
            if self.blocks > BLOCKS:
                raise UnusableError(f"GIF with more than {BLOCKS} blocks before its first image")
            return super().data()

        def _open(self) -> None:
            super()._open()
            file: Any = self.fp
            canvas = tuple(int.from_bytes(file.getbuffer()[at : at + 2], "little") for at in (6, 8))
            if self.size != canvas:
                raise UnusableError(f"GIF damaged: an image beyond its canvas of {canvas[0]}x{canvas[1]}")

    class Tiff(TiffImageFile):
        """Its work is known before a list of its strips is made, and its memory made here."""

        work = 0

        def _setup(self) -> None:
            tags: Any = self.tag_v2
            file: Any = self.fp
            self.work = _tiff_work(tags, file.getvalue())
            try:
                super()._setup()
            except (SyntaxError, KeyError, ValueError, TypeError) as error:
                raise UnusableError(f"TIFF that Pillow does not read: {error} ({_tags_shown(tags)})") from error
            if tags.get(_ORIENTATION) in SIDEWAYS:
                self._size = tags[_HEIGHT], tags[_WIDTH]  # as newer ones do

        def load_prepare(self) -> None:
            if getattr(self, "_im", None) is None:
                size = self.tag_v2[_WIDTH], self.tag_v2[_HEIGHT]
                self.im = Image.core.new(self.mode, size)  # type: ignore[attr-defined]
            super().load_prepare()

    return {
        "gif": Gif,
        "tiff": Tiff,
        "bmp": BmpImageFile,
        "pnm": PpmImageFile,
        "png": PngImageFile,
        "jpeg": JpegImageFile,
    }


def _pixels(payload: memoryview, kind: str) -> NDArray[np.uint8]:
    image = _image(payload, kind)
    if kind == "webp":
        return np.asarray(image)[..., :3]
    size = image.size
    if kind == "pnm" and (levels := _levels_of_pnm(payload, image)) is not None:
        return levels
    checked = _check_tiff(image) if kind == "tiff" else 0
    image.load()
    if image.size != size:
        raise UnusableError(f"decoder: Pillow finds {image.size} pixels where the header says {size}")
    if image.mode.startswith("I;16"):
        levels = levels_of(image, checked)
        return _rgb(~levels if image.tag_v2.get(_PHOTOMETRIC) == _WHITE_IS_ZERO else levels)
    if image.mode == "I":  # of a PNM, up to 65535
        return _rgb(np.rint(np.asarray(image) / 257).astype(np.uint8))
    if image.mode == "LAB":
        return np.asarray(_from_lab().apply(image))
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


@functools.cache
def _from_lab() -> Any:
    """What `convert` makes for each image anew: eight milliseconds."""
    from PIL import ImageCms

    lab, srgb = (ImageCms.createProfile(name) for name in ("LAB", "sRGB"))
    return ImageCms.buildTransform(lab, srgb, "LAB", "RGB")


def levels_of(image: Any, bits: int) -> NDArray[np.uint8]:
    """The upper eight bits of gray pixels that have so many, (height, width): Pillow would cut them off at 255."""
    return (np.asarray(image) >> (bits - 8)).astype(np.uint8)


def _rgb(levels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.broadcast_to(levels[..., None], (*levels.shape, 3))


def _levels_of_pnm(payload: memoryview, image: Any) -> NDArray[np.uint8] | None:
    """Samples up to another bound than 255, scaled to it: Pillow scales them in Python. None for text, and for bits."""
    name, _, start, args = image.tile[0]
    if name == "ppm_plain" or args in ("L", "RGB", "1;I"):
        return None
    most, bands = 65535 if name == "raw" else args[1], len(image.getbands())
    width, height = image.size
    kind = np.dtype(">u2" if most > 255 else np.uint8)
    needed = width * height * bands * kind.itemsize
    if start + needed > len(payload):
        msg = f"PNM cut off: {needed} bytes of pixels are needed after byte {start}; found {len(payload) - start}"
        raise UnusableError(msg)
    levels = np.frombuffer(payload, kind, width * height * bands, start).reshape(height, width, bands)
    table = np.minimum(np.rint(np.arange(256**kind.itemsize) / most * 255), 255).astype(np.uint8)
    out = np.empty((height, width, 3), np.uint8)
    for row, samples in zip(out, levels, strict=True):  # row by row, for NumPy makes indices of eight bytes
        row[:] = table[samples]
    return out


def _tags_shown(tags: Any) -> str:
    """What the file says of its samples, for the text of a reason."""
    names = {"photometric": _PHOTOMETRIC, "bits": _BITS, "extra samples": _EXTRA, "compression": _COMPRESSION}
    return ", ".join(f"{name} {tags[tag]}" for name, tag in names.items() if tag in tags)


def _first(tags: Any, tag: int, default: int) -> int:
    value = tags.get(tag, default)
    return int(value[0] if isinstance(value, tuple) else value)


def _check_tiff(image: Any) -> int:
    """The bits of a TIFF's samples. Those of which Pillow does not make levels of brightness are refused."""
    tags, bits = image.tag_v2, _first(image.tag_v2, _BITS, 1)
    what = ""
    if image.mode == "F" or (image.mode == "I" and bits > 16):
        what = f"TIFF with {'floats' if image.mode == 'F' else 'integers'} of {bits} bits"
    elif image.mode == "I" or _first(tags, _FORMAT, 1) == _SIGNED:
        what = f"TIFF with signed integers of {bits} bits"
    elif bits > 8 and tags.get(_PLANAR) == _PLANES and tags.get(_COMPRESSION, _RAW) == _RAW:
        what = f"TIFF with uncompressed planes of {bits} bits, which Pillow reads as 8 bits,"
    if what:
        msg = f"decoder: {what} is not supported; save it with 8 or 16 unsigned bits, or give Bytes(decode=f)"
        raise UnusableError(msg)
    return bits


def _tiff_work(tags: Any, file: bytes) -> int:
    """What decoding a TIFF costs: its tiles may share bytes, cover more than the image, and be very many."""
    width, height, tiled = tags.get(_WIDTH), tags.get(_HEIGHT), _TILE_WIDTH in tags
    wide, high = (tags.get(_TILE_WIDTH), tags.get(_TILE_HEIGHT)) if tiled else (width, tags.get(_ROWS, height))
    if not all(isinstance(side, int) and side > 0 for side in (width, height, wide, high)):
        raise UnusableError(f"TIFF damaged: an image of {width}x{height} in strips or tiles of {wide}x{high}")
    half = tiled and (_TILES not in tags or _ROWS in tags)
    if half or tiled != (_TILE_HEIGHT in tags) or tiled == (_STRIPS in tags):
        raise UnusableError("TIFF damaged: half of a tile size, or tiles and strips at once")
    high = high if tiled else min(high, height)
    pieces = -(-width // wide) * -(-height // high)
    if pieces * wide * high > max(TILE, 2 * width * height):
        raise UnusableError(f"TIFF with tiles of {wide}x{high} pixels in an image of {width * height}")
    starts, sizes = (tags.get(tag, ()) for tag in ((_TILES, _TILE_BYTES) if tiled else (_STRIPS, _STRIP_BYTES)))
    compression = tags.get(_COMPRESSION, _RAW)
    unsaid = not sizes and compression == _RAW  # old files leave them out
    if {type(starts), type(sizes)} != {tuple} or (len(starts) != len(sizes) and not unsaid):
        raise UnusableError("TIFF damaged: the offsets and sizes of its image data are not as many")
    end = max(map(operator.add, starts, sizes), default=0)
    if end > len(file):
        raise UnusableError(f"TIFF cut off: image data up to byte {end} of {len(file)}")
    planes = _first(tags, _SAMPLES, 1) if tags.get(_PLANAR) == _PLANES else 1
    count, read = max(pieces * planes, len(starts)), sum(sizes)
    if count > STRIPS:
        raise UnusableError(f"TIFF with {count} strips or tiles; at most {STRIPS} are taken")
    if compression not in _JPEGS:
        return int(count * STRIP + read + pieces * wide * high)
    own = dict.fromkeys(zip(starts, sizes, strict=True), 0)
    if sum(size for _, size in own) > len(file):
        raise UnusableError("TIFF damaged: strips or tiles overlap")
    for start, size in own:
        own[start, size] = max(1, file.count(_SCAN, start, start + size))
    scans = sum(own[piece] for piece in zip(starts, sizes, strict=True))
    return int(count * JPEG_STRIP + read + scans * wide * high)
