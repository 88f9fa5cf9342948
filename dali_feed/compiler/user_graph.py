"""A user's own DALI graph as a program: `function(images, draws) -> images`.

`images` is the node of decoded RGB images, uint8 HWC, on the engine's device. `draws` gives nodes of one
random number per sample, each a pure function of (seed, epoch, sample id, the n-th draw asked for): a
graph made of them resumes exactly, where DALI's own fn.random operators do not.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dali_feed.compiler.dali import DaliProgram
from dali_feed.compiler.steps import DecodeStep
from dali_feed.draws.philox import uniforms
from dali_feed.draws.streams import PROGRAM
from dali_feed.errors import TransformError
from dali_feed.transforms.graph import Given
from dali_feed.transforms.keys import Key, numbered
from dali_feed.transforms.recipe import Recipe

__all__ = ["GraphDraws", "UserGraph", "compile_function", "is_graph_function"]

Column = tuple[str, float, float]


class GraphDraws:
    """Random numbers for a graph function; each call adds one input of one number per sample."""

    def __init__(self, make_input: Callable[[Key], Any]) -> None:
        self._make_input = make_input
        self.columns: list[Column] = []

    def _add(self, kind: str, a: float, b: float) -> Any:
        self.columns.append((kind, a, b))
        return self._make_input(numbered("draw", len(self.columns) - 1))

    def uniform(self, low: float = 0.0, high: float = 1.0) -> Any:
        """A node of float32 scalars, uniform in [low, high)."""
        return self._add("uniform", float(low), float(high))

    def coin(self, p: float = 0.5) -> Any:
        """A node of float32 scalars: 1 with probability p, else 0."""
        return self._add("coin", float(p), 0.0)


@dataclass(slots=True)
class UserGraph:
    """The step that calls the user's function; `columns` are the random numbers that it asked for."""

    function: Callable[[Any, GraphDraws], Any]
    columns: list[Column] = field(default_factory=list)

    def on(self, image: Any, given: Given, *, gpu: bool) -> Any:
        """Build the user's part of the graph. Raises TransformError, chained, where the function fails."""
        del gpu
        draws = GraphDraws(lambda key: given(key, "FLOAT", 0))
        name = getattr(self.function, "__name__", repr(self.function))
        try:
            out = self.function(image, draws)
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            rule = "the function must build a graph when it is called with (images, draws)"
            msg = f"transform {name}: {rule}; it raised {told}"
            raise TransformError(msg) from error
        if type(out).__name__ != "DataNode":
            msg = f"transform {name}: a graph function must return one DALI node; found {type(out).__name__}"
            raise TransformError(msg)
        self.columns = draws.columns
        return out


def is_graph_function(transform: object) -> bool:
    """Whether this is a function of (images, draws), and not a transform object."""
    if not inspect.isroutine(transform):
        return False
    try:
        parameters = inspect.signature(transform).parameters.values()
    except ValueError:  # some builtins have no signature
        return False
    return sum(one.default is one.empty and one.kind is not one.VAR_KEYWORD for one in parameters) == 2


def compile_function(function: Callable[[Any, GraphDraws], Any], *, exif: bool = False) -> DaliProgram:
    """The program: decode, turned by `exif`, then the user's graph, whose output is the batch as it is."""
    step = UserGraph(function)
    program = DaliProgram(Recipe(exif=exif), [DecodeStep(window=False, turns=exif), step], size=None, fixed=False)

    def make(run: Any) -> None:
        if not step.columns:
            return
        drawn = uniforms(run.seed, run.epoch, run.ids, PROGRAM[: -(-len(step.columns) // 4)])
        for n, (kind, a, b) in enumerate(step.columns):
            values = drawn[n] < a if kind == "coin" else a + (b - a) * drawn[n]
            run.arrays[numbered("draw", n)] = values.astype(np.float32)

    program.makers.append(make)
    return program
