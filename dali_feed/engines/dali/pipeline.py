"""The DALI engine on a user's own pipeline: it also takes the source's fields, and gives all its outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from nvidia.dali import Pipeline
from nvidia.dali.tensors import TensorCPU, TensorListCPU

from dali_feed.compiler.user_pipeline import FieldInput, PipelineProgram
from dali_feed.engines.dali.engine import DaliEngine, twin_threads
from dali_feed.engines.engine import Result, Work
from dali_feed.errors import ConfigError
from dali_feed.options import Tuning
from dali_feed.records.source import LABEL
from dali_feed.transforms.keys import Key

__all__ = ["PipelineEngine", "field_rows"]


class PipelineEngine(DaliEngine):
    """Runs a `PipelineProgram`; its pipelines, the twin too, are made of the same serialized graph."""

    _program: PipelineProgram

    def __init__(self, program: PipelineProgram, *, batch_size: int, device: int | None, tuning: Tuning) -> None:
        self.payload = Key(program.payload)
        super().__init__(program, batch_size=batch_size, device=device, tuning=tuning)

    def _called(self) -> str:
        return f"pipeline {self._program.name}"

    def _built(self, depth: int, threads: int, *, twin: bool) -> Any:
        own = self._program.threads
        if own:
            threads = twin_threads(own) if twin else own
        return Pipeline.deserialize(
            self._program.spare if twin else self._program.graph,
            batch_size=self._batch_size,
            num_threads=threads,
            device_id=self._device,
            prefetch_queue_depth=depth,
            exec_pipelined=True,
            exec_async=True,
            exec_dynamic=True,  # a batch that fails then fails alone
            enable_checkpointing=False,
            seed=0,
        )

    def _feed(self, pipe: Any, work: Work) -> None:
        # All of them before the first is fed: what is raised here must leave nothing behind in the pipeline.
        fields = {name: field_rows(name, work.fields[name], how) for name, how in self._program.inputs.items()}
        super()._feed(pipe, work)
        for name, rows in fields.items():
            pipe._pipe.SetExternalTLInput(name, rows, None, False)

    def _made(self, outputs: Any, work: Work) -> Result:
        first, *more = (self._dense(out, f"output {n}") for n, out in enumerate(outputs))
        return Result(first, more=tuple((output, None) for output in more))


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
        found = np.ascontiguousarray(value)
    except ValueError:  # a ragged list
        found = np.empty(0, object)
    if found.dtype.kind not in "biuf":
        msg = (
            f"field {name}: a graph takes numbers, arrays of them, bytes and str; found {type(value).__name__}."
            " Make one of these where the source makes its fields"
        )
        raise ConfigError(msg)
    return _fitted(name, found, declared.dtype or found.dtype)


def _fitted(name: str, values: Any, wanted: np.dtype[Any]) -> Any:
    cast = np.ascontiguousarray(values, wanted)
    if values.dtype.kind in "iu" and wanted.kind in "iu" and not np.array_equal(cast, values):
        msg = (
            f"field {name}: its values must fit into {wanted}; found {values.min()}..{values.max()}."
            f" Declare a wider type, fn.external_source(name={name!r}, dtype=...)"
        )
        raise ConfigError(msg)
    return cast
