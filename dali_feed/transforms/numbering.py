"""The random streams of ops inside other ops.

An op's number says which streams are its own. Ops of a recipe are numbered 0, 1, 2, ...; those in a nest carry the
number of their nest in the lower bits and their own place above it, so that no op changes the streams of another. The
chains of AugMix are numbered as the ops of a nest are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dali_feed.draws.streams import DEEPEST, NEST_BITS, TOP_BITS
from dali_feed.errors import TransformError
from dali_feed.transforms.base import Op

__all__ = ["inner_numbers", "walk"]


def inner_numbers(op: Op, n: int, count: int) -> list[int]:
    """Numbers of `count` ops within op number n. TransformError where numbers run out."""
    depth = 0 if n < 1 << TOP_BITS else 1 + (n.bit_length() - 1 - TOP_BITS) // NEST_BITS
    if depth >= DEEPEST or count >= 1 << NEST_BITS:
        what, others = op.inner_words
        rule = f"must have fewer than {1 << NEST_BITS} {what} and lie in fewer than {DEEPEST} {others}"
        msg = f"{type(op).__name__}: {rule}; found {op!r}"
        raise TransformError(msg)
    return [n + ((k + 1) << (TOP_BITS + NEST_BITS * depth)) for k in range(count)]


def walk(ops: Iterable[Op]) -> Iterator[tuple[int, Op]]:
    """All ops with their numbers: a nest, then the ops inside it, then those after it."""
    every = list(enumerate(ops))
    nest = next((op for _, op in every if op.has_parts), None)
    if nest is not None and len(every) > 1 << TOP_BITS:
        msg = f"{type(nest).__name__}: must be in a list of at most {1 << TOP_BITS} transforms; found {len(every)}"
        raise TransformError(msg)
    yield from _walk(every)


def _walk(ops: Iterable[tuple[int, Op]]) -> Iterator[tuple[int, Op]]:
    for n, op in ops:
        yield n, op
        if op.inner():
            inner_numbers(op, n, op.inner())
        for branch in op.within(n):
            yield from _walk(branch)
