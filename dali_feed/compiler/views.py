"""Views: several transforms of one decoded image, such as the two of SimCLR or the crops of DINO.

The law: a view's random numbers are its own. Each but the first has a seed made from the run's; so the first gives
what its transform gives alone, and no view changes the random numbers of another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from dali_feed.compiler.program import Ints, Parameters, View
from dali_feed.draws.philox import seed_within
from dali_feed.draws.streams import VIEWS
from dali_feed.errors import TransformError
from dali_feed.transforms.keys import viewed
from dali_feed.transforms.recipe import Recipe
from dali_feed.transforms.wrappers import taken_apart

__all__ = ["MAX_VIEWS", "Views", "ViewsProgram", "as_views"]

MAX_VIEWS = 64


class Views:
    """Transforms of which each makes a view of the image.

    transforms  1 to 64 transforms; each is what a loader takes for one

    Raises TransformError where there are none, or more than 64.
    """

    def __init__(self, transforms: Iterable[Callable[[Any], Any]]) -> None:
        self.transforms = tuple(transforms)
        if not 1 <= len(self.transforms) <= MAX_VIEWS:
            msg = f"transform: several views take 1 to {MAX_VIEWS} transforms; found {len(self.transforms)}"
            raise TransformError(msg)

    def __repr__(self) -> str:
        return f"Views({list(self.transforms)!r})"


def as_views(transform: object) -> Views | None:
    """A list of transforms, or an object whose transforms give a list, as views. None for any other transform."""
    if isinstance(transform, list | tuple):
        return Views(transform)
    if isinstance(transform, Views):
        return transform
    apart = None if transform is None or isinstance(transform, Recipe) else taken_apart(transform)
    return Views(apart) if isinstance(apart, list) else None


def _seed_of(view: int, seed: int) -> int:
    return seed_within(seed, VIEWS[0], view) if view else seed


_P = TypeVar("_P", bound=View)


@dataclass(slots=True)
class ViewsProgram(Generic[_P]):
    """Programs over one decoded image; all of one engine and one layout."""

    views: tuple[_P, ...]
    fixed: bool = True

    @property
    def recipe(self) -> Recipe:
        """The recipe of the first view."""
        return self.views[0].recipe

    @property
    def size(self) -> tuple[int, int] | None:
        """(height, width) of the first view, or None where one of them depends on the input's."""
        return None if any(view.size is None for view in self.views) else self.views[0].size

    def parameters(self, sizes: NDArray[Any], ids: Ints, seed: int, epoch: int) -> Parameters:
        """The parameters of all views; sizes: int64 (n, 2 * views)."""
        found = [view.parameters(sizes, ids, _seed_of(v, seed), epoch) for v, view in enumerate(self.views)]
        arrays = {viewed(name, v): rows for v, each in enumerate(found) for name, rows in each.arrays.items()}
        return Parameters(arrays, np.concatenate([each.sizes for each in found], axis=1))
