"""Outline: what can be said of a recipe before any sample is seen: the sizes, dtype and draws of its ops.

The law of this file: an order of ops that has no meaning is refused here, for every engine, and an image that
an op cannot take is known by its header's size, so that it is a bad record and never a failure of an engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.errors import TransformError
from dali_feed.plan.streams import STREAMS_PER_OP
from dali_feed.transforms import base
from dali_feed.transforms.colours import steps_of
from dali_feed.transforms.effects import Effect, Grayscale
from dali_feed.transforms.fit import CropOrPad, ResizeKeepRatio, TrimBorder
from dali_feed.transforms.geometry import TRIES, padded, resized
from dali_feed.transforms.geometry_fit import kept_ratio
from dali_feed.transforms.nest import pick_streams, walk
from dali_feed.transforms.recipe import (
    CenterCrop,
    ColorJitter,
    Flip,
    Nest,
    Normalize,
    Op,
    Pad,
    RandomAffine,
    RandomCrop,
    RandomResizedCrop,
    Recipe,
    Resize,
    Rotation,
    ToFloat,
)
from dali_feed.transforms.rules import DType

__all__ = ["Outline", "outline", "unfit"]

_NAMES = {"Rotation": "RandomRotation"}  # torchvision's, where ours is another

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Outline:
    """size: (height, width) of every image, or None where it follows the input's; dtype; draws of every sample."""

    size: tuple[int, int] | None
    dtype: DType
    streams: list[int]


def outline(recipe: Recipe) -> Outline:
    """The outline. Raises TransformError where ops stand in an order that has no meaning (Normalize of uint8, ...)."""
    size: tuple[int, int] | None = None
    dtype: DType = "uint8"
    streams: list[int] = []
    normalized, channels = False, 3
    for n, op in walk(recipe.ops):
        channels = op.channels if isinstance(op, Grayscale) else channels
        _check_channels(op, channels)
        fits = isinstance(op, Flip | ToFloat | Normalize | Nest)
        if normalized and not fits and not getattr(op, "normalized", False):
            name = _NAMES.get(type(op).__name__, type(op).__name__)
            msg = f"{name}: pixels are resampled and recoloured before Normalize; move it in front of it"
            raise TransformError(msg)
        streams += [n * STREAMS_PER_OP + k for k in _streams(op)]
        size = _size(op, size)
        _check_units(op, dtype)
        if isinstance(op, ToFloat):
            if dtype != "uint8" and op.dtype == "uint8":
                msg = f"ToDtype: {dtype} pixels cannot become uint8 again; leave out the first conversion"
                raise TransformError(msg)
            dtype = op.dtype
        elif isinstance(op, Normalize):
            if dtype == "uint8":
                cure = "Put ToTensor or ToDtype(torch.float32, scale=True) first"
                msg = f"Normalize: needs float pixels; found uint8. {cure}"
                raise TransformError(msg)
            normalized = True
    return Outline(size, dtype, streams)


def _check_channels(op: Op, channels: int) -> None:
    """Three values for one channel."""
    fields = ("fill", "value", "mean", "std")
    values = (getattr(op, name, None) for name in fields)
    three = next((value for value in values if isinstance(value, tuple) and len(value) == 3), None)
    if channels == 1 and three is not None:
        name = _NAMES.get(type(op).__name__, type(op).__name__)
        msg = f"{name}: images have one channel behind Grayscale(1), so it takes one number; found {three}"
        raise TransformError(msg)


def _check_units(op: Op, dtype: DType) -> None:
    """Values that torchvision has no meaning for in the units that pixels have there."""
    if isinstance(op, base.Effect):
        op.check(dtype)


_EFFECT_DRAWS: dict[type[Effect], int] = {
    Grayscale: 0,
}


def _streams(op: Op) -> Iterable[int]:
    """Which of its streams every sample draws from."""
    if isinstance(op, RandomResizedCrop | ResizeKeepRatio) and op.interpolation == "random":
        return 0, TRIES
    return op.drawn() if isinstance(op, base.Effect) else range(_draws(op))


def _draws(op: Op) -> int:
    """How many streams every sample draws from."""
    if isinstance(op, Nest):
        return pick_streams(op)
    if isinstance(op, Effect):
        return _EFFECT_DRAWS.get(type(op), 1)
    match op:
        case RandomResizedCrop() | RandomCrop() | Flip() | Rotation() | ResizeKeepRatio() | CropOrPad():
            return 1  # further tries of a RandomResizedCrop are drawn by those that need them
        case RandomAffine():
            return 2
        case ColorJitter():
            return 2 if steps_of(op) else 0
        case _:
            return 0


