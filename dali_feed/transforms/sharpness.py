"""RandomAdjustSharpness: sharper, or blurred, by a factor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from dali_feed.transforms.base import Effect
from dali_feed.transforms.rules import check_p, refuse

__all__ = ["RandomAdjustSharpness"]


@dataclass(frozen=True, slots=True)
class RandomAdjustSharpness(Effect):
    """Sharper by `factor`: 0 blurs, 1 leaves an image as it is."""

    factor: float
    p: float = 0.5

    def __post_init__(self) -> None:
        if not 0.0 <= self.factor < float("inf"):
            refuse("RandomAdjustSharpness", "sharpness_factor must be at least 0", self.factor)
        check_p("RandomAdjustSharpness", self.p)

    @classmethod
    def of(cls, transform: Any) -> Self:
        return cls(float(transform.sharpness_factor), float(transform.p))

    def image(self, image: Any, row: Any) -> Any:
        from torchvision.transforms.v2 import functional

        return functional.adjust_sharpness_image(image, self.factor) if row else image
