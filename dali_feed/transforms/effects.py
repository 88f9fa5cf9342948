"""Gray, in three channels of the same or in one. Names and meanings are torchvision's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dali_feed.transforms import base
from dali_feed.transforms.rules import check_p

__all__ = ["Effect", "Grayscale", "RandomGrayscale"]


@dataclass(frozen=True, slots=True)
class Grayscale:
    """Gray, in three channels of the same or in one."""

    channels: Literal[1, 3] = 3


@dataclass(frozen=True, slots=True)
class RandomGrayscale:
    """Gray, as Grayscale."""

    p: float = 0.1

    def __post_init__(self) -> None:
        check_p("RandomGrayscale", self.p)


Effect = base.Effect | Grayscale | RandomGrayscale
