"""JPEGs decoded smaller by Pillow, and their window resized to what it becomes: the way of `decode="reduced"`.

Pillow is what torchvision decodes with in most programs and is there where torchvision is. Its pixels are not
those of the exact way; docs/engines.md says how far they are from them.
"""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray

__all__ = ["reduced"]


def reduced(
    payload: memoryview,
    by: int,
    window: tuple[int, ...] | None,
    size: tuple[int, ...],
    interpolation: str,
) -> NDArray[np.uint8] | None:
    """`window` (y, x, height, width; None: all) of a JPEG decoded at 1/`by`, resized: uint8 (*size, 3).

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
        small = image.resize((size[1], size[0]), filters[interpolation], box)
    except (OSError, SyntaxError, ValueError):  # what Pillow raises for a file that is no image or is cut off
        return None
    return np.array(small if small.mode == "RGB" else small.convert("RGB"))
