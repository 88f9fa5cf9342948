"""RandomEqualize: each channel's histogram made flat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from dali_feed.transforms.base import Effect
from dali_feed.transforms.rules import check_p

__all__ = ["RandomEqualize"]


@dataclass(frozen=True, slots=True)
class RandomEqualize(Effect):
    """Each channel's histogram made flat."""

    p: float = 0.5

    def __post_init__(self) -> None:
        check_p("RandomEqualize", self.p)

    @classmethod
    def of(cls, transform: Any) -> Self:
        return cls(float(transform.p))

    def image(self, image: Any, row: Any) -> Any:
        from torchvision.transforms.v2 import functional

        return functional.equalize_image(image) if row else image
