"""Grayscale and RandomGrayscale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dali_feed.transforms.base import Effect, InGraph
from dali_feed.transforms.colours import Colour, gray_steps, only
from dali_feed.transforms.fields import fail
from dali_feed.transforms.rules import check_p
from dali_feed.transforms.run import Run
from dali_feed.transforms.units import Place

__all__ = ["Grayscale", "RandomGrayscale"]


def _in_graph(op: Effect, place: Place, k: int, first: int) -> InGraph:
    def steps(run: Run) -> NDArray[np.float32]:
        return only(run.on & op.on(run, first), gray_steps(len(run.ids), cut=place.dtype == "uint8"))

    return Colour(k, 1, contrast=False, hue=False), steps


@dataclass(frozen=True, slots=True)
class Grayscale(Effect):
    """Gray, in three channels of the same or in one."""

    channels: Literal[1, 3] = 3

    streams: ClassVar[int] = 0

    @classmethod
    def of(cls, transform: Any) -> Grayscale:
        if transform.num_output_channels != 3:
            rule = (
                "num_output_channels must be 3, or 1 in a DataLoader and outside of RandomApply and similar transforms"
            )
            raise fail(transform, rule, transform.num_output_channels)
        return cls()

    def channels_behind(self) -> int | None:
        return self.channels

    def image(self, image: Any, row: Any) -> Any:
        from torchvision.transforms.v2 import functional

        return functional.rgb_to_grayscale_image(image, self.channels) if row else image

    def graph(self, place: Place, k: int, first: int) -> InGraph:
        return _in_graph(self, place, k, first)


@dataclass(frozen=True, slots=True)
class RandomGrayscale(Effect):
    """Gray, as Grayscale."""

    p: float = 0.1

    def __post_init__(self) -> None:
        check_p("RandomGrayscale", self.p)

    @classmethod
    def of(cls, transform: Any) -> RandomGrayscale:
        return cls(float(transform.p))

    def image(self, image: Any, row: Any) -> Any:
        from torchvision.transforms.v2 import functional

        return functional.rgb_to_grayscale_image(image, 3) if row else image

    def graph(self, place: Place, k: int, first: int) -> InGraph:
        return _in_graph(self, place, k, first)
