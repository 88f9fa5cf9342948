"""RandomPosterize: the `bits` highest bits of each value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from dali_feed.transforms.base import Apply, Effect, InGraph
from dali_feed.transforms.rules import check_p, refuse
from dali_feed.transforms.units import Place

__all__ = ["RandomPosterize"]


@dataclass(frozen=True, slots=True)
class RandomPosterize(Effect):
    """The `bits` highest bits of each value."""

    bits: int
    p: float = 0.5

    def __post_init__(self) -> None:
        if not isinstance(self.bits, int) or not 0 <= self.bits <= 8:
            refuse("RandomPosterize", "bits must be an int in 0..8", self.bits)
        check_p("RandomPosterize", self.p)

    @classmethod
    def of(cls, transform: Any) -> Self:
        return cls(transform.bits, float(transform.p))

    def image(self, image: Any, row: Any) -> Any:
        from torchvision.transforms.v2 import functional

        return functional.posterize_image(image, self.bits) if row else image

    def graph(self, place: Place, k: int, first: int) -> InGraph:
        """All bits stay for an image that is left as it is."""
        if place.dtype != "uint8":
            self.refuse("needs uint8 pixels", place.dtype)
        mask = 256 - (256 >> self.bits)
        step = Apply(k, "bits", "UINT8", 0, lambda image, bits: image & bits)
        return step, lambda run: np.where(run.on & self.on(run, first), mask, 255).astype(np.uint8)
