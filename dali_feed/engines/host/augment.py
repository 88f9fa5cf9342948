"""AutoAugment and its kind on one image: torchvision's own kernels, by the operations that the sample chose."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from numpy.typing import NDArray

from dali_feed.compiler.host_effects import Augment
from dali_feed.transforms.auto import PLAIN
from dali_feed.transforms.auto_augment import Space

__all__ = ["augment", "strengths"]

Arrays = dict[str, NDArray[Any]]


@functools.lru_cache(4096)
def strengths(name: str, space: Space, bins: int, edge: int) -> tuple[float, ...]:
    """What an operation's strengths come to on an image of that `edge`, by the same calls of torch as torchvision's."""
    match name:
        case "ShearX" | "ShearY":
            most = space.shear
        case "TranslateX" | "TranslateY":
            most = space.shift(edge)
        case "Rotate":
            most = space.turn
        case "Posterize":
            weakest, fewer = space.bits
            return tuple((weakest - (torch.arange(bins) / ((bins - 1) / fewer))).round().int().tolist())
        case "Solarize":
            return tuple(torch.linspace(1.0, 0.0, bins).tolist())
        case _:
            most = space.colour
    return tuple(torch.linspace(0.0, most, bins).tolist())


def augment(image: torch.Tensor, arrays: Arrays, slot: int, step: Augment) -> torch.Tensor:
    """One chain of operations, or several mixed with the image."""
    chains = arrays[step.key][slot].tolist()
    if not step.mixed:
        return _chain(image, chains[0], step)
    batch = image[None]
    weights = torch.from_numpy(arrays[f"{step.key}_weights"][slot]).to(image.device)
    mixed = weights[:1].view(1, 1, 1, 1) * batch
    for k, chain in enumerate(chains):
        mixed.add_(weights[1 + k].view(1, 1, 1, 1) * _chain(batch, chain, step))
    return mixed[0].to(image.dtype)


def _chain(image: torch.Tensor, chain: list[list[int]], step: Augment) -> torch.Tensor:
    for which, strong, sign in chain:
        if which >= 0:
            name = step.space.names[which]
            image = _operated(image, name, _strength(image, name, strong, step) * sign, step)
    return image


def _strength(image: torch.Tensor, name: str, strong: int, step: Augment) -> float:
    if name in PLAIN:
        return 0.0
    edge = {"TranslateX": -1, "TranslateY": -2}.get(name)
    return strengths(name, step.space, step.bins, image.shape[edge] if edge else 0)[strong]


def _operated(image: torch.Tensor, name: str, strength: float, step: Augment) -> torch.Tensor:
    from torchvision.transforms.v2 import functional

    out: torch.Tensor
    match name:
        case "Identity":
            out = image
        case "ShearX" | "ShearY" | "TranslateX" | "TranslateY" | "Rotate":
            out = _moved(image, name, strength, step)
        case "Brightness":
            out = functional.adjust_brightness_image(image, 1.0 + strength)
        case "Color":
            out = functional.adjust_saturation_image(image, 1.0 + strength)
        case "Contrast":
            out = functional.adjust_contrast_image(image, 1.0 + strength)
        case "Sharpness":
            out = functional.adjust_sharpness_image(image, 1.0 + strength)
        case "Posterize":
            out = functional.posterize_image(image, int(strength))
        case "Solarize":
            out = functional.solarize_image(image, 255 * strength)
        case _:
            out = getattr(functional, f"{name.lower()}_image")(image)
    return out


def _moved(image: torch.Tensor, name: str, strength: float, step: Augment) -> torch.Tensor:
    from torchvision.transforms.v2 import InterpolationMode, functional

    mode = InterpolationMode(step.interpolation)
    fill = list(step.fill) if isinstance(step.fill, tuple) else step.fill
    out: torch.Tensor
    if name == "Rotate":
        out = functional.rotate_image(image, strength, interpolation=mode, fill=fill)
        return out
    shift, shear = [0.0, 0.0], [0.0, 0.0]
    axis = 0 if name.endswith("X") else 1
    if name.startswith("Shear"):
        shear[axis] = math.degrees(math.atan(strength))
    else:
        shift[axis] = int(strength)
    center = [0, 0] if name.startswith("Shear") else None
    out = functional.affine_image(image, 0.0, shift, 1.0, shear, interpolation=mode, fill=fill, center=center)
    return out
