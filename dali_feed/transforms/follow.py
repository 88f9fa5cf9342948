"""What follows an image on its way through the transforms: masks, boxes and keypoints, by torchvision's own functions.

They are torchvision's tv_tensors, so each function does with each what it means for it: masks take the nearest pixel,
boxes and points are moved by arithmetic. The rows are those that the image's own steps take, so the draws are the same.
"""

from __future__ import annotations

from typing import Any

from dali_feed.transforms.base import Arrays, OnImage
from dali_feed.transforms.keys import Key
from dali_feed.transforms.rules import Fill, PadMode

__all__ = ["crop", "fill_behind", "flip", "margin", "scale"]


def crop(key: Key) -> OnImage:
    """Rows y, x, height, width of `key`; 0 outside of a mask."""

    def apply(given: Any, arrays: Arrays, slot: int) -> Any:
        from torchvision.transforms.v2 import functional

        return functional.crop(given, *arrays[key][slot].tolist())

    return apply


def scale(key: Key) -> OnImage:
    """To rows height, width of `key`."""

    def apply(given: Any, arrays: Arrays, slot: int) -> Any:
        from torchvision.transforms.v2 import functional

        return functional.resize(given, arrays[key][slot].tolist()[:2])

    return apply


def margin(key: Key, fill: Fill, mode: PadMode) -> OnImage:
    """Rows left, top, right, bottom of `key` put around it."""

    def apply(given: Any, arrays: Arrays, slot: int) -> Any:
        from torchvision.transforms.v2 import functional

        edges = arrays[key][slot].tolist()
        return functional.pad(given, edges, fill=fill_behind(fill), padding_mode=mode) if any(edges) else given

    return apply


def flip(key: Key, axis: str) -> OnImage:
    """Where row `key` says so."""

    def apply(given: Any, arrays: Arrays, slot: int) -> Any:
        from torchvision.transforms.v2 import functional

        turned = functional.horizontal_flip if axis == "x" else functional.vertical_flip
        return turned(given) if arrays[key][slot] else given

    return apply


def fill_behind(fill: Fill) -> float:
    """Of a mask what the image is filled with, where that is one number, as torchvision has it; else 0."""
    return fill if isinstance(fill, int | float) else 0.0
