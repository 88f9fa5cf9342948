"""GaussianNoise: a random number for every value; torchvision's arithmetic, on random numbers of the sample's own.

They are drawn on the CPU wherever the image is, so that they are the same on every device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dali_feed.transforms.base import Arrays, Effect, OnImage
from dali_feed.transforms.batch_draws import BatchDraws
from dali_feed.transforms.keys import Key, further
from dali_feed.transforms.rules import refuse

__all__ = ["GaussianNoise", "generator_of", "normal", "seeds_of"]


@dataclass(frozen=True, slots=True)
class GaussianNoise(Effect):
    """Normal noise of `mean` and `sigma`, in units of 0..1 whatever the pixels are in; `clip` keeps them there."""

    mean: float = 0.0
    sigma: float = 0.1
    clip: bool = True

    def __post_init__(self) -> None:
        if not 0.0 <= self.sigma < float("inf"):
            refuse("GaussianNoise", "sigma must be at least 0", self.sigma)

    @classmethod
    def of(cls, transform: Any) -> Self:
        return cls(float(transform.mean), float(transform.sigma), bool(transform.clip))

    def more(self, draws: BatchDraws, first: int) -> dict[str, NDArray[Any]]:
        return {"_seed": seeds_of(draws, first)}

    def on_image(self, key: Key) -> OnImage:
        """Add noise of a generator whose seed is row `key` + "_seed" (int64)."""
        import torch

        seeds, mean, sigma, clip = further(key, "_seed"), self.mean, self.sigma, self.clip

        def apply(image: Any, arrays: Arrays, slot: int) -> Any:
            drawn = normal(tuple(image.shape), generator_of(arrays[seeds][slot]), image)
            if image.is_floating_point():
                out = image + (mean + drawn.to(image.dtype) * sigma)
                return out.clamp(0, 1) if clip else out
            out = image + (mean * 255 + drawn * (sigma * 255)).to(torch.int16)  # whole levels, as torchvision adds them
            return (out.clamp(0, 255) if clip else out).to(torch.uint8)

        return apply


def seeds_of(draws: BatchDraws, first: int) -> NDArray[np.int64]:
    """The seed of each sample's noise, 48 bits: the last two numbers of the op's first stream."""
    high, low = (draws.draw(first)[2:].astype(np.float64) * 2**24).astype(np.int64)
    seeds: NDArray[np.int64] = high << 24 | low
    return seeds


def generator_of(seed: Any) -> Any:
    """Torch's generator with that seed."""
    import torch

    return torch.Generator().manual_seed(int(seed))


def normal(shape: tuple[int, ...], generator: Any, image: Any) -> Any:
    """Normal numbers, float32, on the image's device."""
    import torch

    return torch.randn(shape, generator=generator).to(image.device)
