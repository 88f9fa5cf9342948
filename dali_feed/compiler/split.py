"""A recipe whose first ops are run by DALI, and the others by torch after DALI's graph ("behind the graph").

The law: the cut is where DALI first has no operator, or in front of the floats before it; by there all images have one
size and are whole levels. The ops after it run as in the host engine, with its steps and its rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.compiler.dali import DaliProgram, compile_recipe
from dali_feed.compiler.host import HostProgram, compile_host
from dali_feed.compiler.outline import outline
from dali_feed.compiler.program import Ints, Parameters
from dali_feed.compiler.tail_colour import with_kernel
from dali_feed.errors import TransformError
from dali_feed.transforms.keys import as_behind
from dali_feed.transforms.recipe import Recipe
from dali_feed.transforms.units import Place

__all__ = ["SplitProgram", "compile_dali"]


@dataclass(slots=True)
class SplitProgram(DaliProgram):
    """A program whose graph ends in uint8, channels last; `behind` is run on its batches."""

    behind: HostProgram | None = None

    def parameters(self, sizes: NDArray[Any], ids: Ints, seed: int, epoch: int) -> Parameters:
        """The parameters of both parts; see `rows_behind`."""
        graph = DaliProgram.parameters(self, sizes, ids, seed, epoch)
        if self.behind is None:
            return graph
        rest = self.behind.parameters(graph.sizes.astype(np.int32), ids, seed, epoch)
        return Parameters(graph.arrays | as_behind(rest.arrays), rest.sizes)


def compile_dali(recipe: Recipe, *, on_gpu: bool, region_decode: bool | None = None) -> DaliProgram:
    """The program of the dali engine; all of it is a graph where DALI has the operators.

    On a GPU the finish step takes the colour steps before it; see dali_feed.compiler.tail_colour.
    `region_decode`: as in `compile_recipe`; None: True on the CPU alone.

    Raises TransformError where ops stand in an order that has no meaning, or where DALI has no operator for one while
    images may still have several sizes.
    """
    region_decode = not on_gpu if region_decode is None else region_decode
    ended = with_kernel if on_gpu else lambda program: program
    try:
        return ended(compile_recipe(recipe, region_decode=region_decode))
    except TransformError as error:
        known = outline(recipe)  # an order without meaning is an error on every engine
        cut = _cut(recipe)
        graph = ended(compile_recipe(Recipe(recipe.ops[:cut], "NHWC", exif=recipe.exif), region_decode=region_decode))
        if graph.size is None or known.size is None:
            msg = f"{error}, and this one can after a transform that gives all images one size"
            raise TransformError(msg) from error
    program = SplitProgram(recipe, graph.steps, known.size, streams=graph.streams, makers=graph.makers)
    program.behind = compile_host(recipe, on_gpu=on_gpu, begin=cut)
    return program


def _cut(recipe: Recipe) -> int:
    """How many ops are run by DALI."""
    for n, op in enumerate(recipe.ops):
        if op.place_behind(Place()).dtype != "uint8":
            return n
        try:
            compile_recipe(Recipe(recipe.ops[: n + 1]), region_decode=False)
        except TransformError:
            return n
    return len(recipe.ops)
