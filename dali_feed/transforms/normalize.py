"""Normalize: (value - mean) / std per channel."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from dali_feed.errors import TransformError
from dali_feed.transforms.base import Arrays, OnImage, OnPlanes, Op
from dali_feed.transforms.fields import fail, numbers
from dali_feed.transforms.graph import Graph
from dali_feed.transforms.keys import Key
from dali_feed.transforms.rules import refuse
from dali_feed.transforms.units import Place

__all__ = ["Normalize"]


@dataclass(frozen=True, slots=True)
class Normalize(Op):
    """(value - mean) / std per channel, in the units that pixels have at this point."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    normalized: ClassVar[bool] = True
    normalizes: ClassVar[bool] = True
    of_finish: ClassVar[bool] = True
    by_level: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if len(self.mean) not in (1, 3) or len(self.std) not in (1, 3):
            refuse("Normalize", "mean and std need one value per channel (3)", (self.mean, self.std))
        if not all(s > 0 for s in self.std):
            refuse("Normalize", "std must be positive", self.std)

    @classmethod
    def of(cls, transform: Any) -> Normalize:
        mean, std = numbers(transform.mean), numbers(transform.std)
        if any(math.isnan(x) for x in mean + std):
            raise fail(transform, "mean and std must be numbers", (mean, std))
        return cls(mean, std)

    def check(self, dtype: str) -> None:
        if dtype == "uint8":
            cure = "Put ToTensor or ToDtype(torch.float32, scale=True) first"
            msg = f"Normalize: needs float pixels; found uint8. {cure}"
            raise TransformError(msg)

    def place_behind(self, place: Place) -> Place:
        mean, std = np.broadcast_to(self.mean, 3), np.broadcast_to(self.std, 3)
        return replace(place, scale=place.scale / std, bias=(place.bias - mean) / std)

    def host_steps(self, n: int, *, window: bool = False) -> list[OnImage]:
        mean, std = list(self.mean), list(self.std)

        def apply(image: Any, _: Arrays, __: int) -> Any:
            from torchvision.transforms.v2 import functional

            return functional.normalize_image(image, mean, std)

        return [apply]

    def on_planes(self, key: Key) -> OnPlanes | None:
        made: dict[tuple[Any, ...], tuple[Any, Any]] = {}  # by how they meet the image; many threads may fill it

        def apply(planes: Any, _: Arrays, __: int) -> None:
            channels, height, width = planes.shape
            rows, wide = planes, 0  # a number per plane
            if planes.stride(0) == 1:  # channels last: one row of pixels
                rows, wide = planes.permute(1, 2, 0).view(height, channels * width), width
            form = wide, rows.dtype, rows.device
            both = made.get(form)
            if both is None:
                both = made[form] = self._shaped(self.mean, *form), self._shaped(self.std, *form)
            rows.sub_(both[0]).div_(both[1])

        return apply

    @staticmethod
    def _shaped(values: tuple[float, ...], wide: int, dtype: Any, device: Any) -> Any:
        import torch

        three = torch.tensor(values, dtype=dtype, device=device).expand(3)
        return three.repeat(wide) if wide else three.view(3, 1, 1)

    def in_graph(self, graph: Graph, first: int) -> None:
        graph.place = self.place_behind(graph.place)
