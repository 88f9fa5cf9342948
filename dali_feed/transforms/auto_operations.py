"""AutoAugment and its kind: operations that each image chooses from a table; torchvision's names and kernels.

A choice is an operation, the number of its strength and a sign. A strength's value is computed by torch, as
torchvision does, only when pixels are changed; so choices are the same on every machine.

`fill` None is torchvision's: pixels from outside the image are black, and are mixed into its edge once, where a number
is mixed into it twice.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dali_feed.transforms.base import Arrays, Effect, Ints, OnImage
from dali_feed.transforms.keys import Key
from dali_feed.transforms.rules import Fill, check_uint8, refuse

__all__ = ["MOVES", "OPERATIONS", "PLAIN", "SIGNED", "Auto", "Space", "Turning", "check_bins", "strengths"]

MOVES = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
SIGNED = (*MOVES, "Brightness", "Color", "Contrast", "Sharpness")
LEVELS = ("Posterize", "Solarize", "AutoContrast", "Equalize")
PLAIN = ("AutoContrast", "Equalize", "Invert", "Identity")  # all parts have one strength
OPERATIONS = (*SIGNED, "Posterize", "Solarize", *PLAIN)
_ADJUSTED = {"Brightness": "brightness", "Color": "saturation", "Contrast": "contrast", "Sharpness": "sharpness"}

Turning = Literal["nearest", "bilinear"]


@dataclass(frozen=True, slots=True)
class Space:
    """Operations to choose from, and how strong the strongest of each is.

    shift   pixels, of an image's width or height
    shear   pixels per pixel
    turn    degrees
    colour  how far a factor is from 1
    bits    how many the weakest Posterize leaves, and by how many fewer the strongest does
    """

    names: tuple[str, ...]
    shift: Callable[[int], float]
    shear: float = 0.3
    turn: float = 30.0
    colour: float = 0.9
    bits: tuple[int, int] = (8, 4)


class Auto(Effect):
    """Operations of `space`, each with one of `grades` strengths, as rows (int32: chains, steps, 3) name them.

    A step's three numbers are the operation (-1: none), the strength and the sign.
    """

    __slots__ = ()
    interpolation: Turning
    fill: Fill | None

    def follow_steps(self, n: int) -> list[OnImage]:
        self.no_follower()

    @property
    def space(self) -> Space:
        """The operations that it chooses from."""
        raise NotImplementedError

    @property
    def grades(self) -> int:
        """How many strengths there are."""
        raise NotImplementedError

    def check(self, dtype: str) -> None:
        check_uint8(type(self).__name__, dtype)

    def chosen(self, drawn: NDArray[np.float32], strength: int | None, bins: int = 0) -> Ints:
        """An operation, one of `bins` strengths or the given one, and a sign, of uniforms (4, n): (n, 3)."""
        u, names = drawn.astype(np.float64), self.space.names
        which = (u[0] * len(names)).astype(np.int64)
        strong = (u[1] * (bins or self.grades)).astype(np.int64) if strength is None else np.full_like(which, strength)
        return np.stack([which, strong, self.signs(which, u[2])], axis=1)

    def signs(self, which: Ints, u: NDArray[np.float64]) -> Ints:
        """Half of them -1 where the operation has a sign."""
        signed = np.isin(self.space.names, SIGNED)[which]
        return np.where(signed & (u < 0.5), -1, 1)

    def on_image(self, key: Key) -> OnImage:
        """One chain of operations."""

        def apply(image: Any, arrays: Arrays, slot: int) -> Any:
            return self.run(image, arrays[key][slot].tolist()[0])

        return apply

    def run(self, image: Any, chain: list[list[int]]) -> Any:
        """The operations of a chain, one after the other, by torchvision's own kernels."""
        names = self.space.names
        for which, strong, sign in chain:
            if which >= 0:
                name = names[which]
                image = self._operated(image, name, self._strength(image, name, strong) * sign)
        return image

    def _strength(self, image: Any, name: str, strong: int) -> float:
        if name in PLAIN:
            return 0.0
        edge = {"TranslateX": -1, "TranslateY": -2}.get(name)
        return strengths(name, self.space, self.grades, image.shape[edge] if edge else 0)[strong]

    def _operated(self, image: Any, name: str, strength: float) -> Any:
        from torchvision.transforms.v2 import functional

        if name == "Identity":
            return image
        if name in MOVES:
            return self._moved(image, name, strength)
        if name in _ADJUSTED:
            return getattr(functional, f"adjust_{_ADJUSTED[name]}_image")(image, 1.0 + strength)
        if name == "Posterize":
            return functional.posterize_image(image, int(strength))
        if name == "Solarize":
            return functional.solarize_image(image, 255 * strength)
        return getattr(functional, f"{name.lower()}_image")(image)

    def _moved(self, image: Any, name: str, strength: float) -> Any:
        from torchvision.transforms.v2 import InterpolationMode, functional

        mode = InterpolationMode(self.interpolation)
        fill = list(self.fill) if isinstance(self.fill, tuple) else self.fill
        if name == "Rotate":
            return functional.rotate_image(image, strength, interpolation=mode, fill=fill)
        shift, shear = [0.0, 0.0], [0.0, 0.0]
        axis = 0 if name.endswith("X") else 1
        if name.startswith("Shear"):
            shear[axis] = math.degrees(math.atan(strength))
        else:
            shift[axis] = int(strength)
        center = [0, 0] if name.startswith("Shear") else None
        return functional.affine_image(image, 0.0, shift, 1.0, shear, interpolation=mode, fill=fill, center=center)


@functools.lru_cache(4096)
def strengths(name: str, space: Space, bins: int, edge: int) -> tuple[float, ...]:
    """The values of an operation's strengths on an image of that `edge`, by torchvision's own calls of torch."""
    import torch

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


def check_bins(op: str, bins: int) -> None:
    """Check that the number of strengths is allowed."""
    if not isinstance(bins, int) or bins < 2:
        refuse(op, "num_magnitude_bins must be an int of at least 2", bins)
