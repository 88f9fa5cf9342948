"""GIF headers: the canvas and the first image on it, read as Pillow reads them (the law of `header.py`).

The first image is the one that is decoded; what comes behind it is not looked at. It must lie on the canvas,
because Pillow would make the canvas larger.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from dali_feed.screen.header import Header, UnusableError

__all__ = ["gif_header"]

MAX_BLOCKS = 1 << 20  # extensions, and data blocks of up to 255 bytes, up to the end of the first image

_SCREEN = struct.Struct("<HHB").unpack_from  # width, height, flags
_IMAGE = struct.Struct("<HHHHB").unpack_from  # left, top, width, height, flags

_EXTENSION, _IMAGE_HERE, _END = 0x21, 0x2C, 0x3B
_CONTROL, _COMMENT, _APPLICATION = 0xF9, 0xFE, 0xFF
_LOOP = b"NETSCAPE2.0"


def gif_header(view: memoryview) -> Header:
    """The canvas of a GIF whose first image is whole."""
    if bytes(view[:6]) not in (b"GIF87a", b"GIF89a"):
        msg = f"GIF of an unknown version, {bytes(view[3:6])!r}"
        raise UnusableError(msg)
    width, height, flags = _SCREEN(view, 6)
    header = Header("gif", width, height, 3)
    at = 13 + _palette(flags)
    blocks = iter(range(MAX_BLOCKS))
    for _ in blocks:
        kind = view[at]
        if kind == _IMAGE_HERE:
            _first_image(view, at, header, blocks)
            return header
        if kind == _END:
            msg = "GIF without an image"
            raise UnusableError(msg)
        if kind != _EXTENSION:
            msg = f"GIF damaged: {kind:02x} at byte {at}, where an image or an extension should be"
            raise UnusableError(msg)
        at = _extension(view, at, blocks)
    raise _too_many()


def _palette(flags: int) -> int:
    """Bytes of the palette that the flags announce."""
    return 6 << (flags & 7) if flags & 0x80 else 0


def _too_many() -> UnusableError:
    return UnusableError(f"GIF with more than {MAX_BLOCKS} blocks before the end of its first image")


def _data_end(view: memoryview, at: int, blocks: Iterator[int]) -> int:
    """Where the data blocks that begin at `at` have ended."""
    for _ in blocks:
        length = view[at]
        at += 1 + length
        if not length:
            return at
    raise _too_many()


def _extension(view: memoryview, at: int, blocks: Iterator[int]) -> int:
    """Where the extension at `at` has ended. Those in which Pillow reads on past the end are refused."""
    label, length = view[at + 1], view[at + 2]
    short = (not length and label != _COMMENT) or (label == _CONTROL and length != 4)
    if label == _APPLICATION and bytes(view[at + 3 : at + 14]) == _LOOP:
        short = short or not view[at + 3 + length]
    if short:
        msg = f"GIF damaged: extension {label:02x} at byte {at} lacks its data"
        raise UnusableError(msg)
    return _data_end(view, at + 2, blocks)


def _first_image(view: memoryview, at: int, canvas: Header, blocks: Iterator[int]) -> None:
    """Check that the image at `at` lies on its canvas and is whole."""
    left, top, width, height, flags = _IMAGE(view, at + 1)
    if not width or not height or left + width > canvas.width or top + height > canvas.height:
        msg = f"GIF damaged: an image of {width}x{height} at {left},{top} on a canvas of {canvas.width}x{canvas.height}"
        raise UnusableError(msg)
    at += 10 + _palette(flags)
    bits = view[at]
    if not 1 <= bits <= 11:  # 8 are enough, but codes have room for 12 and such files are about
        msg = f"GIF damaged: codes of {bits} bits"
        raise UnusableError(msg)
    if _data_end(view, at + 1, blocks) == at + 2:
        msg = "GIF damaged: an image without data"
        raise UnusableError(msg)
