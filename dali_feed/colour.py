"""Colour jitter as a chain of per-sample affine steps on RGB values 0..255.

A step is out = clamp(M @ rgb + g * gray_mean - 0.5), where gray_mean is the mean gray value of the image
as it enters the step. Brightness, contrast and saturation are exactly that; the half makes rounding cut
off, as torchvision does on uint8. Hue has no such form: it is turned in the YIQ plane, as DALI does,
where torchvision goes through HSV (docs/transforms.md states the distance).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dali_feed.recipe import ColorJitter

__all__ = ["GRAY", "jitter_steps", "steps_of"]

Floats = NDArray[np.float32]

GRAY = np.array([0.2989, 0.587, 0.114], np.float32)
_YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.321], [0.211, -0.523, 0.311]])
_RGB = np.linalg.inv(_YIQ)


def steps_of(op: ColorJitter) -> tuple[str, ...]:
    """The factors that are there, in torchvision's numbering."""
    return tuple(name for name in ("brightness", "contrast", "saturation", "hue") if getattr(op, name) is not None)


def _matrices(name: str, factor: Floats) -> tuple[Floats, Floats]:
    """M, float32 (n, 3, 3), and g, float32 (n,), of one adjustment."""
    eye, none = np.eye(3, dtype=np.float32), np.zeros_like(factor)
    f = factor[:, None, None]
    if name == "brightness":
        return f * eye, none
    if name == "contrast":
        return f * eye, 1 - factor
    if name == "saturation":
        return f * eye + (1 - f) * GRAY, none
    turn = np.zeros((len(factor), 3, 3))
    turn[:, 0, 0] = 1
    cos, sin = np.cos(2 * np.pi * factor), np.sin(2 * np.pi * factor)
    turn[:, 1, 1], turn[:, 1, 2], turn[:, 2, 1], turn[:, 2, 2] = cos, sin, -sin, cos
    return np.asarray(_RGB @ turn @ _YIQ, np.float32), none


def jitter_steps(op: ColorJitter, factors: Floats, order: Floats) -> Floats:
    """Steps of every sample in its own order, float32 (n, steps, 10): M row by row, then g.

    `factors` and `order` are uniforms, float32 (4, n) each; row k belongs to the k-th of torchvision's four.
    """
    names = steps_of(op)
    out = np.empty((factors.shape[1], len(names), 10), np.float32)
    for k, name in enumerate(names):
        low, high = getattr(op, name)
        matrix, gray = _matrices(name, (low + (high - low) * factors[k]).astype(np.float32))
        out[:, k, :9], out[:, k, 9] = matrix.reshape(-1, 9), gray
    turn = np.argsort(order[: len(names)], axis=0, kind="stable").T
    return np.take_along_axis(out, turn[:, :, None], axis=1)
