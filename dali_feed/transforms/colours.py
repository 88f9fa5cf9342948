"""Colour as a chain of per-sample steps on RGB values 0..255, and the step of a DALI graph that runs it.

A step is first out = clamp(M @ rgb + g * gray_mean + t - 0.5), where gray_mean is the mean gray value of the
image as it enters the step: brightness, contrast and saturation are of this form, and the half turns rounding into
cutting off, as torchvision does on uint8. Then, if any adjustment is a hue, the hue is turned by h of the full
circle in HSV. A part that a step does not use leaves the pixels as they are (M the identity, g, t and h zero), so that
every sample can go through its adjustments in an order of its own.

After these twelve numbers come two more: the kind of the step, one of KINDS, and its factor. A DALI graph uses the
twelve; the kernel `jitter` uses the two, and does the step as torchvision does it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dali_feed.transforms.graph import Given
from dali_feed.transforms.keys import numbered

__all__ = ["GRAY", "KIND", "KINDS", "MAX_STEPS", "WIDTH", "Colour", "adjustment", "gray_steps", "only"]

Floats = NDArray[np.float32]

GRAY = np.array([0.2989, 0.587, 0.114], np.float32)
KINDS = {"nothing": 0, "brightness": 1, "contrast": 2, "saturation": 3, "hue": 4, "gray": 5, "gray_rounded": 6}
WIDTH = 14  # numbers of a step
KIND = slice(12, 14)  # where kind and factor stand
MAX_STEPS = 64  # how many steps the kernel takes

# A uint8 result is cut off, not rounded, in torchvision; DALI rounds. Just under one half makes them agree.
_CUT = -0.4995
_CUT_HUE = 255.999 / 255  # and so it goes from 0..1 back to uint8 after a turn of the hue
_CHANNELS = np.array([[[5, 3, 1]]], np.float32)  # places of red, green and blue on the circle of hues


def adjustment(name: str, factor: Floats) -> Floats:
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


def gray_steps(count: int, *, cut: bool) -> Floats:
    """To gray, float32 (count, 1, 14): `cut` off to a whole level, as torchvision does on uint8, or rounded to one."""
    out = np.zeros((count, 1, WIDTH), np.float32)
    out[..., :9] = np.tile(GRAY, 3)
    out[..., 10] = 0 if cut else 0.5
    out[..., 12] = KINDS["gray" if cut else "gray_rounded"]
    return out


def only(on: NDArray[np.bool_], steps: Floats) -> Floats:
    """The steps for the chosen samples; the steps of all others change nothing."""
    nothing = np.zeros(WIDTH, np.float32)
    nothing[:9] = np.eye(3, dtype=np.float32).ravel()
    return np.where(on[:, None, None], steps, nothing)


@dataclass(frozen=True, slots=True)
class Colour:
    """`steps` colour steps, colour{k} (float32: steps, 14), with or without a mean and a hue."""

    k: int
    steps: int
    contrast: bool
    hue: bool

    name: ClassVar[str] = "colour"

    def on(self, image: Any, given: Given, *, gpu: bool) -> Any:
        """One after the other."""
        from nvidia.dali import fn, types

        steps = given(numbered("colour", self.k), "FLOAT", 2)
        for n in range(self.steps):
            matrix = fn.reshape(steps[n, 0:9], shape=[3, 3])
            shift = steps[n, 10] + _CUT
            if not self.contrast:
                image = _moved(image, matrix, shift, types.UINT8)
            elif gpu:
                image = _contrast_apart(image, matrix, shift, steps[n, 9].gpu(), device="gpu")
            else:
                image = _moved(image, matrix, shift + steps[n, 9] * _gray_mean(image), types.UINT8)
            if self.hue:
                image = _turn_hue(image, 6 * steps[n, 11], device="gpu" if gpu else "cpu")
        return fn.reshape(image, layout="HWC")


def _moved(image: Any, matrix: Any, shift: Any, dtype: Any) -> Any:
    from nvidia.dali import fn

    return fn.coord_transform(image, M=matrix, T=fn.stack(*[shift] * 3), dtype=dtype)


def _gray_mean(image: Any, *, device: str = "cpu") -> Any:
    from nvidia.dali import fn, types

    mean = fn.reductions.mean(image, axes=[0, 1])
    return fn.reductions.sum(mean * types.Constant(GRAY, device=device), axes=[0])


def _contrast_apart(image: Any, matrix: Any, shift: Any, gain: Any, *, device: str) -> Any:
    """The step with its mean added behind the matrix.

    As an argument of the matrix it would be copied to the host, and DALI's thread would wait for the GPU.
    """
    from nvidia.dali import fn, types

    moved = _moved(image, matrix, shift, types.FLOAT)
    return fn.cast(moved + gain * _gray_mean(image, device=device), dtype=types.UINT8)


def _turn_hue(image: Any, sixths: Any, *, device: str = "cpu") -> Any:
    """Turn the hue by so many sixths of the circle, in HSV.

    Value v and chroma c stay; with the hue in sixths, channel n of red 5, green 3, blue 1 becomes
    v - c * clamp(min(k, 4 - k), 0, 1), k = (n + hue) mod 6 (Alvy Ray Smith's hexcone without its cases).
    """
    from nvidia.dali import fn, math, types

    # Given as lists: numbers in their place would be constants on the GPU, which DALI copies back in every batch.
    r, g, b = (fn.cast(fn.slice(image, start=[n], shape=[1], axes=[2]), dtype=types.FLOAT) for n in range(3))
    v = math.max(r, math.max(g, b))
    c = v - math.min(r, math.min(g, b))
    is_r = v == r
    is_g = (v == g) & (v != r)
    is_b = (v != r) & (v != g)
    hue = sixths + (is_r * (g - b) + is_g * (b - r) + is_b * (r - g)) / math.max(c, 1.0) + 2 * is_g + 4 * is_b
    k = types.Constant(_CHANNELS, device=device) + hue
    k = k - 6 * math.floor(k / 6)
    level = v - c * math.clamp(math.min(k, 4 - k), 0.0, 1.0)
    return fn.cast(math.floor(level * _CUT_HUE), dtype=types.UINT8)
