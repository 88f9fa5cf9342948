"""What follows the images of a recipe: the ops that move pixels, and what each sample takes into them.

The law: the numbers are those of the image's own steps, for draws belong to the sample. They are computed again, from
the same streams, so a follower is right beside any engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.compiler.outline import outline
from dali_feed.compiler.program import Ints
from dali_feed.errors import TransformError
from dali_feed.transforms.base import Arrays, OnImage, Op
from dali_feed.transforms.keys import CANVAS, Key
from dali_feed.transforms.numbering import walk
from dali_feed.transforms.recipe import Recipe
from dali_feed.transforms.run import SizedDraws

__all__ = ["Followed", "compile_following"]


@dataclass(slots=True)
class Followed:
    """The steps of tv_tensors that follow an image, in turn."""

    recipe: Recipe
    streams: list[int] = field(default_factory=list)
    steps: list[OnImage] = field(default_factory=list)
    drawing: list[tuple[int, Op]] = field(default_factory=list)  # by number, what changes sizes too

    def parameters(self, sizes: NDArray[Any], ids: Ints, seed: int, epoch: int) -> dict[Key, NDArray[Any]]:
        """What samples `ids`, whose images are of `sizes` (n, 2 or 3), see `Program`, take into the steps."""
        run = SizedDraws(self.streams, sizes, ids, seed, epoch)
        for n, op in self.drawing:
            op.host_rows(run, n)
        made = {name: np.ascontiguousarray(rows) for name, rows in run.arrays.items()}
        return made | {CANVAS: np.ascontiguousarray(sizes[:, :2], np.int32)}

    def run(self, given: Any, arrays: Arrays, slot: int) -> Any:
        """A tv_tensor, moved as the image in that slot is."""
        for step in self.steps:
            given = step(given, arrays, slot)
        return given


def compile_following(recipe: Recipe, *, boxes: bool, masks: bool = True) -> Followed:
    """Compile.

    TransformError where nothing can follow an op, where boxes and points cannot (padding that mirrors), or where masks
    cannot (a fill of three numbers, which torchvision cannot fill them with either).
    """
    known = outline(recipe)
    for _, op in walk(recipe.ops) if masks else ():
        _check_fill(op)
    own = [(n, op, op.follow_steps(n)) for n, op in enumerate(recipe.ops)]
    for _, op, moving in own if boxes else ():
        mode = getattr(op, "mode", "constant")
        if mode != "constant" and moving:
            msg = f'{op.title}: boxes and points need padding_mode="constant"; found "{mode}"'
            raise TransformError(msg)
    steps = [step for _, _, each in own for step in each]
    drawing = [(n, op) for n, op, each in own if each or op.size_behind(None) is not None]
    return Followed(recipe, known.streams, steps, drawing)


def _check_fill(op: Op) -> None:
    """Raise TransformError for three numbers where masks are filled."""
    fill = getattr(op, "fill", 0.0) if getattr(op, "masks", None) is None else getattr(op, "masks", 0.0)
    if isinstance(fill, tuple) and getattr(op, "pads", True) and op.follow_steps(0):
        cure = 'fill={tv_tensors.Mask: 0, "others": ...}'
        msg = f"{op.title}: masks must be filled with one number; found fill={fill}. Give {cure}"
        raise TransformError(msg)
