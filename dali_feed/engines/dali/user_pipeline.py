"""The DALI engine on a user's own pipeline: it also takes the source's fields, and gives all its outputs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from nvidia.dali import Pipeline, fn, types
from nvidia.dali.tensors import TensorCPU, TensorListCPU

from dali_feed.engines.dali.graph import NOTHING_BEFOREHAND
from dali_feed.engines.dali.images import PIPELINE_OPTIONS, DaliImages, twin_threads
from dali_feed.engines.dali.user_graph import IMAGE, STATE, FieldInput, PipelineProgram
from dali_feed.engines.engine import Pixels
from dali_feed.engines.workers import Workers
from dali_feed.errors import ConfigError, TransformError
from dali_feed.records.source import LABEL
from dali_feed.transforms.op import Key
from dali_feed.transforms.program import Output


class PipelineImages(DaliImages):
    """Runs a `PipelineProgram`; its pipelines, the twin too, are made of the same serialized graph."""

    def __init__(self, outputs: Sequence[Output], workers: Workers, **options: Any) -> None:
        self._program = cast("PipelineProgram", outputs[0].program)
        self.called = f"pipeline {self._program.name}"
        self.payload, self.inputs = Key(self._program.payload), tuple(self._program.inputs)
        super().__init__(outputs, workers, **options)

    def _built(self, threads: int, *, twin: bool) -> Any:
        own = self._program.threads
        if own:
            threads = twin_threads(own) if twin else own
        return Pipeline.deserialize(
            self._program.spare if twin else self._program.graph,
            batch_size=self._batch_size,
            num_threads=threads,
            device_id=self._device,
            enable_checkpointing=False,
            seed=0,
            **PIPELINE_OPTIONS,
        )

    def _give(self, pipe: Any, ticket: Any) -> None:
        # All of them before the first is fed: what is raised here must leave nothing behind in the pipeline.
        values = ticket.part.values
        fields = {name: field_rows(name, values[name], how) for name, how in self._program.inputs.items()}
        super()._give(pipe, ticket)
        for name, rows in fields.items():
            pipe.feed_input(name, rows)

    def _pixels(self, ticket: Any) -> list[Pixels]:
        return [Pixels(self._dense(output, f"output {n}"), device=self._gpu) for n, output in enumerate(ticket.outputs)]


def field_rows(name: str, values: Any, declared: FieldInput) -> Any:
    """A field's values as DALI takes them, one tensor per sample.

    A scalar comes in shape (1,), and a label as int32, as fn.readers.file gives them; a declared dtype and ndim win.
    Raises ConfigError for values that are no tensors, or that do not fit.
    """
    if not isinstance(values, np.ndarray):
        if not all(isinstance(value, int | float | np.number) for value in values):
            return TensorListCPU([TensorCPU(_tensor(name, value, declared)) for value in values], contiguous=False)
        values = np.asarray(values)
    if values.ndim == 1 and declared.ndim != 0:
        values = values[:, None]
    wanted = declared.dtype or (np.dtype(np.int32) if name == LABEL else values.dtype)
    return TensorListCPU(_fitted(name, values, wanted))


def _tensor(name: str, value: Any, declared: FieldInput) -> Any:
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return np.frombuffer(value, np.uint8)
    try:
        array = np.ascontiguousarray(value)
    except ValueError:  # a ragged list
        array = np.empty(0, object)
    if array.dtype.kind not in "biuf":
        raise ConfigError(
            f"field {name}: a graph takes numbers, arrays of them, bytes and str; found {type(value).__name__}."
            " Make one of these where the source makes its fields"
        )
    return _fitted(name, array, declared.dtype or array.dtype)


def _fitted(name: str, values: Any, wanted: np.dtype[Any]) -> Any:
    cast = np.ascontiguousarray(values, wanted)
    if values.dtype.kind in "iu" and wanted.kind in "iu" and not np.array_equal(cast, values):
        raise ConfigError(
            f"field {name}: its values must fit into {wanted}; found {values.min()}..{values.max()}."
            f" Declare a wider type, fn.external_source(name={name!r}, dtype=...)"
        )
    return cast


# Gives the random operators of a user's graph the states of their generators as inputs.
#
# DALI 2.4 has a hidden argument input for that, `_random_state`; tests/engines/test_user_pipelines.py checks that it
# behaves as `dali_feed.engines.dali.user_graph` says. After an `if` of DALI's conditional mode an operator gets a part
# of the batch: its state is split on the same condition, so that it takes the state of the first sample that it gets.


_RANDOM = re.compile(r"random|noise__|jitter|CoinFlip|Uniform|NormalDistribution|permutation", re.IGNORECASE)
_SPLIT, _MERGE = "_conditional__Split", "_conditional__Merge"

Branch = tuple[Any, int] | None  # the operator that splits the batch, and which of its outputs; None: the whole batch


def schema_of(op: Any) -> str:
    """DALI's name of an operator's kind."""
    return str(getattr(op._op, "schema_name", type(op._op).__name__))


def give_states(pipe: Any) -> tuple[int, tuple[str, ...]]:
    """Add the inputs: how many there are, and by name the random operators that have no argument for one."""
    branches: dict[str, Branch] = {}
    drawing: list[Any] = []
    loose: dict[str, None] = {}
    for op in pipe._ops:  # sorted: inputs must come before the operators that use them
        branches[op.name] = _branch(op, branches)
        if op._op.schema.HasArgument("_random_state"):
            drawing.append(op)
        elif _RANDOM.search(schema_of(op)):
            loose["fn." + ".".join(_snake(part) for part in schema_of(op).split("__"))] = None
    conditional, pipe._conditionals_enabled = pipe._conditionals_enabled, False  # branches are followed here
    try:
        with pipe:
            for k, op in enumerate(drawing):
                node = fn.external_source(name=f"{STATE}{k}", dtype=types.UINT8, ndim=1, no_copy=True)
                node = _parted(node, branches[op.name], branches)
                op.spec.AddArgumentInput("_random_state", node.name, node.ndim, node.dtype, node.layout)
                op._inputs.append(node)
    finally:
        pipe._conditionals_enabled = conditional
    return len(drawing), tuple(loose)


def _edges(op: Any) -> list[Any]:
    return [edge for each in op.inputs for edge in (each if isinstance(each, list) else [each])]


def _branch(op: Any, branches: dict[str, Branch]) -> Branch:
    """The branch of an operator: that of any of its inputs; for a merge, that of its condition."""
    edges = _edges(op)
    for edge in edges[-1:] if schema_of(op) == _MERGE else edges:
        branch = (edge.source, edge.index) if schema_of(edge.source) == _SPLIT else branches[edge.source.name]
        if branch is not None:
            return branch
    return None


def _parted(state: Any, branch: Branch, branches: dict[str, Branch]) -> Any:
    """The states of the samples that come into `branch`."""
    if branch is None:
        return state
    split, at = branch
    whole = _parted(state, branches[split.name], branches)
    return fn._conditional.split(whole, predicate=_edges(split)[-1], _if_stmt=True)[at]


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


# Reads a user's own DALI pipeline: its inputs, its outputs, and which of its operators are random.
#
# DALI's own description of the graph is used, not the function: it is serialized once, before it is built,
# and the engine makes its pipelines from that.


_LOAD = "hw_decoder_load"
_READER = re.compile(r"(^|_)readers__|Reader(Resize)?$|(^|_)inputs__")
_TAKEN = "_dali_feed_taken"  # set on a pipeline that an iterator has made its own


@dataclass(frozen=True, slots=True)
class OpenedPipeline:
    """A pipeline whose graph is defined, and the name that its user knows."""

    name: str
    pipe: Any


def open_pipeline(pipelines: object) -> OpenedPipeline:
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
    opened = pipelines if isinstance(pipelines, OpenedPipeline) else open_pipeline(pipelines)
    name, pipe = opened.name, opened.pipe
    subject = f"pipeline {name}"
    inputs = _inputs(subject, pipe, fields, payload)
    setattr(pipe, _TAKEN, True)
    decoders = _gpu_decoders(pipe)
    for op in decoders:
        _set_default(op, **{_LOAD: 0.0})  # else a sample's pixels would depend on the other samples of its batch
    states, loose = give_states(pipe)
    pipe.set_outputs(*pipe._graph_outputs)
    pipe._py_graph_built = False  # so that DALI sees the inputs for the states as well
    pipe._backend_prepared = False  # DALI must build it again, if it was built; that releases what it held
    try:
        graph = pipe.serialize()
        for op in decoders:
            _set_default(op, **NOTHING_BEFOREHAND)
        pipe._backend_prepared = False  # so that DALI sees what has been added as well
        spare = pipe.serialize()
    except (RuntimeError, ValueError, IndexError, KeyError, TypeError) as error:
        text = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise TransformError(
            f"{subject}: its graph must be one that DALI can serialize; DALI says: {text}"
            " Leave that operator out, and do its work on the batch that the iterator gives"
        ) from error
    return PipelineProgram(
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


def _one(pipelines: object) -> OpenedPipeline:
    if isinstance(pipelines, list | tuple):
        if len(pipelines) != 1:
            rule = "must be one, as each rank runs its own"
            raise ConfigError(f"pipelines: {rule}; found {len(pipelines)}. Start one process for each GPU")
        pipelines = pipelines[0]
    name = getattr(pipelines, "__name__", type(pipelines).__name__)
    pipe = pipelines
    if callable(pipelines) and not isinstance(pipelines, Pipeline):
        try:
            pipe = pipelines()
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise TransformError(
                f"pipeline {name}: the function must build its graph when it is called with no arguments; it raised"
                f" {what}. One that takes arguments is given as a Pipeline, {name}(...)"
            ) from error
    if not isinstance(pipe, Pipeline):
        raise ConfigError(
            f"pipelines: must be a function under @pipeline_def, or the Pipeline it gives; found {type(pipe).__name__}"
            f"{'' if pipe is pipelines else f' from {name}()'}. Put @pipeline_def above the function"
        )
    if getattr(pipe, _TAKEN, False):
        msg = f"pipeline {name}: must belong to one iterator; found one that another iterator uses; make one for each"
        raise ConfigError(msg)
    if not pipe.max_batch_size or pipe.max_batch_size < 1:
        msg = f"pipeline {name}: must say its batch size; found none. Use @pipeline_def(batch_size=..., ...)"
        raise ConfigError(msg)
    return OpenedPipeline(name, pipe)


def _inputs(subject: str, pipe: Any, fields: Sequence[str], payload: str) -> dict[str, FieldInput]:
    """What the graph takes of each field. Raises ConfigError where a node asks for what the source does not have."""
    known = (payload, *fields)
    taken: dict[str, FieldInput] = {}
    for reader in filter(_READER.search, map(schema_of, pipe._ops)):
        inputs = ", ".join(f"fn.external_source(name={n!r})" for n in known)
        msg = f"{subject}: must take its records from the source; found the reader {reader}. Put {inputs} instead"
        raise ConfigError(msg)
    for op in pipe._ops:
        if type(op._op).__name__ != "ExternalSource":
            continue
        if getattr(op, "_callback", None) is not None:
            rule = f"external_source {op.name!r} must take its data from the loader's source"
            raise ConfigError(f"{subject}: {rule}; found source= in it. Leave that out")
        if op._autoname or op.name not in known:
            what = "one without a name" if op._autoname else repr(op.name)
            msg = f"{subject}: external_source must be named after a field, one of {', '.join(known)}; found {what}"
            raise ConfigError(msg)
        if op.outputs[0].device == "cpu":
            op.spec.AddArg("no_copy", True)  # our inputs are never written to again
        dtype, ndim = op._op._dtype, op._op._ndim
        known_type = dtype is not None and dtype != types.NO_TYPE
        taken[op.name] = FieldInput(np.dtype(types.to_numpy_type(dtype)) if known_type else None, ndim)
    if payload not in taken:
        raise ConfigError(
            f"{subject}: an output must come from the source's payloads, fn.external_source(name={payload!r});"
            f" found {', '.join(map(repr, taken)) or 'no external_source'}"
        )
    del taken[payload]
    return taken


def _gpu_decoders(pipe: Any) -> list[Any]:
    """The operators with an option for the share of the GPU's JPEG engine."""
    return [op for op in pipe._ops if getattr(op._op, "_device", None) == "mixed" and op._op.schema.HasArgument(_LOAD)]


def _set_default(op: Any, **options: float) -> None:
    for name, value in options.items():
        with suppress(RuntimeError):  # DALI refuses to set an argument twice
            op.spec.AddArg(name, value)
