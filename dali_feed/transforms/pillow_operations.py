"""Pillow's operations of timm's AutoAugment and its kind: by name, and a strength of 0..10 that means timm's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from dali_feed.transforms.rules import check_p, refuse

__all__ = ["PARTS", "PLAIN", "Look", "Part", "operated", "strength"]

PARTS = frozenset(
    (
        *("AutoContrast", "Equalize", "Invert", "Rotate", "Posterize", "PosterizeIncreasing", "PosterizeOriginal"),
        *(
            "Solarize",
            "SolarizeIncreasing",
            "SolarizeAdd",
            "Color",
            "ColorIncreasing",
            "Contrast",
            "ContrastIncreasing",
        ),
        *("Brightness", "BrightnessIncreasing", "Sharpness", "SharpnessIncreasing", "ShearX", "ShearY"),
        *(
            "TranslateX",
            "TranslateY",
            "TranslateXRel",
            "TranslateYRel",
            "Desaturate",
            "GaussianBlur",
            "GaussianBlurRand",
        ),
    )
)


@dataclass(frozen=True, slots=True)
class Part:
    """An operation with probability `p` and strength `magnitude`, cut off to 0..`most`.

    spread  standard deviation of a normal distribution about it; infinite: uniform from 0 to it; 0: always it
    """

    name: str
    p: float = 1.0
    magnitude: float = 10.0
    spread: float = 0.0
    most: float = 10.0

    def __post_init__(self) -> None:
        check_p(self.name, self.p)
        if self.name not in PARTS:
            refuse("AutoAugment", "must name operations of timm", self.name)

    @classmethod
    def of(cls, one: Any) -> Self:
        """From timm's operation."""
        most = float(one.magnitude_max or 10.0)
        return cls(str(one.name), float(one.prob), float(one.magnitude), max(float(one.magnitude_std), 0.0), most)


@dataclass(frozen=True, slots=True)
class Look:
    """What the operations share: the colour outside an image, Pillow's filters (a random one is used), how far to move.

    shift: pixels, for TranslateX and Y; share: part of the edge, for TranslateXRel and YRel; both at strength 10.
    """

    fill: tuple[int, int, int] = (128, 128, 128)
    filters: tuple[int, ...] = (2, 3)
    shift: float = 250.0
    share: float = 0.45

    @classmethod
    def of(cls, parts: list[Any]) -> Self:
        """From the first of timm's operations; all others have the same settings."""
        if not parts:
            return cls()
        found, known = parts[0].kwargs, parts[0].hparams
        fill, filters = tuple(int(level) for level in found["fillcolor"]), found["resample"]
        several = tuple(map(int, filters)) if isinstance(filters, tuple | list) else (int(filters),)
        shift, share = float(known.get("translate_const", 250)), float(known.get("translate_pct", 0.45))
        return cls((fill[0], fill[1], fill[2]), several, shift, share)


PLAIN = Look()


def strength(name: str, strong: float, sign: float, more: float, look: Look) -> float:
    """The operation's argument for a strength of 0..10 and a sign; `more`: a further random number, where needed."""
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


def operated(image: Any, name: str, value: float, look: Look, filtered: int) -> Any:
    """Pillow's image after the operation."""
    if name in _MOVED:
        return _MOVED[name](image, value, (look.fill if image.mode == "RGB" else look.fill[0], filtered))
    return _recoloured(image, name, value)


def _recoloured(image: Any, name: str, value: float) -> Any:
    from PIL import ImageEnhance, ImageFilter, ImageOps

    plain = "Color" if name == "Desaturate" else name.removesuffix("Increasing")
    if plain in _ENHANCED:
        return getattr(ImageEnhance, plain)(image).enhance(value)
    if plain in ("Posterize", "PosterizeOriginal"):
        if value < 1:  # some versions of Pillow refuse the other type
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
