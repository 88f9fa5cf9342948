"""RandomRotation: by a random angle about the middle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dali_feed.draws.streams import STREAMS_PER_OP
from dali_feed.transforms import follow
from dali_feed.transforms.base import Arrays, OnImage, Op
from dali_feed.transforms.edges import one_level
from dali_feed.transforms.fields import fail, fill_of, mask_fill_of, turning
from dali_feed.transforms.graph import INTERPOLATION, Given, Graph
from dali_feed.transforms.keys import numbered
from dali_feed.transforms.rules import Fill, Range, as_list, check_range
from dali_feed.transforms.run import Run, SizedDraws

__all__ = ["Rotate", "Rotation"]


@dataclass(frozen=True, slots=True)
class Rotation(Op):
    """Counter-clockwise about the centre by a random angle in degrees; the canvas keeps its size."""

    degrees: Range
    interpolation: Literal["nearest", "bilinear"] = "nearest"
    fill: Fill = 0.0
    masks: Fill | None = None  # what fills those that follow; None: as the image

    streams: ClassVar[int] = 1
    in_nest: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_range("RandomRotation", "degrees", self.degrees, -float("inf"), float("inf"))

    @classmethod
    def of(cls, transform: Any) -> Rotation:
        t = transform
        if t.expand:
            raise fail(t, "expand must be False: all images of a batch have one size", t.expand)
        if t.center is not None:
            raise fail(t, "center must be None, the middle of the image", t.center)
        low, high = t.degrees
        return cls((float(low), float(high)), turning(t), fill_of(t), mask_fill_of(t))

    @property
    def title(self) -> str:
        return "RandomRotation"

    def host_rows(self, run: SizedDraws, n: int) -> None:
        low, high = self.degrees
        run.arrays[numbered("angle", n)] = (low + (high - low) * run.draw(n * STREAMS_PER_OP)[0]).astype(np.float32)

    def host_steps(self, n: int, *, window: bool = False) -> list[OnImage]:
        key, fill = numbered("angle", n), as_list(self.fill)

        def apply(image: Any, arrays: Arrays, slot: int) -> Any:
            from torchvision.transforms.v2 import InterpolationMode, functional

            angle, mode = float(arrays[key][slot]), InterpolationMode(self.interpolation)
            return functional.rotate_image(image, angle, interpolation=mode, fill=fill)

        return [apply]

    def follow_steps(self, n: int) -> list[OnImage]:
        key, fill = numbered("angle", n), follow.fill_behind(self.fill, self.masks)

        def apply(given: Any, arrays: Arrays, slot: int) -> Any:
            from torchvision.transforms.v2 import functional

            return functional.rotate(given, float(arrays[key][slot]), fill=fill)

        return [apply]

    def in_graph(self, graph: Graph, first: int) -> None:
        low, high = self.degrees

        def angles(run: Run) -> NDArray[np.float32]:
            angle = low + (high - low) * run.draw(first)[0]
            turned = np.where(run.mirror["x"] ^ run.mirror["y"], -angle, angle)
            return np.where(run.on, turned, 0).astype(np.float32)

        graph.step(Rotate(graph.k + 1, self.interpolation, one_level(self, self.fill, graph.place)), angles)


@dataclass(frozen=True, slots=True)
class Rotate:
    """By angle{k} (float32, degrees, counter-clockwise) about the centre."""

    k: int
    interpolation: Literal["nearest", "bilinear"]
    fill: float

    name: ClassVar[str] = "angle"

    def on(self, image: Any, given: Given, *, gpu: bool) -> Any:
        """Turn it; the canvas keeps its size."""
        del gpu
        from nvidia.dali import fn, types

        return fn.rotate(
            image,
            angle=given(numbered("angle", self.k), "FLOAT", 0),
            interp_type=getattr(types, INTERPOLATION[self.interpolation]),
            keep_size=True,
            fill_value=self.fill,
        )
