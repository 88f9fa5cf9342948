"""A user's own DALI pipeline as a program: the graph as DALI serialized it, and the inputs that are fed into it.

The law: a resumed pass has the random numbers that it would have had. Each random operator of the graph gets the state
of its generator as an input, a pure function of (seed, epoch, the first sample of the batch, the operator):
DALI gives one state to a batch and counts its samples from there. So the same batch has the same draws at any
time; a batch cut differently, by another batch size or world size, has others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.compiler.dali import DaliProgram
from dali_feed.compiler.steps import DecodeStep
from dali_feed.draws.philox import philox4x32
from dali_feed.draws.streams import PROGRAM
from dali_feed.transforms.keys import numbered

__all__ = ["IMAGE", "STATE", "FieldInput", "PipelineProgram", "pipeline_program", "random_states"]

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


def random_states(seed: int, epoch: int, ids: NDArray[np.int64], count: int) -> NDArray[np.uint8]:
    """States of `count` generators for each sample, uint8 (count, n, 28): a key, a counter and phase 0 of Philox."""
    samples = ids.astype(np.uint64)
    counter = (np.asarray(PROGRAM[:count])[:, None], np.uint64(epoch), samples & _LOW, samples >> _HALF)
    words = philox4x32(counter, (seed & 0xFFFFFFFF, seed >> 32))
    out = np.zeros((count, len(ids), _WORDS), np.uint32)
    for at, word in zip((0, 1, 4, 5), words, strict=True):  # the key; the counter's high half, one per sequence
        out[:, :, at] = word
    return out.view(np.uint8)


def pipeline_program(**known: Any) -> PipelineProgram:
    """The program, with the maker of its states. `known`: as `PipelineProgram` has them."""
    program = PipelineProgram(steps=[DecodeStep(window=False)], size=None, fixed=False, **known)

    def make(run: Any) -> None:
        if program.states:
            for k, rows in enumerate(random_states(run.seed, run.epoch, run.ids, program.states)):
                run.arrays[numbered(STATE, k)] = rows

    program.makers.append(make)
    return program
