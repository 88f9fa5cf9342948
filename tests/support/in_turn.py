"""Rows of parameters taken with other values in turn: every row, and each of its words with each of the values.

It is for what no test expects to meet in one row and one value alone, such as a kernel's options and the architectures
that it is compiled for. The rest of the product has the mark `long`: `make test-long` runs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest


def in_turn(rows: Sequence[tuple[str, ...]], values: Sequence[str]) -> list[Any]:
    """A parameter for each row and value, all but some of them marked `long`."""
    met: set[tuple[str, str]] = set()
    left, used = list(rows), dict.fromkeys(values, 0)
    chosen: set[tuple[tuple[str, ...], str]] = set()
    wanted = {(word, value) for row in rows for word in row for value in values}

    def new(row: tuple[str, ...], value: str) -> int:
        return len({(word, value) for word in row} - met)

    while left or wanted - met:  # more than a value a row where the rows are too few
        row = left.pop(0) if left else max(rows, key=lambda row: max(new(row, value) for value in values))
        value = min(values, key=lambda value: (-new(row, value), used[value]))
        chosen.add((row, value))
        used[value] += 1
        met |= {(word, value) for word in row}
    return [
        pytest.param(
            row, value, id=f"{' '.join(row)}-{value}", marks=() if (row, value) in chosen else pytest.mark.long
        )
        for row in rows
        for value in values
    ]
