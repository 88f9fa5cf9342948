"""Crops of images and pixels put around them: their rows, their steps on one image, and images too small to pad."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.transforms.base import Arrays, Ints, OnImage, Op
from dali_feed.transforms.keys import Key
from dali_feed.transforms.rules import Fill, PadMode, as_list
from dali_feed.transforms.units import Place

__all__ = ["crop", "margin", "one_level", "rows", "too_narrow"]


def rows(*columns: Ints) -> NDArray[np.int32]:
    """A row per sample."""
    return np.stack(columns, axis=1).astype(np.int32)


def one_level(op: Op, fill: Fill, place: Place) -> float:
    """One fill in 0..255, as DALI takes it where images are turned. TransformError where channels differ."""
    if not isinstance(fill, int | float) and len(set(fill)) != 1:
        op.refuse("takes one fill for all channels", fill)
    return place.levels(fill)[0]


def crop(key: Key, fill: Fill = 0.0) -> OnImage:
    """Rows y, x, height, width (int32) of `key`; `fill` outside the image."""

    def apply(image: Any, arrays: Arrays, slot: int) -> Any:
        y, x, height, width = arrays[key][slot].tolist()
        h, w = image.shape[-2:]
        if y >= 0 and x >= 0 and y + height <= h and x + width <= w:
            return image[:, y : y + height, x : x + width]
        return _beyond(image, (y, x, height, width), fill)

    return apply


def _beyond(image: Any, window: tuple[int, int, int, int], fill: Fill) -> Any:
    """A crop that is partly outside the image."""
    import torch

    (y, x, height, width), (h, w) = window, image.shape[-2:]
    out = image.new_empty((image.shape[0], height, width))
    colour = torch.tensor(as_list(fill)).to(image.dtype)  # cut off to a whole level, as torchvision does
    out[:] = colour.view(-1, 1, 1)
    top, left, bottom, right = max(y, 0), max(x, 0), min(y + height, h), min(x + width, w)
    out[:, top - y : bottom - y, left - x : right - x] = image[:, top:bottom, left:right]
    return out


def margin(key: Key, fill: Fill, mode: PadMode) -> OnImage:
    """Rows left, top, right, bottom (int32) of `key` put around the image."""
    colour = as_list(fill)

    def apply(image: Any, arrays: Arrays, slot: int) -> Any:
        from torchvision.transforms.v2 import functional

        edges = arrays[key][slot].tolist()
        return functional.pad_image(image, edges, colour, mode) if any(edges) else image

    return apply


def too_narrow(title: str, mode: PadMode, image: tuple[Ints, Ints], widest: tuple[Ints, Ints]) -> list[tuple[int, str]]:
    """Images (heights, widths) that have too few pixels to mirror into edges up to `widest` (high, wide)."""
    spare = {"reflect": 1, "symmetric": 0}.get(mode)  # "reflect" does not repeat the edge itself, "symmetric" does
    if spare is None:
        return []
    (h, w), (high, wide) = image, widest
    short = (high > h - spare) | (wide > w - spare)
    told = f'{title}: padding_mode="{mode}" needs an image that is larger than the padding'
    return [(k, f"{told}; found {w[k]}x{h[k]}") for k in np.flatnonzero(short).tolist()]
