"""The reader that a user's graph takes its records from: its arguments, and how other inputs replace it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nvidia.dali import Pipeline, fn

from dali_feed.engines.dali.random_states import schema_of

__all__ = ["GraphReader", "readers_in"]

_READER = re.compile(r"(^|_)readers__|Reader(Resize)?$|(^|_)inputs__")


@dataclass(frozen=True, slots=True)
class GraphReader:
    """A reader: its name in the graph, DALI's name of its kind, and the arguments it was given."""

    pipe: Any
    op: Any
    name: str
    kind: str
    arguments: Mapping[str, Any]

    def count(self) -> int:
        """Records in an epoch of all shards, as DALI counts them. Raises RuntimeError where it cannot read them."""
        pipe, name = self.pipe, self.name
        if not pipe._built:
            pipe, name = Pipeline(batch_size=1, num_threads=1, device_id=None), "reader"
            with pipe:
                found = fn.readers.file(name=name, file_root=self.arguments["file_root"])
                pipe.set_outputs(*found)
            pipe.build()
        return int(pipe.reader_meta(name)["epoch_size"])

    def replace(self, names: Sequence[str]) -> None:
        """Replace output k by `fn.external_source(name=names[k])` wherever it is used. The graph must be defined."""
        edges = [edge for op in self.pipe._ops for given in op.inputs for edge in _listed(given)]
        shared = {id(edge): edge for edge in (*edges, *self.pipe._graph_outputs) if edge.source is self.op}
        edges = list(shared.values())  # each once: it is written to
        conditional, self.pipe._conditionals_enabled = self.pipe._conditionals_enabled, False
        try:
            with self.pipe:
                inputs = {k: fn.external_source(name=names[k]) for k in sorted({edge.index for edge in edges})}
        finally:
            self.pipe._conditionals_enabled = conditional
        renamed = {node.name: inputs[node.index].name for node in edges}
        for op in self.pipe._ops:
            for k in range(op.spec.NumInput()):
                if (name := op.spec.InputName(k)) in renamed:
                    op.spec.RenameInput(k, renamed[name])
        for edge in edges:
            new = inputs[edge.index]
            edge.name, edge.source, edge.index = new.name, new.source, new.index
        rest = [op for op in self.pipe._ops if op is not self.op]
        self.pipe._ops = [*(node.source for node in inputs.values()), *rest]  # inputs must come before their users


def _listed(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [given]


def readers_in(pipe: Any) -> list[GraphReader]:
    """The readers of a graph that is defined."""
    return [
        GraphReader(pipe, op, op.name, schema_of(op), {**op._op._init_args, **op._op._call_args})
        for op in pipe._ops
        if _READER.search(schema_of(op))
    ]