def _size(op: Op, size: tuple[int, int] | None) -> tuple[int, int] | None:
    match op:
        case RandomResizedCrop() | CenterCrop() | RandomCrop() | CropOrPad():
            return op.size
        case ResizeKeepRatio() | TrimBorder():
            return None
        case Resize():
            return None if isinstance(op.size, int) else op.size
        case Pad() if size is not None:
            left, top, right, bottom = op.padding
            return size[0] + top + bottom, size[1] + left + right
        case _:
            return size


_PICKY = base.Effect | RandomCrop | Pad | CropOrPad | TrimBorder  # that cannot take every size


def unfit(recipe: Recipe, sizes: NDArray[Any]) -> dict[int, str]:
    """Rows of `sizes` (n, 2: height, width) whose images an op cannot take, with the reason; size 0 is nobody's."""
    if not any(isinstance(op, _PICKY) for _, op in walk(recipe.ops)):
        return {}
    reasons: dict[int, str] = {}
    rows = np.flatnonzero(sizes[:, 0] > 0)
    h, w = sizes[rows, 0].astype(np.int64), sizes[rows, 1].astype(np.int64)
    for _, op in walk(recipe.ops):  # what stands in a nest leaves sizes as they are
        for row, reason in _not_taken(op, h, w):
            reasons.setdefault(int(rows[row]), reason)
        h, w = _behind(op, h, w)
    return reasons


def _not_taken(op: Op, h: Ints, w: Ints) -> list[tuple[int, str]]:
    """Images that the op cannot take, each with the reason."""
    match op:
        case base.Effect():
            return op.unfit(h, w)
        case RandomCrop() | Pad():
            return _refused(op, h, w, padded(h, w, op))
        case CropOrPad() | TrimBorder():
            return _unfit_to(op, h, w)
        case _:
            return []


def _behind(op: Op, h: Ints, w: Ints) -> tuple[Ints, Ints]:
    """Heights and widths behind the op, as far as no sample draws them."""
    fixed = _size(op, None)
    if fixed is not None:
        return np.full_like(h, fixed[0]), np.full_like(w, fixed[1])
    match op:
        case Pad():
            left, top, right, bottom = padded(h, w, op)
            return h + top + bottom, w + left + right
        case TrimBorder():
            return np.maximum(h - 2 * op.border, 1), np.maximum(w - 2 * op.border, 1)
        case ResizeKeepRatio():
            return kept_ratio(op, h, w, None)
        case Resize():
            return resized(h, w, op.size, op.max_size)
        case _:
            return h, w


def _unfit_to(op: CropOrPad | TrimBorder, h: Ints, w: Ints) -> list[tuple[int, str]]:
    if isinstance(op, TrimBorder):
        gone = np.minimum(h, w) <= 2 * op.border
        told = f"TrimBorder: nothing is left without {op.border} pixels at each edge"
        return [(k, f"{told}; found {w[k]}x{h[k]}") for k in np.flatnonzero(gone).tolist()]
    most = [np.maximum(op.size[0] - h, 0), np.maximum(op.size[1] - w, 0)]  # at one edge, where it may be anywhere
    high, wide = most if op.anywhere else [(each + 1) // 2 for each in most]
    spare = {"reflect": 1, "symmetric": 0}.get(op.mode)
    short = np.zeros(len(h), bool) if spare is None else (high > h - spare) | (wide > w - spare)
    told = f'CropOrPad: padding_mode="{op.mode}" needs more pixels than padding'
    return [(k, f"{told}; found {w[k]}x{h[k]}") for k in np.flatnonzero(short).tolist()]


def _refused(op: RandomCrop | Pad, h: Ints, w: Ints, edges: tuple[Ints, Ints, Ints, Ints]) -> list[tuple[int, str]]:
    left, top, right, bottom = edges
    found: list[tuple[int, str]] = []
    if op.mode in ("reflect", "symmetric"):
        spare = 1 if op.mode == "reflect" else 0  # the edge itself is not repeated
        short = (np.maximum(left, right) > w - spare) | (np.maximum(top, bottom) > h - spare)
        told = f'{type(op).__name__}: padding_mode="{op.mode}" needs more pixels than padding'
        found += [(k, f"{told}; found {w[k]}x{h[k]}") for k in np.flatnonzero(short).tolist()]
    if isinstance(op, RandomCrop):
        small = (h + top + bottom < op.size[0]) | (w + left + right < op.size[1])
        told = f"RandomCrop: {op.size[1]}x{op.size[0]} must fit into the image; found"
        cure = "pad_if_needed=True takes it"
        found += [(k, f"{told} {w[k]}x{h[k]}; {cure}") for k in np.flatnonzero(small).tolist()]
    return found
