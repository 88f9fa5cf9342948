"""Reads a user's own DALI pipeline: its inputs, its outputs, and which of its operators are random.

DALI's own description of the graph is used, not the function: it is serialized once, before it is built,
and the engine makes its pipelines from that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from nvidia.dali import Pipeline, types

from dali_feed.compiler.user_pipeline import IMAGE, FieldInput, PipelineProgram, pipeline_program
from dali_feed.engines.dali.graph import NOTHING_BEFOREHAND
from dali_feed.engines.dali.random_states import give_states, schema_of
from dali_feed.errors import ConfigError, TransformError

__all__ = ["Opened", "open_pipeline", "read_pipeline"]

_LOAD = "hw_decoder_load"
_READER = re.compile(r"(^|_)readers__|Reader(Resize)?$|(^|_)inputs__")
_TAKEN = "_dali_feed_taken"  # set on a pipeline that an iterator has made its own


@dataclass(frozen=True, slots=True)
class Opened:
    """A pipeline whose graph is defined, and the name that its user knows."""

    name: str
    pipe: Any


def open_pipeline(pipelines: object) -> Opened:
    """A `@pipeline_def` function or the Pipeline it gives, built or not, or a list of one, with its graph defined.

    Raises ConfigError, TransformError for what cannot be run.
    """
    opened = _one(pipelines)
    try:
        if not opened.pipe._py_graph_built:
            opened.pipe._build_graph()
    except Exception as error:
        msg = f"pipeline {opened.name}: its graph must build; DALI says {type(error).__name__}: {error}"
        raise TransformError(msg) from error
    return opened


def read_pipeline(pipelines: object, fields: Sequence[str], payload: str = IMAGE) -> PipelineProgram:
    """The program of what `open_pipeline` takes or gave; `fields` is what the source has. The pipeline is ours then.

    payload  the name of the input that takes the payloads

    Raises ConfigError, TransformError for what cannot be run.
    """
    opened = pipelines if isinstance(pipelines, Opened) else open_pipeline(pipelines)
    name, pipe = opened.name, opened.pipe
    told = f"pipeline {name}"
    inputs = _inputs(told, pipe, fields, payload)
    setattr(pipe, _TAKEN, True)
    decoders = _gpu_decoders(pipe)
    for op in decoders:
        _unless_said(op, **{_LOAD: 0.0})  # else a sample's pixels would depend on the other samples of its batch
    states, loose = give_states(pipe)
    pipe.set_outputs(*pipe._graph_outputs)
    pipe._py_graph_built = False  # so that DALI sees the inputs for the states as well
    pipe._backend_prepared = False  # DALI must build it again, if it was built; that releases what it held
    try:
        graph = pipe.serialize()
        for op in decoders:
            _unless_said(op, **NOTHING_BEFOREHAND)
        pipe._backend_prepared = False  # so that DALI sees what has been added as well
        spare = pipe.serialize()
    except (RuntimeError, ValueError, IndexError, KeyError, TypeError) as error:
        text = (str(error).strip().splitlines() or [type(error).__name__])[0]
        msg = (
            f"{told}: its graph must be one that DALI can serialize; DALI says: {text}"
            " Leave that operator out, and do its work on the batch that the iterator gives"
        )
        raise TransformError(msg) from error
    return pipeline_program(
        name=name,
        payload=payload,
        graph=graph,
        spare=spare,
        inputs=inputs,
        outputs=len(pipe._graph_outputs),
        states=states,
        loose=loose,
        batch_size=pipe.max_batch_size,
        device=pipe.device_id,
        threads=pipe.num_threads,
        prefetch=pipe.prefetch_queue_depth if isinstance(pipe.prefetch_queue_depth, int) else 2,
        seed=pipe.seed,
    )


def _one(pipelines: object) -> Opened:
    """The pipeline and its name."""
    if isinstance(pipelines, list | tuple):
        if len(pipelines) != 1:
            rule = "must be one, as each rank runs its own"
            msg = f"pipelines: {rule}; found {len(pipelines)}. Start one process for each GPU"
            raise ConfigError(msg)
        pipelines = pipelines[0]
    name = getattr(pipelines, "__name__", type(pipelines).__name__)
    pipe = pipelines
    if callable(pipelines) and not isinstance(pipelines, Pipeline):
        try:
            pipe = pipelines()
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            msg = (
                f"pipeline {name}: the function must build its graph when it is called with no arguments; it raised"
                f" {told}. One that takes arguments is given as a Pipeline, {name}(...)"
            )
            raise TransformError(msg) from error
    if not isinstance(pipe, Pipeline):
        msg = (
            f"pipelines: must be a function under @pipeline_def, or the Pipeline it gives; found {type(pipe).__name__}"
            f"{'' if pipe is pipelines else f' from {name}()'}. Put @pipeline_def above the function"
        )
        raise ConfigError(msg)
    if getattr(pipe, _TAKEN, False):
        msg = f"pipeline {name}: must belong to one iterator; found one that another iterator uses; make one for each"
        raise ConfigError(msg)
    if not pipe.max_batch_size or pipe.max_batch_size < 1:
        msg = f"pipeline {name}: must say its batch size; found none. Use @pipeline_def(batch_size=..., ...)"
        raise ConfigError(msg)
    return Opened(name, pipe)


def _inputs(told: str, pipe: Any, fields: Sequence[str], payload: str) -> dict[str, FieldInput]:
    """What the graph takes of each field. Raises ConfigError where a node asks for what the source does not have."""
    known = (payload, *fields)
    found: dict[str, FieldInput] = {}
    for reader in filter(_READER.search, map(schema_of, pipe._ops)):
        inputs = ", ".join(f"fn.external_source(name={n!r})" for n in known)
        msg = f"{told}: must take its records from the source; found the reader {reader}. Put {inputs} instead"
        raise ConfigError(msg)
    for op in pipe._ops:
        if type(op._op).__name__ != "ExternalSource":
            continue
        if getattr(op, "_callback", None) is not None:
            rule = f"external_source {op.name!r} must take its data from the loader's source"
            msg = f"{told}: {rule}; found source= in it. Leave that out"
            raise ConfigError(msg)
        if op._autoname or op.name not in known:
            what = "one without a name" if op._autoname else repr(op.name)
            msg = f"{told}: external_source must be named after a field, one of {', '.join(known)}; found {what}"
            raise ConfigError(msg)
        if op.outputs[0].device == "cpu":
            op.spec.AddArg("no_copy", True)  # our inputs are never written to again
        dtype, ndim = op._op._dtype, op._op._ndim
        known_type = dtype is not None and dtype != types.NO_TYPE
        found[op.name] = FieldInput(np.dtype(types.to_numpy_type(dtype)) if known_type else None, ndim)
    if payload not in found:
        msg = (
            f"{told}: an output must come from the source's payloads, fn.external_source(name={payload!r});"
            f" found {', '.join(map(repr, found)) or 'no external_source'}"
        )
        raise ConfigError(msg)
    del found[payload]
    return found


def _gpu_decoders(pipe: Any) -> list[Any]:
    """The operators with an option for the share of the GPU's JPEG engine."""
    return [op for op in pipe._ops if getattr(op._op, "_device", None) == "mixed" and op._op.schema.HasArgument(_LOAD)]


def _unless_said(op: Any, **options: float) -> None:
    """Set an operator's argument where the user did not."""
    for name, value in options.items():
        with suppress(RuntimeError):  # DALI refuses to set an argument twice
            op.spec.AddArg(name, value)
