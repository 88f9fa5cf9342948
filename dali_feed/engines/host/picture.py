"""timm's AutoAugment and its kind on one image: Pillow's own operations, by what the sample chose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dali_feed.compiler.host_effects import Picture
from dali_feed.transforms.pillow import Look, MixAugment
from dali_feed.transforms.pillow_augment import parts_of

__all__ = ["picture", "strength"]

Arrays = dict[str, NDArray[Any]]


def picture(image: torch.Tensor, arrays: Arrays, slot: int, step: Picture) -> torch.Tensor:
    """One chain of operations, or several mixed with the image."""
    from torchvision.transforms.v2 import functional

    chains = arrays[step.key][slot].tolist()
    if not isinstance(step.op, MixAugment) and not any(which >= 0 for which, *_ in chains[0]):
        return image
    given = functional.to_pil_image(image.contiguous())
    made = [_chain(given, chain, step) for chain in chains]
    whole = made[0]
    if isinstance(step.op, MixAugment):
        share, *weights = arrays[f"{step.key}_weights"][slot].tolist()
        amount = 1.0 - share
        shares = [weight / amount if amount else 0.0 for weight in weights]
        whole = (_blended if step.op.blended else _mixed)(given, made, shares, amount)
    out: torch.Tensor = functional.pil_to_tensor(whole)
    return out.to(image.device)


def _mixed(image: Any, made: list[Any], shares: list[float], amount: float) -> Any:
    from PIL import Image

    total = np.zeros((image.height, image.width, len(image.getbands())), np.float32)
    for each, share in zip(made, shares, strict=True):
        total += np.float32(share) * np.asarray(each, np.float32).reshape(total.shape)
    levels = np.clip(total, 0, 255).astype(np.uint8)
    return Image.blend(image, Image.fromarray(levels if levels.shape[2] == 3 else levels[..., 0]), amount)


def _blended(image: Any, made: list[Any], shares: list[float], amount: float) -> Any:
    """Each chain into what is there, by the shares that come to the same as all at once."""
    from PIL import Image

    left, parts = 1.0, []
    for share in reversed(shares):
        parts.append(share * amount / left if left > 0 else 0.0)
        left *= 1.0 - parts[-1]
    for each, part in zip(made, reversed(parts), strict=True):
        image = Image.blend(image, each, part)
    return image


def _chain(image: Any, chain: list[list[float]], step: Picture) -> Any:
    parts, look = parts_of(step.op), step.op.look
    for which, strong, sign, chosen, more in chain:
        if which >= 0:
            name = parts[int(which)].name
            value = strength(name, strong, sign, more, look)
            image = _operated(image, name, value, look, look.filters[int(chosen)])
    return image


def strength(name: str, strong: float, sign: float, more: float, look: Look) -> float:
    """What a strength of 0..10 and a sign come to; `more`: where it is drawn once more."""
    part, plain = strong / 10.0, name.removesuffix("Increasing")
    if name in _SIGNED:
        return sign * part * _SIGNED[name](look)
    if plain in _ENHANCED:
        return part * 1.8 + 0.1 if plain == name else max(0.1, 1.0 + sign * (part * 0.9))
    if name == "GaussianBlurRand":
        return 0.1 + (2.0 * min(max(part, 0.0), 1.0) - 0.1) * more
    return _PARTS[name](part) if name in _PARTS else 0.0


_ENHANCED = ("Color", "Contrast", "Brightness", "Sharpness")
_SIGNED: dict[str, Callable[[Look], float]] = {  # at full strength
    "Rotate": lambda _: 30.0,
    "ShearX": lambda _: 0.3,
    "ShearY": lambda _: 0.3,
    "TranslateX": lambda look: look.shift,
    "TranslateY": lambda look: look.shift,
    "TranslateXRel": lambda look: look.share,
    "TranslateYRel": lambda look: look.share,
}
_PARTS: dict[str, Callable[[float], float]] = {  # of 1
    "Posterize": lambda part: int(part * 4),
    "PosterizeIncreasing": lambda part: 4 - int(part * 4),
    "PosterizeOriginal": lambda part: int(part * 4) + 4,
    "Solarize": lambda part: min(256, int(part * 256)),
    "SolarizeIncreasing": lambda part: 256 - min(256, int(part * 256)),
    "SolarizeAdd": lambda part: min(128, int(part * 110)),
    "Desaturate": lambda part: min(1.0, max(0.0, 1.0 - min(max(0.5 + 0.5 * part, 0.5), 1.0))),
    "GaussianBlur": lambda part: min(max(0.1 + (2.0 - 0.1) * part, 0.1), 2.0),
}

Outside = tuple[Any, int]  # the colour outside, and Pillow's filter


def _moved(image: Any, matrix: tuple[float, ...], look: Outside) -> Any:
    from PIL import Image

    fill, filtered = look
    return image.transform(image.size, Image.Transform.AFFINE, matrix, resample=filtered, fillcolor=fill)


_MOVED: dict[str, Callable[[Any, float, Outside], Any]] = {
    "Rotate": lambda image, degrees, look: image.rotate(degrees, resample=look[1], fillcolor=look[0]),
    "ShearX": lambda image, by, look: _moved(image, (1, by, 0, 0, 1, 0), look),
    "ShearY": lambda image, by, look: _moved(image, (1, 0, 0, by, 1, 0), look),
    "TranslateX": lambda image, by, look: _moved(image, (1, 0, by, 0, 1, 0), look),
    "TranslateY": lambda image, by, look: _moved(image, (1, 0, 0, 0, 1, by), look),
    "TranslateXRel": lambda image, by, look: _moved(image, (1, 0, by * image.size[0], 0, 1, 0), look),
    "TranslateYRel": lambda image, by, look: _moved(image, (1, 0, 0, 0, 1, by * image.size[1]), look),
}


def _operated(image: Any, name: str, value: float, look: Look, filtered: int) -> Any:
    if name in _MOVED:
        return _MOVED[name](image, value, (look.fill if image.mode == "RGB" else look.fill[0], filtered))
    return _recoloured(image, name, value)


def _recoloured(image: Any, name: str, value: float) -> Any:
    from PIL import ImageEnhance, ImageFilter, ImageOps

    plain = "Color" if name == "Desaturate" else name.removesuffix("Increasing")
    if plain in _ENHANCED:
        return getattr(ImageEnhance, plain)(image).enhance(value)
    if plain in ("Posterize", "PosterizeOriginal"):
        if value < 1:  # which some versions of Pillow refuse
            return image.point([0] * (256 * len(image.getbands())))
        return image if value >= 8 else ImageOps.posterize(image, int(value))
    if plain == "Solarize":
        return ImageOps.solarize(image, int(value))
    if plain == "SolarizeAdd":
        table = [min(255, level + int(value)) if level < 128 else level for level in range(256)]
        return image.point(table * len(image.getbands()))
    if plain.startswith("GaussianBlur"):
        return image.filter(ImageFilter.GaussianBlur(radius=value))
    return getattr(ImageOps, plain.lower())(image)  # autocontrast, equalize, invert
