"""Ops within ops: RandomApply, RandomChoice, RandomOrder. Where inner ops draw from, and what a sample picks.

An op's number says which streams are its own. Ops of a recipe are numbered 0, 1, 2, ...; those in a nest carry the
number of their nest in the lower bits and their own place above it, so that no op moves another one's streams. The
chains of AugMix are numbered as the ops of a nest are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from dali_feed.errors import TransformError
from dali_feed.plan.streams import DEEPEST, NEST_BITS, STREAMS_PER_OP, TOP_BITS
from dali_feed.transforms.auto import AugMix
from dali_feed.transforms.noise import NoisyErasing
from dali_feed.transforms.pillow import LayerAugment, MixAugment, Pillow
from dali_feed.transforms.recipe import Branches, Nest, Op, RandomApply, RandomOrder

__all__ = ["branches_of", "inner_numbers", "numbered", "pick_streams", "picks", "walk"]

Ints = NDArray[np.int64]


def branches_of(op: Nest) -> Branches:
    """Runs of ops that are taken or left as a whole."""
    return (op.ops,) if isinstance(op, RandomApply) else op.branches


def inner_numbers(op: Nest | AugMix | NoisyErasing | Pillow, n: int, count: int) -> list[int]:
    """Numbers of `count` ops within op number n. TransformError where numbers run out."""
    depth = 0 if n < 1 << TOP_BITS else 1 + (n.bit_length() - 1 - TOP_BITS) // NEST_BITS
    if depth >= DEEPEST or count >= 1 << NEST_BITS:
        kinds = {
            "AugMix": ("chains", "nests"),
            "NoisyErasing": ("rectangles", "nests"),
            "LayerAugment": ("layers", "nests"),
        }
        what, others = kinds.get(type(op).__name__, ("transforms", "others of its kind"))
        rule = f"takes fewer than {1 << NEST_BITS} {what} and lies in fewer than {DEEPEST} {others}"
        msg = f"{type(op).__name__}: {rule}; found {op!r}"
        raise TransformError(msg)
    return [n + ((k + 1) << (TOP_BITS + NEST_BITS * depth)) for k in range(count)]


def numbered(op: Nest, n: int) -> list[list[tuple[int, Op]]]:
    """The branches of op number n, each inner op with its own number. TransformError where numbers run out."""
    branches = branches_of(op)
    numbers = iter(inner_numbers(op, n, sum(map(len, branches))))
    return [[(next(numbers), inner) for inner in branch] for branch in branches]


def walk(ops: Iterable[Op]) -> Iterator[tuple[int, Op]]:
    """All ops with their numbers: a nest, then what is in it, before what stands behind it."""
    every = list(enumerate(ops))
    nest = next((op for _, op in every if isinstance(op, Nest | AugMix | NoisyErasing | Pillow)), None)
    if nest is not None and len(every) > 1 << TOP_BITS:
        msg = f"{type(nest).__name__}: stands in a recipe of {1 << TOP_BITS} transforms at most; found {len(every)}"
        raise TransformError(msg)
    yield from _walk(every)


def _walk(ops: Iterable[tuple[int, Op]]) -> Iterator[tuple[int, Op]]:
    for n, op in ops:
        yield n, op
        if isinstance(op, Nest):
            for branch in numbered(op, n):
                yield from _walk(branch)
        elif isinstance(op, AugMix):
            inner_numbers(op, n, op.width)
        elif isinstance(op, NoisyErasing):
            inner_numbers(op, n, op.most)
        elif isinstance(op, Pillow):
            chains = op.width if isinstance(op, MixAugment) else op.layers if isinstance(op, LayerAugment) else 1
            inner_numbers(op, n, chains)


def pick_streams(op: Nest) -> int:
    """How many streams `picks` takes. TransformError where an op has fewer."""
    count = -(-len(op.branches) // 4) if isinstance(op, RandomOrder) else 1
    if count > STREAMS_PER_OP:
        msg = f"{type(op).__name__}: takes at most {4 * STREAMS_PER_OP} transforms; found {len(branches_of(op))}"
        raise TransformError(msg)
    return count


def picks(op: Nest, drawn: NDArray[np.float32]) -> Ints:
    """Branches in the order in which each sample takes them, -1 for none: int64 (n, k), from uniforms (4 * m, n)."""
    if isinstance(op, RandomApply):
        return np.where(drawn[0] < op.p, 0, -1)[:, None]
    if isinstance(op, RandomOrder):
        return np.argsort(drawn[: len(op.branches)], axis=0, kind="stable").T
    weights = np.asarray(op.weights or (1.0,) * len(op.branches), np.float64)
    edges = np.cumsum(weights) / weights.sum()
    last = int(np.flatnonzero(weights)[-1])  # rounding may leave the last edge below 1
    chosen: Ints = np.minimum(np.searchsorted(edges, drawn[0].astype(np.float64), side="right"), last)
    return chosen[:, None]
