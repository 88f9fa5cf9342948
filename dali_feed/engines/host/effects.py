"""Effects on one image of the host engine: torchvision's own kernels, with what the sample drew."""

from __future__ import annotations

import functools
from typing import Any

import torch
from numpy.typing import NDArray

from dali_feed.compiler.host_effects import Blur, Call, Erase, Skew
from dali_feed.transforms.rules import Fill

__all__ = ["blur", "call", "erase", "erase_in_place", "skew"]

Arrays = dict[str, NDArray[Any]]


def call(image: torch.Tensor, arrays: Arrays, slot: int, step: Call) -> torch.Tensor:
    """A kernel of torchvision's, by name."""
    from torchvision.transforms.v2 import functional

    if not arrays[step.key][slot]:
        return image
    out: torch.Tensor = getattr(functional, step.kernel)(image, *step.args)
    return out


def blur(image: torch.Tensor, arrays: Arrays, slot: int, step: Blur) -> torch.Tensor:
    """With one sigma for both axes."""
    from torchvision.transforms.v2 import functional

    sigma = arrays[step.key][slot].item()
    out: torch.Tensor = functional.gaussian_blur_image(image, list(step.kernel), [sigma, sigma])
    return out


def skew(image: torch.Tensor, arrays: Arrays, slot: int, step: Skew) -> torch.Tensor:
    """From the corners of the image to where they go."""
    from torchvision.transforms.v2 import InterpolationMode, functional

    row, (height, width) = arrays[step.key][slot].tolist(), image.shape[-2:]
    if row[0] < 0:
        return image
    start = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
    end = [row[k : k + 2] for k in range(0, 8, 2)]
    mode, fill = InterpolationMode(step.interpolation), _numbers(step.fill)
    out: torch.Tensor = functional.perspective_image(image, start, end, interpolation=mode, fill=fill)
    return out


def _numbers(value: Fill) -> list[float]:
    return [value] if isinstance(value, int | float) else list(value)


@functools.cache
def _colour(value: Fill) -> torch.Tensor:
    return torch.tensor(_numbers(value))[:, None, None]


def erase(image: torch.Tensor, arrays: Arrays, slot: int, step: Erase) -> torch.Tensor:
    """In a copy, since the image may be another's memory."""
    from torchvision.transforms.v2 import functional

    y, x, height, width = arrays[step.key][slot].tolist()
    if not height or not width:
        return image
    out: torch.Tensor = functional.erase_image(image, y, x, height, width, _colour(step.value))
    return out


def erase_in_place(planes: torch.Tensor, arrays: Arrays, slot: int, step: Erase) -> None:
    """In the memory of the batch, which is ours; `planes` is (3, height, width) in any strides."""
    y, x, height, width = arrays[step.key][slot].tolist()
    planes[:, y : y + height, x : x + width] = _colour(step.value)
