"""A user's own DALI graph as a program: `function(images, draws) -> images`.

`images` is the node of decoded RGB images, uint8 HWC, on the engine's device. `draws` gives nodes of one
random number per sample, each a pure function of (seed, epoch, sample id, the n-th draw asked for): a
graph made of them resumes exactly, where DALI's own fn.random operators do not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.draws import PROGRAM, philox4x32, uniforms
from dali_feed.engines.dali.graph import DaliProgram, Fold, Inputs, Step
from dali_feed.errors import TransformError
from dali_feed.transforms.op import Draws, Key, Recipe, numbered

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


def compile_function(function: Callable[[Any, GraphDraws], Any], *, exif: bool = False) -> DaliProgram:
    """The program: decode, turned by `exif`, then the user's graph, whose output is the batch as it is.

    To build its graph raises TransformError, chained, where the function fails.
    """
    columns: list[Column] = []  # random numbers that the function wants, known once it was called
    name = getattr(function, "__name__", repr(function))

    def build(image: Any, inputs: Inputs) -> Any:
        draws = GraphDraws(lambda key: inputs(key, "FLOAT", 0))
        try:
            out = function(image, draws)
        except Exception as error:
            rule = "the function must build a graph when it is called with (images, draws)"
            raise TransformError(f"transform {name}: {rule}; it raised {type(error).__name__}: {error}") from error
        if type(out).__name__ != "DataNode":
            msg = f"transform {name}: a graph function must return one DALI node; found {type(out).__name__}"
            raise TransformError(msg)
        columns[:] = draws.columns
        return out

    def fill(fold: Fold) -> None:
        draws, streams = fold.draws, PROGRAM[: -(-len(columns) // 4)]
        drawn = uniforms(draws.seed, draws.epoch, draws.ids, streams)
        for n, (kind, a, b) in enumerate(columns):
            values = drawn[n] < a if kind == "coin" else a + (b - a) * drawn[n]
            fold.arrays[numbered("draw", n)] = values.astype(np.float32)

    return DaliProgram(Recipe(exif=exif), fixed=False, steps=[Step(build)], parts=[fill])


# A user's own DALI pipeline as a program: the graph as DALI serialized it, and the inputs that are fed into it.
#
# The law: a resumed pass has the random numbers that it would have had. Each random operator of the graph gets the
# state of its generator as an input, a pure function of (seed, epoch, the first sample of the batch, the operator):
# DALI gives one state to a batch and counts its samples from there. So the same batch has the same draws at any time; a
# batch cut differently, by another batch size or world size, has others.


IMAGE = "image"  # the input for payloads, where no column says otherwise
STATE = "_dali_feed_state"  # prefix; with a number: the input for a random operator's state

_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_WORDS = 7  # of 32 bits: two of the key, four of the counter, the phase (25 bytes are asked for)


@dataclass(frozen=True, slots=True)
class FieldInput:
    """What the graph says of a field that it uses; None where it does not say."""

    dtype: np.dtype[Any] | None = None
    ndim: int | None = None


@dataclass(slots=True)
class PipelineProgram(DaliProgram):
    """A pipeline to run, and the arguments that it was made with.

    name             of the user's function
    graph            DALI's own serialization of it, with inputs for the states of its random operators
    spare            the same for the second pipeline, whose decoders allocate nothing ahead unless the user says so
    payload          the input that takes the payloads
    inputs           the source's fields that it uses beside the image
    outputs          how many outputs it has
    states           how many random operators get their state from us
    loose            the names of random operators that cannot get their state from us
    batch_size, device, threads, prefetch, seed
                     as the user gave them to the pipeline; device None is the CPU, the seed has no effect
    """

    name: str = "pipeline"
    graph: bytes = b""
    spare: bytes = b""
    payload: str = IMAGE
    inputs: Mapping[str, FieldInput] = field(default_factory=dict)
    outputs: int = 1
    states: int = 0
    loose: tuple[str, ...] = ()
    batch_size: int = 1
    device: int | None = None
    threads: int | None = None
    prefetch: int = 2
    seed: int | None = None
    fixed: bool = False

    def __post_init__(self) -> None:
        """The states of its random operators are all that it takes beside payloads and fields."""
        self.parts = [lambda fold: fold.arrays.update(_states_of(fold.draws, self.states))]


def random_states(seed: int, epoch: int, ids: NDArray[np.int64], count: int) -> NDArray[np.uint8]:
    """States of `count` generators for each sample, uint8 (count, n, 28): a key, a counter and phase 0 of Philox."""
    samples = ids.astype(np.uint64)
    counter = (np.asarray(PROGRAM[:count])[:, None], np.uint64(epoch), samples & _LOW, samples >> _HALF)
    words = philox4x32(counter, (seed & 0xFFFFFFFF, seed >> 32))
    out = np.zeros((count, len(ids), _WORDS), np.uint32)
    for at, word in zip((0, 1, 4, 5), words, strict=True):  # the key; the counter's high half, one per sequence
        out[:, :, at] = word
    return out.view(np.uint8)


def _states_of(draws: Draws, count: int) -> dict[Key, NDArray[np.uint8]]:
    states = random_states(draws.seed, draws.epoch, draws.ids, count) if count else ()
    return {numbered(STATE, k): rows for k, rows in enumerate(states)}
