"""The program of records without an image: nothing is decoded, and nothing drawn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.compiler.program import Ints, Parameters, View
from dali_feed.transforms.recipe import Recipe

__all__ = ["NoImage"]


@dataclass(slots=True)
class NoImage:
    """As a `Program` is asked: no view, no size that images must share."""

    recipe: Recipe = field(default_factory=Recipe)
    views: tuple[View, ...] = ()
    size: tuple[int, int] | None = None
    fixed: bool = False

    def parameters(self, sizes: NDArray[Any], ids: Ints, seed: int, epoch: int) -> Parameters:
        """None; sizes: int64 (n, 2) of 0."""
        return Parameters({}, np.zeros((len(ids), 2), np.int64))
