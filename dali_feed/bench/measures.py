"""Which column of a row is the figure, what it counts, and how a row is named: what charts and reports ask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Figure", "Measure", "figures", "measure_of"]

# In the order in which they are looked for: column, what it counts, whether more is better.
MEASURES = (
    ("img/s", "images per second", True),
    ("records/s", "records per second", True),
    ("samples/s", "samples per second", True),
    ("MB/s", "MB per second", True),
    ("GB/s", "GB per second", True),
    ("rate", "bytes per second", True),
    ("first batch ms", "ms to the first batch", False),
    ("ms", "milliseconds", False),
    ("seconds", "seconds", False),
)
NAMES = ("who", "engine", "case", "kernel", "variant", "pattern", "mode", "block", "threads", "way", "position")


@dataclass(frozen=True, slots=True)
class Measure:
    """A column, what it counts, and whether more of it is better."""

    column: str
    counts: str
    more_is_better: bool


@dataclass(frozen=True, slots=True)
class Figure:
    """A row's figure with its least and most, which are the figure itself where a row does not tell them."""

    name: str
    detail: str
    value: float
    least: float
    most: float
    row: Mapping[str, Any]


def measure_of(rows: Sequence[Mapping[str, Any]]) -> Measure | None:
    """What the rows are about; None where no row has a figure that is known here."""
    for column, counts, more in MEASURES:
        if any(_number(row.get(column)) is not None for row in rows):
            return Measure(column, counts, more)
    return None


def figures(rows: Sequence[Mapping[str, Any]], measure: Measure) -> list[Figure]:
    """Of each row that has one, in their order."""
    found = []
    for row in rows:
        value = _number(row.get(measure.column))
        if value is None:
            continue
        least, most = _number(row.get("least")), _number(row.get("most"))
        names = [str(row[name]) for name in NAMES if row.get(name) not in {None, ""}]
        found.append(
            Figure(
                *(names[0] if names else "", ", ".join(names[1:]), value),
                *(value if least is None else min(least, value), value if most is None else max(most, value), row),
            )
        )
    return found


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
