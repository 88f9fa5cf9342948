"""GaussianBlur: `kernel` (width, height) pixels wide, with a random sigma; the border is mirrored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dali_feed.transforms.base import Apply, Effect, InGraph, Ints
from dali_feed.transforms.batch_draws import BatchDraws
from dali_feed.transforms.rules import Range, check_range, refuse
from dali_feed.transforms.units import Place

__all__ = ["GaussianBlur"]

_SHARP = 0.01  # the sigma of a kernel whose neighbours weigh exp(-5000), which is 0


@dataclass(frozen=True, slots=True)
class GaussianBlur(Effect):
    """Blurred by `kernel` (width, height) pixels with a random `sigma`; the border is mirrored."""

    kernel: tuple[int, int]
    sigma: Range = (0.1, 2.0)

    def __post_init__(self) -> None:
        if len(self.kernel) != 2 or not all(isinstance(n, int) and n > 0 and n % 2 for n in self.kernel):
            refuse("GaussianBlur", "kernel_size must be two odd positive ints (width, height)", self.kernel)
        check_range("GaussianBlur", "sigma", self.sigma, 1e-6, float("inf"))

    @classmethod
    def of(cls, transform: Any) -> Self:
        width, height = map(int, transform.kernel_size)
        low, high = transform.sigma
        return cls((width, height), (float(low), float(high)))

    def unfit(self, h: Ints, w: Ints) -> list[tuple[int, str]]:
        """The border is mirrored without its edge, so half a kernel must fit into the image and leave a pixel."""
        wide, high = self.kernel
        told = f"GaussianBlur: a kernel of {wide}x{high} needs an image of {wide // 2 + 1}x{high // 2 + 1} at least"
        short = (w <= wide // 2) | (h <= high // 2)
        return [(k, f"{told}; found {w[k]}x{h[k]}") for k in np.flatnonzero(short).tolist()]

    def rows(self, draws: BatchDraws, first: int, h: Ints, w: Ints) -> NDArray[np.float32]:
        """Standard deviations of the kernels, one for both axes."""
        low, high = self.sigma
        sigmas: NDArray[np.float32] = (low + (high - low) * draws.draw(first)[0]).astype(np.float32)
        return sigmas

    def image(self, image: Any, row: Any) -> Any:
        from torchvision.transforms.v2 import functional

        sigma = row.item()
        return functional.gaussian_blur_image(image, list(self.kernel), [sigma, sigma])

    def graph(self, place: Place, k: int, first: int) -> InGraph:
        """The kernel is a single pixel for an image that is left as it is."""

        def build(image: Any, sigma: Any) -> Any:
            from nvidia.dali import fn

            return fn.gaussian_blur(image, sigma=sigma, window_size=self.kernel[::-1])

        step = Apply(k, "sigma", "FLOAT", 0, build)
        return step, lambda run: np.where(run.on, self.rows(run, first, run.h, run.w), np.float32(_SHARP))
