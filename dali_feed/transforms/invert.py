"""RandomInvert: each value taken from the largest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from dali_feed.transforms.base import Effect, InGraph
from dali_feed.transforms.rules import check_p
from dali_feed.transforms.solarize import inverted_from
from dali_feed.transforms.units import Place

__all__ = ["RandomInvert"]


@dataclass(frozen=True, slots=True)
class RandomInvert(Effect):
    """Each value taken from the largest."""

    p: float = 0.5

    def __post_init__(self) -> None:
        check_p("RandomInvert", self.p)

    @classmethod
    def of(cls, transform: Any) -> Self:
        return cls(float(transform.p))

    def image(self, image: Any, row: Any) -> Any:
        from torchvision.transforms.v2 import functional

        return functional.invert_image(image) if row else image

    def graph(self, place: Place, k: int, first: int) -> InGraph:
        return inverted_from(self, 0, place, k, first)
