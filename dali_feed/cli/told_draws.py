"""What was drawn for a sample, in words: its crop window, whether it was flipped, an angle.

Draws are pure, so they are not kept but made again, for the seed, the epoch and the sample's id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_feed.compiler.program import Program
from dali_feed.transforms.base import Op
from dali_feed.transforms.keys import WINDOW, Arrays, numbered
from dali_feed.transforms.nest import Nest

__all__ = ["draws_told"]

_UNDRAWN = ("scale", "draw")  # follow from the size; are no words


def draws_told(program: Program, sizes: NDArray[Any], ids: NDArray[np.int64], seed: int, epoch: int) -> list[list[str]]:
    """A line per transform that draws, for each sample; `sizes` int (n, 2): height and width in the header."""
    arrays = program.parameters(sizes, ids, seed, epoch).arrays
    ops = list(enumerate(program.recipe.ops))
    return [list(_lines(ops, arrays, row)) for row in range(len(ids))]


def _lines(ops: Sequence[tuple[int, Op]], arrays: Arrays, row: int) -> Iterator[str]:
    for n, op in ops:
        if isinstance(op, Nest):
            branches = op.within(n)
            for pick in np.atleast_1d(arrays[numbered("pick", n)][row]).tolist():
                if 0 <= pick < len(branches):
                    yield from _lines(branches[pick], arrays, row)
            continue
        for what, value in _of(op, n, arrays, row):
            text = _text(what, value)
            if text:
                yield f"{op.title}: {text}"


def _of(op: Op, n: int, arrays: Arrays, row: int) -> Iterator[tuple[str, NDArray[Any]]]:
    """The arrays of op number n: what each is, and its row."""
    if n == 0 and WINDOW in arrays:
        yield "crop", arrays[WINDOW][row]
    for key, rows in arrays.items():
        name = key.rstrip("0123456789")
        if (
            key == numbered(name, n)
            and name not in _UNDRAWN
            and (any(True for _ in op.drawn()) or name in ("crop", "margin"))
        ):
            yield "erased" if op.erases() is not None else name, np.asarray(rows[row])


def _text(what: str, value: NDArray[Any]) -> str:
    """One row in words; "" where nothing was done."""
    numbers = np.atleast_1d(value)
    if what == "crop":
        y, x, height, width = map(int, numbers[:4])
        return f"{width} x {height} at {x}, {y}"
    if what == "erased":
        y, x, height, width = map(int, numbers[:4])
        return f"{width} x {height} at {x}, {y}" if height and width else "no"
    if what == "margin":
        left, top, right, bottom = map(int, numbers[:4])
        return f"{left}, {top}, {right}, {bottom} added" if any((left, top, right, bottom)) else ""
    if value.dtype == np.bool_ and numbers.size == 1:
        return "yes" if numbers[0] else "no"
    if what == "angle":
        return f"{float(numbers[0]):.1f} degrees"
    flat = numbers.ravel()[:8]
    return ", ".join(f"{float(each):.3g}" for each in flat) + (", ..." if numbers.size > len(flat) else "")
