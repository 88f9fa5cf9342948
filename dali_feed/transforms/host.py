"""A recipe compiled for the host engine: torchvision's own steps, in the recipe's own order.

For a GPU the flips, float steps and the RandomErasing at the end of a recipe are left to the finish
kernel there, and what comes out is uint8, channels last.

`dali_feed.engines.dali.graph` folds crops and flips into steps that read the pixels. Here nothing is folded but a
crop that the recipe begins with, which the decoder does: integer and float steps keep torchvision's order,
and so pixels can equal its bit for bit. Random numbers, windows and sizes are those of the other compiler.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.transforms.crops import Flip
from dali_feed.transforms.op import ERASE, FLIPS, SIZE, TURN, WINDOW, Draws, Ints, Key, Op, Recipe, of_op
from dali_feed.transforms.program import ImageProgram, Parameters, finish_of, last_erasing, outline, turns
from dali_feed.transforms.settings import DType, Layout


@dataclass(slots=True)
class HostProgram(ImageProgram):
    """The steps that the host engine runs, and how to compute their parameters. See `ImageProgram`.

    Op n draws from streams 16n..16n+15. Where `size` is None row "size" says it; with `window` the decoder takes row
    "window" (y, x, height, width) first.

    layout   of the output's pixels
    steps    the ops that it runs, with their numbers; those behind them are left to the finish step
    """

    dtype: DType = "uint8"
    layout: Layout = "NCHW"
    steps: list[tuple[int, Op]] = field(default_factory=list)

    def taken(self, draws: Draws) -> Parameters:
        """The same of what the recipe's ops have drawn."""
        arrays, out = dict(draws.arrays), np.stack([draws.h, draws.w], axis=1)
        if self.window:
            arrays[WINDOW] = arrays.pop(of_op("crop", 0))
        if (ways := turns(draws.sizes)) is not None:
            arrays[TURN] = ways
        if self.size is None:
            arrays[SIZE] = out
        if self.finish is not None:
            self._leave(arrays, out)
        return Parameters(arrays, out)

    def _leave(self, arrays: dict[Key, NDArray[Any]], sizes: Ints) -> None:
        """Put in the parameters of the finish step; rectangles are in coordinates of the output image."""
        turned: dict[str, NDArray[np.bool_]] = {}
        for n, op in enumerate(self.recipe.ops):
            if n < len(self.steps):
                continue
            if op.erases() is not None:
                arrays[ERASE] = arrays.pop(of_op("effect", n)).copy()
            elif isinstance(op, Flip):
                flips = arrays.pop(of_op("flip", n))
                turned[op.axis] = turned.get(op.axis, False) ^ flips
                if ERASE in arrays:
                    rows, k = arrays[ERASE], "yx".index(op.axis)
                    rows[flips, k] = (sizes[:, k] - rows[:, k] - rows[:, k + 2])[flips]
        arrays.update({FLIPS[axis]: rows.astype(np.int32) for axis, rows in turned.items()})


def compile_host(recipe: Recipe, *, on_gpu: bool = False) -> HostProgram:
    """Compile; `on_gpu`: the finish step runs on a GPU.

    Raises TransformError where ops stand in an order that has no meaning.
    """
    known, ops = outline(recipe), recipe.ops
    erasing, on_cpu = last_erasing(ops), len(ops)
    while on_gpu and on_cpu and (on_cpu - 1 == erasing or ops[on_cpu - 1].of_finish):
        on_cpu -= 1
    bytes_to_gpu = on_gpu and outline(Recipe(ops[:on_cpu])).dtype == "uint8"
    if not bytes_to_gpu:
        on_cpu = len(ops)
    program = HostProgram(recipe, known.size, known.dtype, streams=known.streams, layout=recipe.layout)
    program.window, program.steps = bool(ops) and ops[0].cuts, list(enumerate(ops[:on_cpu]))
    if bytes_to_gpu:
        program.finish = finish_of(recipe, {op.axis for op in ops[on_cpu:] if isinstance(op, Flip)})
        program.dtype, program.layout = "uint8", "NHWC"
    return program
