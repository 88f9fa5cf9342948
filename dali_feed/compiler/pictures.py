"""The program of a record's images: one image with what follows it, or several, each with its own transform.

The law: an image column draws with a seed of its own, made from the run's and the name of the column whose random
numbers it takes. So no other column, and no order of columns, changes its draws; the first one has the run's seed, and
is what it is alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.compiler.following import Followed
from dali_feed.compiler.program import Ints, Parameters, View
from dali_feed.draws.philox import seed_within
from dali_feed.draws.streams import COLUMNS
from dali_feed.transforms.keys import Key, as_column, as_followed
from dali_feed.transforms.recipe import Recipe

__all__ = ["Picture", "PicturesProgram", "seed_of_column"]


@dataclass(frozen=True, slots=True)
class Picture:
    """An image column's part of a program.

    view      the program of its images
    followed  what moves the columns that follow it; None where none does
    draws     the column whose random numbers it takes; empty: the first, whose seed is the run's
    """

    view: View
    followed: Followed | None = None
    draws: str = ""

    def parameters(
        self, number: int, sizes: NDArray[Any], ids: Ints, seed: int, epoch: int
    ) -> tuple[dict[Key, NDArray[Any]], Ints]:
        """The arrays of image column `number`, of its images of `sizes`, among those of all; and the sizes it gives."""
        seed = seed_of_column(self.draws, seed)
        own = self.view.parameters(sizes, ids, seed, epoch)
        arrays = as_column(own.arrays, number)
        if self.followed is not None:
            arrays |= as_followed(as_column(self.followed.parameters(sizes, ids, seed, epoch), number))
        return arrays, own.sizes


def seed_of_column(name: str, seed: int) -> int:
    """The seed that the column of that name draws with: of 64 bits of its name's BLAKE2b. Without a name the run's."""
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return seed_within(seed, COLUMNS[0], int.from_bytes(digest, "little")) if name else seed


@dataclass(slots=True)
class PicturesProgram:
    """The images of a record, and what follows them. As a `Program`, sizes are those of all columns, side by side."""

    pictures: Sequence[Picture]
    fixed: bool = True

    @property
    def views(self) -> Sequence[View]:
        """The program of each image column."""
        return tuple(picture.view for picture in self.pictures)

    @property
    def recipe(self) -> Recipe:
        """The recipe of the first column."""
        return self.pictures[0].view.recipe

    @property
    def size(self) -> tuple[int, int] | None:
        """(height, width) of the first column, or None where one of them depends on the input's."""
        return None if any(view.size is None for view in self.views) else self.views[0].size

    def parameters(self, sizes: NDArray[Any], ids: Ints, seed: int, epoch: int) -> Parameters:
        """Of all; `sizes` (n, 2 * columns): height and width of each; where images are turned 3, see `Program`."""
        each = sizes.shape[1] // len(self.pictures)
        arrays: dict[Key, NDArray[Any]] = {}
        made: list[Ints] = []
        for number, picture in enumerate(self.pictures):
            its, given = picture.parameters(number, sizes[:, each * number : each * (number + 1)], ids, seed, epoch)
            arrays |= its
            made.append(given)
        return Parameters(arrays, made[0] if len(made) == 1 else np.concatenate(made, axis=1))
