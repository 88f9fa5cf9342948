"""RandomAutocontrast: each channel stretched from the darkest to the lightest value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from dali_feed.transforms.base import Effect
from dali_feed.transforms.rules import check_p

__all__ = ["RandomAutocontrast"]


@dataclass(frozen=True, slots=True)
class RandomAutocontrast(Effect):
    """Each channel stretched from the darkest to the lightest value."""

    p: float = 0.5

    def __post_init__(self) -> None:
        check_p("RandomAutocontrast", self.p)

    @classmethod
    def of(cls, transform: Any) -> Self:
        return cls(float(transform.p))

    def image(self, image: Any, row: Any) -> Any:
        from torchvision.transforms.v2 import functional

        return functional.autocontrast_image(image) if row else image
