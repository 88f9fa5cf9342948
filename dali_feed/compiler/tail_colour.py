"""The program of the dali engine; colour steps at its end, on a GPU, are left to the kernel `jitter`.

It does only colour steps directly before the finish step, for there the batch is dense uint8. A colour step that
is followed by another step, such as a blur, stays in the graph, and so does every one on DALI's CPU backend.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dali_feed.compiler.dali import DaliProgram, compile_recipe
from dali_feed.transforms.colours import KIND, MAX_STEPS, Colour
from dali_feed.transforms.keys import ADJUST, Key, numbered
from dali_feed.transforms.recipe import Recipe
from dali_feed.transforms.run import Run

__all__ = ["compile_dali", "with_kernel"]


def compile_dali(recipe: Recipe, *, on_gpu: bool, region_decode: bool | None = None) -> DaliProgram:
    """The program of the dali engine, all of it a graph but for the finish step.

    `region_decode`: as in `compile_recipe`; None: True on the CPU alone.

    Raises TransformError where ops stand in an order that has no meaning, or DALI has no operator for one.
    """
    program = compile_recipe(recipe, region_decode=not on_gpu if region_decode is None else region_decode)
    return with_kernel(program) if on_gpu else program


def with_kernel(program: DaliProgram) -> DaliProgram:
    """The program with its last colour steps, as many as the kernel takes, moved to the finish step."""
    finish, keys, count = program.finish, list[Key](), 0
    if finish is None:
        return program
    steps = program.steps[:-1]
    while isinstance(step := steps[-1], Colour) and count + step.steps <= MAX_STEPS:
        steps.pop()
        keys.insert(0, numbered(step.name, step.k))
        count += step.steps
    if not keys:
        return program

    def gather(run: Run) -> None:
        run.arrays[ADJUST] = np.concatenate([run.arrays.pop(key)[..., KIND] for key in keys], axis=1)

    done = replace(finish, adjusts=count)
    return replace(program, steps=[*steps, done], makers=[*program.makers, gather])
