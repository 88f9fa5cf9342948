"""Colour at the end of a program, on a GPU: the kernel `jitter` does it in the place of the graph's operators.

The law: it does the steps that only the finish step follows, for there the batch is dense uint8. A colour step that
something else follows, such as a blur, stays in the graph, and so does every one on DALI's CPU backend.
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
    """The same with as many of its last colour steps as the kernel takes done by the finish step."""
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
