"""What follows an image on its way through the transforms: masks, boxes and keypoints, by torchvision's own functions.

They are torchvision's tv_tensors, so each function does with each what it means for it: masks take the nearest pixel,
boxes and points are moved by arithmetic. The rows are those that the image's own steps take, so the draws are the same.
"""

from __future__ import annotations

from typing import Any

from dali_feed.transforms.keys import Key
from dali_feed.transforms.op import Arrays, OnImage
from dali_feed.transforms.settings import Fill

__all__ = ["crop", "fill_behind", "scale"]


def crop(key: Key, fill: float = 0.0) -> OnImage:
    """Rows y, x, height, width of `key`; `fill` outside of a mask."""

    def apply(given: Any, arrays: Arrays, slot: int) -> Any:
        from torchvision.transforms.v2 import functional
        from torchvision.tv_tensors import Mask

        y, x, height, width = arrays[key][slot].tolist()
        if fill and isinstance(given, Mask):  # torchvision's crop knows no fill: its transforms pad before it
            high, wide = functional.get_size(given)
            edges = [max(0, edge) for edge in (-x, -y, x + width - wide, y + height - high)]
            given = functional.pad(given, edges, fill=fill)
            y, x = y + edges[1], x + edges[0]
        return functional.crop(given, y, x, height, width)

    return apply


def scale(key: Key) -> OnImage:
    """To rows height, width of `key`."""

    def apply(given: Any, arrays: Arrays, slot: int) -> Any:
        from torchvision.transforms.v2 import functional

        return functional.resize(given, arrays[key][slot].tolist()[:2])

    return apply


def fill_behind(fill: Fill, masks: Fill | None) -> float:
    """What a mask is filled with: `masks`, or where that is None as the image is.

    0 in place of three numbers, which no mask can be filled with: boxes and points do not look at it.
    """
    found = fill if masks is None else masks
    return found if isinstance(found, int | float) else 0.0
