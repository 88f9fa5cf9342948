"""The contract of programs: a recipe made ready for an engine, with its parameters for each sample."""

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
    """arrays: by name, a row per sample; sizes: int64 (n, 2), height and width of the output."""

    arrays: dict[Key, NDArray[Any]]
    sizes: Ints


class Program(Protocol):
    """What an engine runs.

    The law: augmentation is pure. Parameters come from (seed, epoch, sample id) and the size in the image's header,
    so they can be computed before anything is decoded, and again for any sample at any time.
    """

    fixed: bool  # whether `Parameters.sizes` are the sizes of the output (not so after a user's own graph)

    @property
    def recipe(self) -> Recipe:
        """The recipe that it was made from; of several views the first one's."""
        ...

    @property
    def size(self) -> tuple[int, int] | None:
        """(height, width) of every output image, or None where it depends on the input's."""
        ...

    @property
    def views(self) -> Sequence[View]:
        """The programs that run on one decoded image: this one alone, or several."""
        ...

    def parameters(self, sizes: NDArray[Any], ids: Ints, seed: int, epoch: int) -> Parameters:
        """The parameters for samples `ids`, whose headers say `sizes` (n, 2: height, width).

        Where images are turned, `sizes` are (n, 3): height and width once turned, and the orientation.
        """
        ...


class View(Program, Protocol):
    """A program of one image for each sample."""

    @property
    def dtype(self) -> DType | None:
        """The dtype of the output's pixels; None where a user's graph decides it."""
        ...
