"""ColorJitter: brightness, contrast, saturation and hue by random factors, in random order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dali_feed.draws.streams import STREAMS_PER_OP
from dali_feed.transforms.base import Arrays, OnImage, Op
from dali_feed.transforms.colours import Colour, adjustment, only
from dali_feed.transforms.graph import Graph
from dali_feed.transforms.keys import further, numbered
from dali_feed.transforms.rules import Range, check_range
from dali_feed.transforms.run import Run, SizedDraws

__all__ = ["ColorJitter"]

_FACTORS = ("brightness", "contrast", "saturation", "hue")
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ColorJitter(Op):
    """Brightness, contrast, saturation and hue by random factors, in random order; None leaves one out."""

    brightness: Range | None = None
    contrast: Range | None = None
    saturation: Range | None = None
    hue: Range | None = None

    in_nest: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            pair = getattr(self, name)
            if pair is not None:
                check_range("ColorJitter", name, pair, 0.0, float("inf"))
        if self.hue is not None:
            check_range("ColorJitter", "hue", self.hue, -0.5, 0.5)

    @classmethod
    def of(cls, transform: Any) -> ColorJitter:
        pairs = {name: getattr(transform, name) for name in _FACTORS}
        return cls(**{name: None if v is None else (float(v[0]), float(v[1])) for name, v in pairs.items()})

    @property
    def names(self) -> tuple[str, ...]:
        """The factors that are set, in torchvision's numbering."""
        return tuple(name for name in _FACTORS if getattr(self, name) is not None)

    def drawn(self) -> range:
        return range(2 if self.names else 0)

    def draws(self, factors: Floats, order: Floats) -> tuple[Floats, NDArray[np.int64]]:
        """Factors float32 (n, k) of the k adjustments that are set, and their order int64 (n, k).

        `factors` and `order` are uniforms, float32 (4, n) each; row k belongs to the k-th factor that is set.
        """
        ranges = [getattr(self, name) for name in self.names]
        drawn = [(low + (high - low) * factors[k]).astype(np.float32) for k, (low, high) in enumerate(ranges)]
        return np.stack(drawn, axis=1), np.argsort(order[: len(ranges)], axis=0, kind="stable").T

    def host_rows(self, run: SizedDraws, n: int) -> None:
        if self.names:
            first = n * STREAMS_PER_OP
            key = numbered("jitter", n)
            run.arrays[key], run.arrays[further(key, "_order")] = self.draws(run.draw(first), run.draw(first + 1))

    def host_steps(self, n: int, *, window: bool = False) -> list[OnImage]:
        key = numbered("jitter", n)
        turn = further(key, "_order")
        adjusts = [f"adjust_{name}_image" for name in self.names]

        def apply(image: Any, arrays: Arrays, slot: int) -> Any:
            from torchvision.transforms.v2 import functional

            factors = arrays[key][slot].tolist()
            for k in arrays[turn][slot].tolist():
                image = getattr(functional, adjusts[k])(image, factors[k])
            return image

        return [apply] if adjusts else []

    def in_graph(self, graph: Graph, first: int) -> None:
        names = self.names
        if not names:
            return

        def steps(run: Run) -> Floats:
            """The colour steps of every sample in its own order, float32 (n, steps, 14)."""
            drawn, turn = self.draws(run.draw(first), run.draw(first + 1))
            every = np.stack([adjustment(name, drawn[:, k]) for k, name in enumerate(names)], axis=1)
            return only(run.on, np.take_along_axis(every, turn[:, :, None], axis=1))

        graph.step(Colour(graph.k + 1, len(names), "contrast" in names, "hue" in names), steps)
