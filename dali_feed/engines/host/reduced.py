"""JPEGs decoded smaller by Pillow, and their window resized to what it becomes: the way of `decode="reduced"`.

Pillow is what torchvision decodes with in most programs and is there where torchvision is. Its pixels are not
those of the exact way; docs/engines.md says how far they are from them.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["UPRIGHT", "reduced"]

UPRIGHT = (0, 0, 0)

Box = tuple[float, float, float, float]  # left, top, right, bottom


def reduced(
    payload: memoryview,
    by: int,
    window: tuple[int, ...] | None,
    size: tuple[int, ...],
    interpolation: str,
    way: Sequence[int] = UPRIGHT,
) -> NDArray[np.uint8] | None:
    """`window` (y, x, height, width; None: all) of a JPEG decoded at 1/`by`, turned, resized: uint8 (*size, 3).

    The window is one of the image as stored; `way`: mirrored top to bottom, left to right, axes exchanged.

    None where that is not possible: no JPEG, four colours, a damaged one. The exact way decides then.
    """
    from PIL import Image, JpegImagePlugin

    filters = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
    try:
        image = JpegImagePlugin.JpegImageFile(io.BytesIO(payload))  # not Image.open, which has a bound of its own
        width, height = image.size
        image.draft("RGB", (width // by, height // by))
        if image.size != (-(-width // by), -(-height // by)) or image.mode not in ("L", "RGB"):
            return None
        y, x, h, w = (edge / by for edge in window or (0, 0, height, width))
        box = (x, y, min(x + w, image.width), min(y + h, image.height))
        if tuple(way) != UPRIGHT:
            image, box = _turned(image, box, way)
        small = image.resize((size[1], size[0]), filters[interpolation], box)
    except (OSError, SyntaxError, ValueError):  # what Pillow raises for a file that is no image or is cut off
        return None
    return np.array(small if small.mode == "RGB" else small.convert("RGB"))


def _turned(image: Any, box: Box, way: Sequence[int]) -> tuple[Any, Box]:
    """The small image turned, and where the box is then."""
    from PIL import Image

    (wide, high), (x0, y0, x1, y1) = image.size, box
    up_down, left_right, sideways = way
    if up_down:
        image, y0, y1 = image.transpose(Image.Transpose.FLIP_TOP_BOTTOM), high - y1, high - y0
    if left_right:
        image, x0, x1 = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT), wide - x1, wide - x0
    if sideways:
        return image.transpose(Image.Transpose.TRANSPOSE), (y0, x0, y1, x1)
    return image, (x0, y0, x1, y1)
