"""Effects as DALI computes them: on uint8, whatever the pixels are called where the op stands.

What an effect is not for goes through it unchanged: an identity matrix, a kernel of one pixel, all bits, a
level that no value reaches, an empty rectangle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from dali_feed.compiler.host_effects import blur_sigmas, whether
from dali_feed.compiler.steps import Bits, Blur, Colour, Erase, Solarize, Step
from dali_feed.errors import TransformError
from dali_feed.transforms import base
from dali_feed.transforms.colours import gray_steps, only
from dali_feed.transforms.effects import (
    Effect,
    GaussianBlur,
    Grayscale,
    RandomErasing,
    RandomGrayscale,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from dali_feed.transforms.erasing import erased
from dali_feed.transforms.run import Run
from dali_feed.transforms.units import Place

__all__ = ["effect"]

_SHARP = 0.01  # the sigma of a kernel whose neighbours weigh exp(-5000), which is 0


def _refuse(op: Effect, rule: str, found: object) -> NoReturn:
    msg = f"{type(op).__name__}: the dali engine {rule}; found {found}. The host engine takes it"
    raise TransformError(msg)


def effect(op: Effect, place: Place, k: int, first: int) -> tuple[Step, Callable[[Run], None]]:
    """Step number k for the op, and what fills its array. TransformError where DALI has no operator for it."""
    step: Step
    if isinstance(op, base.Effect):
        step, rows = op.graph(place, k, first)
        name = step.name
    else:
        step, name, rows = _lowered(op, place, k, first)

    def fill(run: Run) -> None:
        run.arrays[f"{name}{k}"] = rows(run)

    return step, fill


def _lowered(op: Effect, place: Place, k: int, first: int) -> tuple[Step, str, Callable[[Run], NDArray[Any]]]:
    def on(run: Run) -> NDArray[np.bool_]:
        return run.on & whether(op, run, first)

    match op:
        case Grayscale() | RandomGrayscale():
            step = Colour(k, 1, contrast=False, hue=False)
            return step, "colour", lambda run: only(on(run), gray_steps(len(run.ids), cut=place.dtype == "uint8"))
        case RandomPosterize():
            if place.dtype != "uint8":
                _refuse(op, "has bits of uint8 pixels", place.dtype)
            mask = 256 - (256 >> op.bits)
            return Bits(k), "bits", lambda run: np.where(on(run), mask, 255).astype(np.uint8)
        case RandomInvert() | RandomSolarize():
            level = _level(op, place)
            return Solarize(k), "level", lambda run: np.where(on(run), level, 256).astype(np.int32)
        case GaussianBlur():
            return Blur(k, op.kernel), "sigma", lambda run: _sigmas(op, run, first)
        case RandomErasing():
            return Erase(k, _fill(op, place)), "rect", lambda run: _rectangles(op, run, first)
        case _:
            _refuse(op, "has no operator for it", type(op).__name__)


def _level(op: RandomInvert | RandomSolarize, place: Place) -> int:
    """The first level that is inverted."""
    if not place.is_unit:
        _refuse(op, "inverts uint8 pixels and floats in 0..1", "floats in 0..255")
    if isinstance(op, RandomInvert):
        return 0
    values = np.arange(256, dtype=np.float32)
    values = values if place.dtype == "uint8" else values * np.float32(1 / 255)
    return int(np.count_nonzero(values < op.threshold))


def _sigmas(op: GaussianBlur, run: Run, first: int) -> NDArray[np.float32]:
    return np.where(run.on, blur_sigmas(op, run, first), np.float32(_SHARP))


def _rectangles(op: RandomErasing, run: Run, first: int) -> NDArray[np.float32]:
    y, x, h, w = erased(op, run, first, run.h, run.w)
    there = run.on & (h > 0) & (w > 0)
    rows = np.stack([*run.as_shown((y, x, h, w))], axis=1)
    return np.where(there[:, None], rows, 0).astype(np.float32)


def _fill(op: RandomErasing, place: Place) -> tuple[float, float, float]:
    """The value in levels: whole ones, so at most half a level from what torchvision writes into floats."""
    value = np.broadcast_to(op.value, 3)
    levels = np.trunc(value) if place.dtype == "uint8" else np.rint((value - place.bias) / place.scale)
    if not ((levels >= 0) & (levels <= 255)).all():
        _refuse(op, "erases with a value that a pixel of 0..255 can have", op.value)
    red, green, blue = levels.tolist()
    return red, green, blue
