"""PBM, PGM and PPM in NumPy: Pillow's pixels, which reads them a sample at a time in Python."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.screen.header import UnusableError
from dali_feed.screen.pnm import Pnm, pnm_layout

__all__ = ["pnm", "pnm_pixels"]

_COMMENT = re.compile(rb"#[^\r\n]*")
_DIGITS = 10  # of a number at most


def pnm(pixels: NDArray[np.uint8]) -> bytes:
    """The file of (height, width, 3) pixels: a PPM, from which every decoder reads them as they are."""
    height, width, _ = pixels.shape
    return b"".join((b"P6 %d %d 255\n" % (width, height), np.ascontiguousarray(pixels).data))


def pnm_pixels(payload: memoryview) -> NDArray[np.uint8]:
    """Pixels (height, width, 3) of a screened file. Levels up to another bound than 255 are scaled to it.

    Raises:
        UnusableError: text that is not as many numbers as there are samples.
    """
    layout = pnm_layout(payload)
    raw, shape = payload[layout.start :], (layout.height, layout.width, layout.components)
    if layout.text:
        levels = _text(bytes(raw), layout)
    elif layout.bits:
        rows = np.frombuffer(raw, np.uint8, layout.size).reshape(layout.height, -1)
        levels = np.unpackbits(rows, axis=1)[:, : layout.width]
    else:
        levels = np.frombuffer(raw[: layout.size], ">u2" if layout.most > 255 else np.uint8)
    if layout.bits:
        levels = np.uint8(1) - levels
    if layout.most != 255:
        table = np.rint(np.arange(int(levels.max()) + 1) / layout.most * 255)
        levels = np.minimum(table, 255).astype(np.uint8)[levels]
    return np.broadcast_to(levels.reshape(shape).astype(np.uint8, copy=False), (*shape[:2], 3))


def _text(raw: bytes, layout: Pnm) -> NDArray[Any]:
    """The samples, as many as there must be; bytes after them are ignored."""
    samples = layout.width * layout.height * layout.components
    raw = _COMMENT.sub(b"", raw)
    if layout.bits:  # which need no space between them
        levels: NDArray[Any] = np.frombuffer(b"".join(raw.split())[:samples], np.uint8) - np.uint8(ord("0"))
    else:
        words = raw.split(maxsplit=samples)[:samples]
        if not all(word.isdigit() and len(word) <= _DIGITS for word in words):
            msg = "decoder: the pixels of a PNM must all be numbers; found others"
            raise UnusableError(msg)
        levels = np.array([int(word) for word in words])
    if len(levels) < samples or int(levels.max()) > layout.most:
        rule = f"a PNM must have {samples} samples of at most {layout.most}"
        msg = f"decoder: {rule}; found {len(levels)} samples, or larger ones"
        raise UnusableError(msg)
    return levels
