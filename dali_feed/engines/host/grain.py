"""Noise on one image of the host engine: torchvision's arithmetic, on numbers that are the sample's own.

They are drawn on the CPU wherever the image is, so that they are the same on every device.
"""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray

from dali_feed.compiler.host_effects import Grain
from dali_feed.transforms.noise import GaussianNoise, NoisyErasing

__all__ = ["grain", "normal"]

Arrays = dict[str, NDArray[Any]]


def normal(shape: tuple[int, ...], generator: torch.Generator, image: torch.Tensor) -> torch.Tensor:
    """Normal numbers, float32, on the image's device."""
    return torch.randn(shape, generator=generator).to(image.device)


def grain(image: torch.Tensor, arrays: Arrays, slot: int, step: Grain) -> torch.Tensor:
    """Noise everywhere, or in rectangles."""
    generator = torch.Generator().manual_seed(int(arrays[f"{step.key}_seed"][slot]))
    if isinstance(step.op, GaussianNoise):
        return _noisy(image, step.op, generator)
    rectangles = [row for row in arrays[step.key][slot].tolist() if row[2] and row[3]]
    return _erased(image, rectangles, step.op, generator) if rectangles else image


def _noisy(image: torch.Tensor, op: GaussianNoise, generator: torch.Generator) -> torch.Tensor:
    drawn = normal(tuple(image.shape), generator, image)
    if image.is_floating_point():
        out = image + (op.mean + drawn.to(image.dtype) * op.sigma)
        return out.clamp(0, 1) if op.clip else out
    out = image + (op.mean * 255 + drawn * (op.sigma * 255)).to(torch.int16)  # whole levels, as torchvision adds them
    return (out.clamp(0, 255) if op.clip else out).to(torch.uint8)


def _erased(
    image: torch.Tensor, rectangles: list[list[int]], op: NoisyErasing, generator: torch.Generator
) -> torch.Tensor:
    image, channels = image.clone(), image.shape[0]
    for y, x, height, width in rectangles:
        shape = (channels, height, width) if op.fill == "pixel" else (channels, 1, 1)
        value = torch.zeros(shape) if op.fill == "zero" else normal(shape, generator, image)
        image[:, y : y + height, x : x + width] = value.to(image)
    return image
