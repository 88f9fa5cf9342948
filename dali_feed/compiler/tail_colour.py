"""Colour steps at the end of a program, on a GPU: the kernel `jitter` does them instead of operators of the graph.

It does only colour steps directly before the finish step, for there the batch is dense uint8. A colour step that
is followed by another step, such as a blur, stays in the graph, and so does every one on DALI's CPU backend.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dali_feed.compiler.dali import DaliProgram
from dali_feed.transforms.colours import KIND, MAX_STEPS, Colour
from dali_feed.transforms.keys import ADJUST, Key, numbered
from dali_feed.transforms.run import Run

__all__ = ["with_kernel"]


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
