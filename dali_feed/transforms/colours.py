"""Colour jitter as a chain of per-sample steps on RGB values 0..255.

A step is first out = clamp(M @ rgb + g * gray_mean + t - 0.5), where gray_mean is the mean gray value of the
image as it enters the step: brightness, contrast and saturation are that, and the half makes rounding cut off,
as torchvision does on uint8. Then, where there is a hue factor at all, the hue is turned by h of the full
circle in HSV. What a step is not leaves the pixels as they are (M the identity, g, t and h zero), so that every
sample can go through its adjustments in an order of its own.

Beside these twelve numbers a step says in two what it is: one of KINDS, and its factor. A graph takes the first, and
the kernel `jitter` the others, which it does as torchvision does them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dali_feed.transforms.recipe import ColorJitter

__all__ = [
    "GRAY",
    "KIND",
    "KINDS",
    "MAX_STEPS",
    "WIDTH",
    "gray_steps",
    "jitter_draws",
    "jitter_steps",
    "only",
    "steps_of",
]

Floats = NDArray[np.float32]

GRAY = np.array([0.2989, 0.587, 0.114], np.float32)
KINDS = {"nothing": 0, "brightness": 1, "contrast": 2, "saturation": 3, "hue": 4, "gray": 5, "gray_rounded": 6}
WIDTH = 14  # numbers of a step
KIND = slice(12, 14)  # where they say what it is
MAX_STEPS = 64  # that the kernel takes


def steps_of(op: ColorJitter) -> tuple[str, ...]:
    """The factors that are there, in torchvision's numbering."""
    return tuple(name for name in ("brightness", "contrast", "saturation", "hue") if getattr(op, name) is not None)


def _step(name: str, factor: Floats) -> Floats:
    """One adjustment as float32 (n, 14): M row by row, g, t, h, kind, factor."""
    out = np.zeros((len(factor), WIDTH), np.float32)
    eye, f = np.eye(3, dtype=np.float32), factor[:, None, None]
    matrix = f * eye if name in ("brightness", "contrast") else np.broadcast_to(eye, (len(factor), 3, 3))
    if name == "saturation":
        matrix = f * eye + (1 - f) * GRAY
    out[:, :9] = matrix.reshape(-1, 9)
    if name == "contrast":
        out[:, 9] = 1 - factor
    if name in ("contrast", "saturation"):
        out[:, 10] = (factor - 1) / 2  # torchvision blends with gray values that were cut off: half a level less
    if name == "hue":
        out[:, 11] = factor
    out[:, 12], out[:, 13] = KINDS[name], factor
    return out


def jitter_draws(op: ColorJitter, factors: Floats, order: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """Factors float32 (n, k) of the k adjustments that are there, and the order int64 (n, k) they come in.

    `factors` and `order` are uniforms, float32 (4, n) each; row k belongs to the k-th factor that is there.
    """
    ranges = [getattr(op, name) for name in steps_of(op)]
    drawn = [(low + (high - low) * factors[k]).astype(np.float32) for k, (low, high) in enumerate(ranges)]
    return np.stack(drawn, axis=1), np.argsort(order[: len(ranges)], axis=0, kind="stable").T


def jitter_steps(op: ColorJitter, factors: Floats, order: Floats) -> Floats:
    """Steps of every sample in its own order, float32 (n, steps, 14): M row by row, g, t, h, kind, factor.

    `factors` and `order` are uniforms, float32 (4, n) each; row k belongs to the k-th factor that is there.
    """
    drawn, turn = jitter_draws(op, factors, order)
    steps = [_step(name, drawn[:, k]) for k, name in enumerate(steps_of(op))]
    return np.take_along_axis(np.stack(steps, axis=1), turn[:, :, None], axis=1)


def gray_steps(count: int, *, cut: bool) -> Floats:
    """To gray, float32 (count, 1, 14): `cut` off to a whole level, as torchvision does on uint8, or rounded to one."""
    out = np.zeros((count, 1, WIDTH), np.float32)
    out[..., :9] = np.tile(GRAY, 3)
    out[..., 10] = 0 if cut else 0.5
    out[..., 12] = KINDS["gray" if cut else "gray_rounded"]
    return out


def only(on: NDArray[np.bool_], steps: Floats) -> Floats:
    """The steps of the samples that they are for; those of the others change nothing."""
    nothing = np.zeros(WIDTH, np.float32)
    nothing[:9] = np.eye(3, dtype=np.float32).ravel()
    return np.where(on[:, None, None], steps, nothing)
