"""What every program is: a recipe made ready for an engine, and the numbers that each sample takes into it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dali_feed.transforms.keys import Key
from dali_feed.transforms.recipe import Recipe
from dali_feed.transforms.rules import DType

__all__ = ["Ints", "Parameters", "Program", "View"]

Ints = NDArray[np.int64]


@dataclass(slots=True)
class Parameters:
    """arrays: per name a row per sample; sizes: int64 (n, 2), height and width that come out."""

    arrays: dict[Key, NDArray[Any]]
    sizes: Ints


class Program(Protocol):
    """What an engine runs.

    The law: augmentation is pure. Parameters come from (seed, epoch, sample id) and the size in the image's header,
    so they can be computed before anything is decoded, and again for any sample at any time.
    """

    fixed: bool  # whether `Parameters.sizes` says what comes out (not so behind a user's own graph)

    @property
    def recipe(self) -> Recipe:
        """What it was made of; of several views the first one's."""
        ...

    @property
    def size(self) -> tuple[int, int] | None:
        """(height, width) of every image that comes out, or None where it follows the input's."""
        ...

    @property
    def views(self) -> Sequence[View]:
        """What is made of one decoded image: itself, or several."""
        ...

    def parameters(self, sizes: NDArray[Any], ids: Ints, seed: int, epoch: int) -> Parameters:
        """What samples `ids`, whose headers say `sizes` (n, 2: height, width), take into it."""
        ...


class View(Program, Protocol):
    """A program of one image for each sample."""

    @property
    def dtype(self) -> DType | None:
        """Of the pixels that come out; None where a user's graph says it."""
        ...
