"""GaussianBlur: `kernel` (width, height) pixels wide, with a random sigma; the border is mirrored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dali_feed.transforms.op import Draws, Effect, Graph, Ints, fn, torch, v2
from dali_feed.transforms.settings import Range, Rule, at_least_zero, refuse, span

_SHARP = 0.01  # the sigma of a kernel whose neighbours weigh exp(-5000), which is 0


def _odd(op: str, name: str, value: tuple[int, int]) -> None:
    if len(value) != 2 or not all(isinstance(n, int) and n > 0 and n % 2 for n in value):
        refuse(op, f"{name} must be two odd positive ints (width, height)", value)


@dataclass(frozen=True, slots=True)
class GaussianBlur(Effect):
    """Blurred by `kernel` (width, height) pixels with a random `sigma`; the border is mirrored."""

    kernel: tuple[int, int]
    sigma: Range = (0.1, 2.0)

    rules: ClassVar[Mapping[str, Rule]] = {"kernel": _odd, "sigma": span(1e-6, float("inf"))}
    theirs: ClassVar[Mapping[str, str]] = {"kernel": "kernel_size"}

    def unfit(self, h: Ints, w: Ints) -> list[tuple[int, str]]:
        """The border is mirrored without its edge, so half a kernel must fit into the image and leave a pixel."""
        wide, high = self.kernel
        need = f"GaussianBlur: a kernel of {wide}x{high} needs an image of {wide // 2 + 1}x{high // 2 + 1} at least"
        short = (w <= wide // 2) | (h <= high // 2)
        return [(k, f"{need}; found {w[k]}x{h[k]}") for k in np.flatnonzero(short).tolist()]

    def draw(self, d: Draws) -> Mapping[str, NDArray[Any]]:
        """Standard deviations of the kernels, one for both axes."""
        low, high = self.sigma
        return {"effect": (low + (high - low) * d.u()[0]).astype(np.float32)}

    def image(self, image: Any, sigma: Any) -> Any:
        return v2.functional.gaussian_blur_image(image, list(self.kernel), [sigma.item()] * 2)

    def dali(self, graph: Graph) -> None:
        """The kernel is a single pixel for an image that is left as it is."""

        def build(image: Any, sigma: Any) -> Any:
            return fn.gaussian_blur(image, sigma=sigma, window_size=self.kernel[::-1])

        graph.step("sigma", "FLOAT", 0, build, lambda fold, sigma: np.where(fold.on, sigma, np.float32(_SHARP)))


# GaussianNoise: a random number for every value; torchvision's arithmetic, on random numbers of the sample's own.
#
# They are drawn on the CPU wherever the image is, so that they are the same on every device.


@dataclass(frozen=True, slots=True)
class GaussianNoise(Effect):
    """Normal noise of `mean` and `sigma`, in units of 0..1 whatever the pixels are in; `clip` keeps them there."""

    mean: float = 0.0
    sigma: float = 0.1
    clip: bool = True

    names: ClassVar[tuple[str, ...]] = ("effect", "effect_seed")
    rules: ClassVar[Mapping[str, Rule]] = {"sigma": at_least_zero}

    def draw(self, d: Draws) -> Mapping[str, NDArray[Any]]:
        return {**Effect.draw(self, d), "effect_seed": seeds_of(d)}

    def image(self, image: Any, on: Any, seed: Any) -> Any:
        """Add noise of a generator of that seed (int64)."""
        drawn = normal(tuple(image.shape), generator_of(seed), image)
        if image.is_floating_point():
            out = image + (self.mean + drawn.to(image.dtype) * self.sigma)
            return out.clamp(0, 1) if self.clip else out
        levels = (self.mean * 255 + drawn * (self.sigma * 255)).to(torch.int16)  # whole ones, as torchvision adds them
        out = image + levels
        return (out.clamp(0, 255) if self.clip else out).to(torch.uint8)


def seeds_of(d: Draws) -> NDArray[np.int64]:
    """The seed of each sample's noise, 48 bits: the last two numbers of the op's first stream."""
    high, low = (d.u()[2:].astype(np.float64) * 2**24).astype(np.int64)
    seeds: NDArray[np.int64] = high << 24 | low
    return seeds


def generator_of(seed: Any) -> Any:
    """Torch's generator with that seed."""
    return torch.Generator().manual_seed(int(seed))


def normal(shape: tuple[int, ...], generator: Any, image: Any) -> Any:
    """Normal numbers, float32, on the image's device."""
    return torch.randn(shape, generator=generator).to(image.device)
