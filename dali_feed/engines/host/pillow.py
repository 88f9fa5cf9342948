"""Formats that nvImageCodec does not get: the first image of a GIF, AVIF, TIFF, BMP or PNM.

It does not know the first two; the others have crashed it, or got other pixels than from all other decoders. Pixels
are those of Pillow's `Image.open(file).convert("RGB")` (`pillow_tiff.py` says where not).

The law: any bytes give pixels of the size that the screen found, or an UnusableError with the reason.
Nothing of Pillow's own state is changed, and its bound on pixels is not used: the screen's is the one that counts.
So its classes are called directly and not `Image.open`, which would apply its bound.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.engines.host.pillow_tiff import tiff_pixels
from dali_feed.engines.host.pnm import pnm_pixels
from dali_feed.screen.header import Header, UnusableError
from dali_feed.screen.screen import header_of

if TYPE_CHECKING:
    from PIL.GifImagePlugin import GifImageFile

__all__ = ["FIRST_BYTES", "decode"]

FIRST_BYTES = b"G\0IMBP"  # what they begin with, and nothing that nvImageCodec is given


@functools.cache
def _still() -> type[GifImageFile]:
    from PIL.GifImagePlugin import GifImageFile

    class Still(GifImageFile):
        """Reads the first image alone: what it leaves for a next one is not needed; Pillow would check its bound."""

        disposal_method = property(lambda _: 0, lambda _, __: None)

    return Still


def _gif(payload: memoryview, header: Header) -> NDArray[np.uint8]:
    try:
        still = _still()
    except ImportError as error:
        msg = "decoder: GIF needs Pillow, which is not installed: pip install pillow"
        raise UnusableError(msg) from error
    with still(io.BytesIO(payload)) as image:
        _agree(image.size, header)
        return np.asarray(image.convert("RGB"))


def _avif(payload: memoryview, header: Header) -> NDArray[np.uint8]:
    try:
        from PIL import _avif
    except ImportError as error:
        msg = "decoder: AVIF needs a Pillow that was built with it: pip install 'pillow>=11.3'"
        raise UnusableError(msg) from error
    if bytes(payload[8:12]) != b"avif":  # then libavif would take a track, which the screen has not checked
        payload = memoryview(bytes(payload[:8]) + b"avif" + payload[12:])
    # What PIL.AvifImagePlugin calls, but with one thread: it takes as many as there are CPUs, for every image anew.
    decoder: Any = _avif.AvifDecoder(payload, "auto", 1)
    _agree(decoder.get_info()[0], header)
    (data, *_) = decoder.get_frame(0)
    size, _, mode, *_ = decoder.get_info()  # the AV1 data decided the size
    _agree(size, header)
    pixels = np.frombuffer(data, np.uint8).reshape(header.height, header.width, _BANDS[mode])
    return np.broadcast_to(pixels[..., :3], (header.height, header.width, 3))


def _bmp(payload: memoryview, header: Header) -> NDArray[np.uint8]:
    from PIL.BmpImagePlugin import BmpImageFile

    with BmpImageFile(io.BytesIO(payload)) as image:
        _agree(image.size, header)
        return np.asarray(image.convert("RGB"))


def _tiff(payload: memoryview, header: Header) -> NDArray[np.uint8]:
    pixels = tiff_pixels(payload)
    _agree(pixels.shape[1::-1], header)
    return pixels


def _pnm(payload: memoryview, _: Header) -> NDArray[np.uint8]:
    return pnm_pixels(payload)


_BANDS = {"L": 1, "RGB": 3, "RGBA": 4}
_DECODERS = {"gif": _gif, "avif": _avif, "bmp": _bmp, "tiff": _tiff, "pnm": _pnm}


def _agree(size: tuple[int, int], header: Header) -> None:
    if tuple(size) != (header.width, header.height):
        msg = f"decoder: Pillow finds {size[0]}x{size[1]} pixels where the header says {header.width}x{header.height}"
        raise UnusableError(msg)


def decode(payload: memoryview, window: Sequence[int] | None = None) -> NDArray[np.uint8]:
    """The image, or its window (y, x, height, width), as a contiguous array (height, width, 3) of its own.

    Any number of threads may call it at once.

    Raises:
        UnusableError: there is no such image in the payload; the text says why.
    """
    header = header_of(payload)  # read again, since Pillow must find the same size
    if header.format not in _DECODERS:
        msg = f"decoder: Pillow is not used for {header.format}"
        raise UnusableError(msg)
    try:
        pixels = _DECODERS[header.format](payload, header)
    except UnusableError:
        raise
    except ImportError as error:
        msg = f"decoder: {header.format.upper()} needs Pillow, which is not installed: pip install pillow"
        raise UnusableError(msg) from error
    except Exception as error:  # its parsers are Python and may raise anything
        msg = f"decoder: Pillow cannot decode it: {type(error).__name__}: {error}"
        raise UnusableError(msg) from error
    y, x, height, width = window or (0, 0, *pixels.shape[:2])
    return pixels[y : y + height, x : x + width].copy()
