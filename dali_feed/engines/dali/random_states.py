"""Gives the random operators of a user's graph the states of their generators as inputs.

DALI 2.4 has a hidden argument input for that, `_random_state`; a test (test_dali_random.py) checks that it behaves as
`dali_feed.compiler.user_pipeline` says. After an `if` of DALI's conditional mode an operator gets a part of the batch:
its state is split on the same condition, so that it takes the state of the first sample that it gets.
"""

from __future__ import annotations

import re
from typing import Any

from nvidia.dali import fn, types

from dali_feed.compiler.user_pipeline import STATE

__all__ = ["give_states", "schema_of"]

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
    return [edge for given in op.inputs for edge in (given if isinstance(given, list) else [given])]


def _branch(op: Any, branches: dict[str, Branch]) -> Branch:
    """The branch of an operator: that of any of its inputs; for a merge, that of its condition."""
    edges = _edges(op)
    for edge in edges[-1:] if schema_of(op) == _MERGE else edges:
        found = (edge.source, edge.index) if schema_of(edge.source) == _SPLIT else branches[edge.source.name]
        if found is not None:
            return found
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
