"""What a transform can add to a DALI graph: steps, and crops and flips that are folded into existing steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from dali_feed.transforms.geometry import Window
from dali_feed.transforms.keys import Key, numbered
from dali_feed.transforms.rules import Drawn, Interpolation
from dali_feed.transforms.run import Run
from dali_feed.transforms.units import Place

__all__ = ["BLACK", "INTERPOLATION", "Apply", "Given", "Graph", "GraphStep", "InGraph"]

Ints = NDArray[np.int64]
Given = Callable[[Key, str, int], Any]  # an array's node, by its name, dtype (a name of `nvidia.dali.types`) and axes

BLACK = (0.0, 0.0, 0.0)
INTERPOLATION = {  # by name: that of `nvidia.dali.types`
    "nearest": "INTERP_NN",
    "nearest-exact": "INTERP_NN",
    "bilinear": "INTERP_LINEAR",
    "bicubic": "INTERP_CUBIC",
}


class GraphStep(Protocol):
    """Step k of a DALI graph, which takes array {name}{k} and builds itself."""

    @property
    def k(self) -> int:
        """Its number."""
        ...

    @property
    def name(self) -> str:
        """The name of its array."""
        ...

    def on(self, image: Any, given: Given, *, gpu: bool) -> Any:
        """The node that it makes of the image's (uint8, height, width, 3)."""
        ...


@dataclass(frozen=True, slots=True)
class Apply:
    """Step k of a DALI graph: `build` is given the image's node, and that of array {name}{k}, `ndim` axes of `dtype`.

    `dtype` is a name of `nvidia.dali.types`.
    """

    k: int
    name: str
    dtype: str
    ndim: int
    build: Callable[[Any, Any], Any]

    def on(self, image: Any, given: Given, *, gpu: bool) -> Any:
        """Call `build`, on the CPU and on a GPU alike."""
        del gpu
        return self.build(image, given(numbered(self.name, self.k), self.dtype, self.ndim))


InGraph = tuple[GraphStep, Callable[[Run], NDArray[Any]]]  # the step, and a function that fills its array


class Graph(Protocol):
    """A DALI graph as it grows, op by op; k is the number of its last step."""

    k: int
    place: Place  # number of the next op

    def step(self, step: GraphStep, rows: Callable[[Run], NDArray[Any]]) -> None:
        """Add a step of number k + 1, with the function that fills its array."""
        ...

    def resample(
        self,
        sizes: Callable[[Run, Ints, Ints], tuple[Ints, Ints]],
        interpolation: Interpolation | Drawn,
        *,
        antialias: bool = True,
        fixed: tuple[int, int] | None = None,
        least: tuple[int, int] | None = None,
        choose: Callable[[Run], Window] | None = None,
        modes: Callable[[Run], NDArray[np.int32]] | None = None,
    ) -> None:
        """Resize the current image, or the part of it that `choose` gives, to `sizes` of its heights and widths.

        fixed   the size of all these images; least: a size that none of them is below; where known
        modes   where the interpolation is "random", its number in `batch_draws.DRAWN` for each sample
        """
        ...

    def crop(
        self,
        size: tuple[int, int],
        choose: Callable[[Run], Window],
        *,
        inside: bool,
        fill: tuple[float, float, float] = BLACK,
    ) -> None:
        """Cut out the window of `size` that `choose` gives; `inside` says that it is never outside the image."""
        ...

    def cut(self, choose: Callable[[Run], Window], fill: tuple[float, float, float] = BLACK) -> None:
        """Cut out the window that `choose` gives, of a size of its own for each image."""
        ...

    def covers(self, size: tuple[int, int]) -> bool:
        """Whether every image is at least that large at this point."""
        ...

    def flip(self, axis: Literal["x", "y"], on: Callable[[Run], NDArray[np.bool_]]) -> None:
        """Mirror the samples chosen by `on`."""
        ...

    def branch(self, on: Callable[[Run], NDArray[np.bool_]], ops: Sequence[tuple[int, Any]]) -> None:
        """Add ops, each with its number, that apply only to the samples chosen by `on`."""
        ...
